"""Why `qd work` and its children stop, with which exit code: every row of the table, through the real command."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from datetime import datetime

import pytest

from tests.support.payloads import push, push_raw
from tests.support.processes import Procs
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import FAILED, Client
from tests.support.servers.redis import KEEPS, Server
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")
BAD_CODE = pytest.mark.fault(
    "38",
    "new code that does not import, dies or hangs at import, or whose workers do not boot; at a reload and at the start",
    "a reload is refused and the old workers continue; a start ends with exit code 3 and no fork loop",
)


def test_stop_when_empty_works_the_queue_off_and_exits_0(shop: Project, witness: Witness) -> None:
    shop.qd("dispatch", "quick", "--count", "30")
    work = shop.work("-w", "2", "--stop-when-empty")
    work.ends_clean(code=0)
    assert len(witness.starting("quick")) == 30
    assert work.matches("master.stopping.*queues are empty")
    assert work.matches("master.stopped jobs=30 ")


RELEASED = """
from qd import Qd, Retry, current_job

app = Qd()


@app.job("again", tries=2, backoff=0)
def again():
    if current_job().attempt == 1:
        raise Retry


@app.job("plain")
def plain(): ...
"""


@FAILED
def test_only_jobs_that_succeeded_are_counted_as_done(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=RELEASED)
    work = ready(shop)
    push(redis, "again")
    push(redis, "plain", count=2)
    push_raw(redis, b'{"data":{},"attempts":0}')
    work.wait_line("job.malformed")
    work.wait_line("job.released .*job=again")
    work.wait_line("job.done", count=3)

    def done() -> int:
        (master,) = json.loads(shop.qd("status", "--json").stdout)["masters"]
        return sum(worker["done"] for worker in master["workers"])

    eventually(lambda: done() == 3, what="three jobs done in `qd status`")
    work.signal(signal.SIGUSR1)
    work.wait_line("worker.state .*jobs=3")
    work.stop()
    assert work.matches("master.stopped jobs=3 ")


def test_stop_when_empty_waits_for_the_worker_that_is_busy(shop: Project, witness: Witness) -> None:
    shop.qd("dispatch", "slow", "seconds=1")
    shop.work("-w", "3", "--stop-when-empty").ends_clean(code=0)
    assert witness.starting("end")


# A keeper that is slow to move what a dead worker held: its successor finds an empty queue in the meantime.
SLOW_KEEPER = """
import sys, time
from qd.cli.main import main
from qd.keeper.dead_workers import DeadWorkers as Dead
real = Dead._settle
def slow(dead, slot):
    time.sleep(0.7)
    real(dead, slot)
Dead._settle = slow
main()
"""
DIES = """
@app.job("dies")
def dies() -> None:
    if Path("died").exists():
        return note("quick")
    Path("died").touch()
    os.kill(os.getpid(), 9)
"""


@pytest.mark.leaves("queues:default:deaths")
def test_stop_when_empty_waits_for_what_a_dead_worker_held(shop: Project, witness: Witness, redis: Client) -> None:
    shop.jobs(JOBS + DIES)
    shop.allowed.add("died")
    push(redis, "dies")
    command = [sys.executable, "-c", SLOW_KEEPER, "work", "-w", "1", "--stop-when-empty", "--sleep", "60"]
    work = Procs(command, cwd=shop.root, env=shop.env())
    shop.started.append(work)
    work.ends_clean()
    assert len(witness.starting("quick")) == 1


def test_stop_when_empty_for_waits_that_long(shop: Project, witness: Witness) -> None:
    shop.qd("dispatch", "quick")
    work = shop.work("-w", "1", "--stop-when-empty-for", "1.5s")
    witness.wait("quick")
    work.ends_clean(code=0)
    done, stopping = (
        datetime.fromisoformat(work.wait_line(word).string[:23]) for word in ("job.done", "master.stopping")
    )
    assert (stopping - done).total_seconds() >= 1.4
    assert work.matches("were empty for 1.5 s")


def test_once_runs_one_job_and_exits_0(shop: Project, witness: Witness) -> None:
    shop.qd("dispatch", "quick", "--count", "3")
    shop.work("--once").ends_clean(code=0)
    assert len(witness.starting("quick")) == 1
    shop.qd("clear", "default", "--yes")


def test_once_on_an_empty_queue_waits_sleep_at_most_and_exits_0(shop: Project) -> None:
    shop.work("--once", "--sleep", "0.3").ends_clean(code=0, seconds=20)


@pytest.mark.leaves("queues:*:failed", "queues:*:failed_at")
def test_once_exits_0_when_the_job_failed(shop: Project, witness: Witness) -> None:
    shop.qd("dispatch", "boom")
    shop.work("--once").ends_clean(code=0)
    shop.work("--once").ends_clean(code=0)
    assert witness.lines == ["boom 1", "boom 2"]


def test_max_jobs_replaces_the_worker_and_the_master_continues(shop: Project, witness: Witness) -> None:
    shop.qd("dispatch", "quick", "--count", "7")
    work = shop.work("-w", "1", "--max-jobs", "3", "--stop-when-empty", "--log-level", "debug")
    work.ends_clean(code=0)
    pids = [line.split()[2] for line in witness.starting("quick")]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 1]
    assert work.matches(r"worker.left .*exit 14 \(limit\)")


def test_max_jobs_differs_between_several_workers(project: MakeProject) -> None:
    shop = project(jobs=JOBS)
    witness = Witness(shop)
    shop.qd("dispatch", "quick", "--count", "1500")
    shop.work("-w", "2", "--max-jobs", "100", "--stop-when-empty", "--log-level", "warning").ends_clean(seconds=30)
    pids = [line.split()[2] for line in witness.starting("quick")]
    whole = sorted(pids.count(pid) for pid in dict.fromkeys(pids))[2:]  # without those whom the end has met
    assert all(80 <= count <= 120 for count in whole)
    assert len(set(whole)) > 1


def test_max_time_replaces_the_worker(shop: Project) -> None:
    work = shop.work("-w", "1", "--max-time", "0.5s", "--sleep", "0.1", "--log-level", "debug")
    work.wait_line(r"worker.left .*exit 14 \(limit\)", count=2)
    work.stop()


LEAK = """
leaked = []

@app.job("leak")
def leak() -> None:
    leaked.append(bytearray(os.urandom(1000) * 40_000))
    print("leaked", os.getpid(), flush=True)
"""


def test_memory_lets_the_job_finish_and_replaces_the_worker(project: MakeProject) -> None:
    shop = project(jobs=LEAK)
    shop.qd("dispatch", "leak", "--count", "4")
    work = shop.work("-w", "1", "--memory", "64M", "--stop-when-empty", "--log-level", "debug")
    work.ends_clean(code=0)
    pids = [line.split()[1] for line in work.output]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [2, 2]  # 40 MB, 80 MB: over the ceiling
    assert work.matches(r"worker.left .*exit 12 \(memory\)")


def test_what_the_app_preloads_is_not_counted_as_growth(project: MakeProject) -> None:
    shop = project(jobs=LEAK + "\nballast = bytearray(os.urandom(1000) * 200_000)\n")
    shop.qd("dispatch", "leak", "--count", "2")
    work = shop.work("-w", "1", "--stop-when-empty", "--log-level", "debug")
    work.ends_clean(code=0)
    assert len({line.split()[1] for line in work.output}) == 1
    assert not work.matches("exit 12")


@FAILED
def test_memory_hard_ends_the_job_that_takes_too_much(project: MakeProject) -> None:
    shop = project(
        jobs=LEAK
        + "\n@app.job('hog')\ndef hog() -> None:\n    leaked.append(bytearray(os.urandom(1000) * 400_000)); time.sleep(60)\n"
    )
    shop.qd("dispatch", "hog")
    work = shop.work("-w", "1", "--memory-hard", "200M", "--max-crashes", "1")
    work.wait_line("job.killed .*reason=memory.*job=hog")
    work.wait_line("job.requeued .*reason=memory")
    work.wait_line("job.failed .*job=hog.*over --memory-hard")
    work.stop()


def test_no_respawn_exits_12_after_the_memory_ceiling(project: MakeProject) -> None:
    shop = project(jobs=LEAK)
    shop.qd("dispatch", "leak", "--count", "3")
    shop.work("-w", "1", "--memory", "32M", "--no-respawn").ends_clean(code=12)
    assert shop.qd("clear", "default", "--yes").returncode == 0


def test_no_respawn_exits_0_after_max_jobs_and_drains_the_rest(shop: Project, witness: Witness) -> None:
    shop.qd("dispatch", "slow", "seconds=0.3", "--count", "10")
    work = shop.work("-w", "2", "--max-jobs", "1", "--no-respawn")
    work.ends_clean(code=0)
    assert len(witness.starting("start")) == len(witness.starting("end")) in (1, 2)
    shop.qd("clear", "default", "--yes")


@pytest.mark.leaves("queues:default:deaths")
def test_no_respawn_exits_1_after_a_crash_and_drains_the_rest(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=JOBS + "\n@app.job('die')\ndef die() -> None:\n    os.kill(os.getpid(), 9)\n")
    witness = Witness(shop)
    work = shop.work("-w", "2", "--no-respawn")
    work.wait_line("master.ready")
    push(redis, "slow", seconds=1)
    witness.wait("start")
    push(redis, "die")
    work.ends_clean(code=1)
    assert work.matches('master.stopping reason="no respawn: a worker left with signal 9 .*')
    assert work.matches("master.stopped .*exit=1")
    assert len(witness.starting("end")) == 1  # the job of the other worker was finished
    (payload,) = redis.text("LRANGE", "queues:default", "0", "-1")  # and the crashed one is tried again
    assert '"job":"die"' in payload
    assert shop.qd("clear", "default", "--yes").returncode == 0


def test_the_deadline_hands_back_what_still_runs(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=JOBS)
    witness = Witness(shop)
    work = shop.work("-w", "1", "--stop-timeout", "1s")
    work.wait_line("master.ready")
    shop.qd("dispatch", "slow", "seconds=60")
    witness.wait("start")
    work.stop(seconds=20)
    assert work.matches("master.stopped .*handed_back=1 exit=0")
    (payload,) = redis.text("LRANGE", "queues:default", "0", "-1")
    assert '"attempts":0' in payload
    assert not witness.starting("end")
    again = shop.work("-w", "1", "--timeout", "1")
    again.wait_line("job.failed .*attempt=1 .*JobTimeout")
    again.stop()
    redis.call("DEL", "queues:default:failed", "queues:default:failed_at")


def test_stop_timeout_0_waits_for_ever(shop: Project, witness: Witness) -> None:
    work = shop.work("-w", "1", "--stop-timeout", "0")
    work.wait_line("master.ready")
    shop.qd("dispatch", "slow", "seconds=2.5")
    witness.wait("start")
    work.stop()
    assert witness.starting("end")


def test_min_uptime_keeps_a_clean_exit_of_its_own_from_coming_too_soon(shop: Project) -> None:
    began = time.monotonic()
    shop.work("-w", "1", "--stop-when-empty", "--min-uptime", "2s").ends_clean(code=0)
    assert time.monotonic() - began >= 2.0


@pytest.mark.parametrize("variable", ["SUPERVISOR_ENABLED", "NOTIFY_SOCKET"])
def test_min_uptime_is_one_and_a_half_seconds_under_a_supervisor(shop: Project, variable: str) -> None:
    began = time.monotonic()
    shop.work("-w", "1", "--stop-when-empty", **{variable: "1"}).ends_clean(code=0)
    assert time.monotonic() - began >= 1.5


def test_a_signal_does_not_wait_for_min_uptime(shop: Project) -> None:
    work = shop.work("-w", "1", "--min-uptime", "60s")
    work.wait_line("master.ready")
    work.stop(seconds=20)


@BAD_CODE
def test_an_app_that_does_not_import_is_exit_3_with_its_traceback_and_no_fork_loop(project: MakeProject) -> None:
    shop = project(jobs="import nothing_of_that_name\n")
    for arguments in ((), ("--no-preload",)):
        work = shop.work("-w", "2", *arguments)
        work.ends_clean(code=3)
        assert len(work.matches("Traceback")) == 1
        assert work.matches("ModuleNotFoundError.*nothing_of_that_name")


@BAD_CODE
def test_five_boot_deaths_before_any_worker_is_ready_is_exit_3(project: MakeProject) -> None:
    shop = project(
        jobs="import qd.worker.boot as boot\nboot.own_stdin = lambda: os._exit(9)  # every worker dies there\n"
    )
    work = shop.work("-w", "1")
    work.ends_clean(code=3, seconds=20)
    assert len(work.matches("worker.boot_failed")) == 5
    assert work.matches("no worker could boot")


def test_usage_is_exit_2_and_configuration_78(shop: Project) -> None:
    wrong = shop.qd("work", "--wokers", "2")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "--workers" in wrong.stderr
    unknown = shop.qd("work", "-c", "reddis")
    assert unknown.returncode == 78
    assert "did you mean 'redis'" in unknown.stderr
    assert len(unknown.stderr.strip().splitlines()) == 1


def test_redis_away_at_the_start_is_no_reason_to_leave(project: MakeProject) -> None:
    with Server() as own:
        shop = project(jobs=JOBS, url=own.url)
        witness = Witness(shop)
        own.kill()
        work = shop.work("-w", "2")
        work.wait_line("master.ready")
        work.wait_line("redis.away")
        own.start()
        work.wait_line("redis.back")
        shop.qd("dispatch", "quick")
        witness.wait("quick")
        assert len(work.matches("redis.away")) == len(work.matches("redis.back")) == 1
        work.stop()


@FAILED
def test_redis_killed_under_load_loses_nothing_and_says_so_once(project: MakeProject) -> None:
    with Server(*KEEPS) as own:
        shop = project(jobs=JOBS, url=own.url)
        witness = Witness(shop)
        work = shop.work("-w", "2", "--log-level", "warning")
        eventually(lambda: len(work.children("waiting")) == 2)
        shop.qd("dispatch", "slow", "seconds=2.5", "--count", "2")
        witness.wait("start", 2)
        own.kill()
        work.wait_line("redis.away")
        witness.wait("end", 2)
        own.start()
        shop.qd("dispatch", "quick")
        witness.wait("quick", seconds=20)
        work.stop()
        assert len(work.matches("redis.away")) == 1
        ended = [line.split()[1] for line in witness.starting("end")]
        assert len(ended) == 2, "a job was doubled or lost by an outage"
        assert not re.search("lease_lost", "\n".join(work.lines))


def test_pipes_without_a_reader_do_not_block_the_master(project: MakeProject, redis: Client) -> None:
    import os
    import subprocess

    from tests.support.processes import QD

    shop = project(jobs=JOBS)
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(write, True)
    command = [*QD, "work", "-w", "1"]
    process = subprocess.Popen(
        command, cwd=shop.root, env=shop.env(), stdin=subprocess.DEVNULL, stdout=write, stderr=write
    )
    os.close(write)
    try:
        eventually(lambda: "qd:default:worker:0" in str(redis.call("CLIENT", "LIST")), 20)
        for _ in range(50):  # each is a line that finds no room
            process.send_signal(signal.SIGTTIN)
            process.send_signal(signal.SIGTTOU)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        os.close(read)


@pytest.mark.fault("34b", "stdin, stdout and stderr closed", "it works and exits 0")
def test_closed_standard_streams_are_no_reason_to_fail(shop: Project, witness: Witness) -> None:
    import subprocess

    from tests.support.processes import QD

    shop.qd("dispatch", "quick")
    command = ["sh", "-c", f"exec {' '.join(QD)} work -w 1 --stop-when-empty 0<&- 1>&- 2>&-"]
    assert subprocess.run(command, cwd=shop.root, env=shop.env(), timeout=20, check=False).returncode == 0
    assert len(witness.starting("quick")) == 1
