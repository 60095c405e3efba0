"""Options of `qd work` through the real command: which queues, the first line, the pace.

Why a program stops (--once, --max-jobs, --memory ...) is tested in test_stops.py, new code (--reload ...) in test_reload.py,
--tries and its kin in worker/test_attempts.py, --workers 0 in worker/test_inline.py, the log in test_log.py.
"""

from __future__ import annotations

import re
import signal
import time

import pytest

from qd.process.proc import cpus_granted
from tests.support.payloads import push_laravel
from tests.support.project import MakeProject, Project
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.waiting import eventually
from tests.support.witness import JOBS, LASTS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")


# -- which queues


@pytest.mark.parametrize(
    "words", [("high", "default", "low"), ("redis", "--queue=high,default,low"), ("--pool", "all")]
)
def test_the_first_queue_comes_first(shop: Project, witness: Witness, redis: Client, words: tuple[str, ...]) -> None:
    shop.config('[pools.all]\nqueues = ["high", "default", "low"]')
    for number in range(3):
        for queue in ("low", "default", "high"):
            push_laravel(redis, "quick", {"n": f"{number}{queue}"}, queue)
    shop.jobs(JOBS.replace("n: int", "n: str"))
    shop.work_off(*words)
    ran = [line.split()[1] for line in witness.starting("quick")]
    assert ran == [f"{number}{queue}" for queue in ("high", "default", "low") for number in range(3)]


def test_what_comes_to_a_higher_queue_overtakes(shop: Project, witness: Witness, redis: Client) -> None:
    shop.jobs(JOBS + LASTS)
    work = shop.work("high", "low", "-w", "1")
    for number in range(2):
        push_laravel(redis, "lasts", {"n": number}, "low")
    witness.wait("start 0")
    push_laravel(redis, "quick", queue="high")
    witness.go()
    witness.wait("end 1")
    assert [line.split()[0] for line in witness.lines] == ["start", "end", "quick", "start", "end"]
    work.stop()


def test_a_word_that_names_a_connection_is_refused_with_the_line_to_type(shop: Project) -> None:
    done = shop.qd("work", "redis")
    assert (done.returncode, done.stdout) == (2, "")
    assert "`qd work -c redis`" in done.stderr
    assert "`qd work --queue=redis`" in done.stderr


def test_a_pool_has_its_own_queues_workers_and_name(shop: Project, witness: Witness, redis: Client) -> None:
    shop.config('[worker]\nworkers = 1\ntries = 1\n[pools.mail]\nqueues = ["mail"]\nworkers = 2\ntries = 2')
    work = shop.work("--pool", "mail")
    work.wait_line("master.started .*pool=mail .*queues=mail workers=2 jobs=3")
    eventually(lambda: len(work.children("[mail] waiting on mail")) == 2)
    assert work.children("qd: keeper [mail]")
    assert work.children("qd: template [mail]")
    assert "qd:mail:worker:1" in redis.text("CLIENT", "LIST")
    work.stop()
    wrong = shop.qd("work", "--pool", "mial")
    assert wrong.returncode == 78
    assert "did you mean 'mail'" in wrong.stderr


def test_there_is_a_worker_for_each_cpu(shop: Project) -> None:
    work = shop.work()
    work.wait_line(f"master.ready workers={cpus_granted()}$")
    work.stop()


# -- the first line


def test_the_first_line_says_what_works_here(shop: Project) -> None:
    work = shop.work("b", "a", "-w", "2")
    work.wait_line("master.ready")
    line = work.lines[0]
    assert re.search(rf"INFO  master\[{work.pid}\] master.started version=\S+ pool=default connection=redis ", line)
    assert line.endswith(f" url={shop.url} queues=b,a workers=2 jobs=3")
    work.stop()


def test_an_app_without_jobs_is_warned_of(project: MakeProject) -> None:
    work = project(jobs="").work("-w", "1")
    work.wait_line("WARN.* app.no_jobs app=jobs:app hint=")
    work.stop()


@pytest.mark.leaves("qd:ticks")
def test_an_app_with_nothing_but_a_schedule_is_not_warned_of(project: MakeProject) -> None:
    work = project(jobs="app.schedule.shell('true').yearly()").work("-w", "1")
    work.wait_line("INFO.* schedule.ready|master.ready")
    work.stop()
    assert not [line for line in work.lines if "WARN" in line and "no_jobs" in line]


def test_no_password_is_in_the_log(project: MakeProject) -> None:
    with Server() as own:
        client = own.client()
        client.call("CONFIG", "SET", "requirepass", "geheim")
        shop = project(jobs=JOBS, url=f"redis://:geheim@127.0.0.1:{own.port}/0")
        witness = Witness(shop)
        work = shop.work("-w", "1", "--log-level", "debug")
        shop.qd("dispatch", "quick")
        witness.wait("quick")
        work.signal(signal.SIGUSR1)
        work.stop()
        assert work.matches(r"url=redis://:\*\*\*@127")
        assert not work.matches("geheim")
        client.close()


# -- pace


def test_sleep_is_the_longest_wait_between_two_looks(shop: Project, redis: Client) -> None:
    def looks() -> int:
        found = re.search(r"cmdstat_evalsha:calls=(\d+)", redis.text("INFO", "commandstats"))
        return int(found[1]) if found else 0

    work = shop.work("-w", "1", "--sleep", "0.1")
    work.wait_line("master.ready")
    began, before = time.monotonic(), looks()
    eventually(lambda: looks() >= before + 30, 60)  # the keeper alone makes half of them
    assert time.monotonic() - began > 1
    work.stop()


@pytest.mark.parametrize("ready", [True, False], ids=["ready", "one by one"])
def test_rest_lies_between_two_jobs(shop: Project, witness: Witness, redis: Client, ready: bool) -> None:
    shop.jobs(JOBS + '\n@app.job("when")\ndef when() -> None:\n    note("when", time.monotonic())\n')
    work = shop.work("-w", "1", "--rest", "0.5")
    push_laravel(redis, "when")
    if not ready:
        witness.wait("when")
    push_laravel(redis, "when")
    first, second = (float(line.split()[1]) for line in witness.wait("when", 2))
    assert second - first >= 0.5
    work.stop(seconds=20)


def test_a_signal_that_does_not_stop_the_worker_does_not_end_its_rest(
    shop: Project, witness: Witness, redis: Client
) -> None:
    shop.jobs(
        JOBS
        + '\nimport signal\n\n@app.job("when")\ndef when() -> None:\n    note("when", time.monotonic())\n'
        + "    signal.raise_signal(signal.SIGCONT)  # its worker reads it during the rest\n"
    )
    work = shop.work("-w", "1", "--rest", "1")
    push_laravel(redis, "when")
    push_laravel(redis, "when")
    first, second = (float(line.split()[1]) for line in witness.wait("when", 2))
    assert second - first >= 1
    work.stop()


def test_a_worker_that_has_to_stop_does_not_rest_first(shop: Project, witness: Witness, redis: Client) -> None:
    work = shop.work("-w", "1", "--rest", "600")
    push_laravel(redis, "quick")
    witness.wait("quick")
    work.wait_line("job.done")
    work.stop()


def test_a_delayed_job_starts_on_time(shop: Project, witness: Witness, redis: Client) -> None:
    shop.jobs(JOBS + '\n@app.job("when")\ndef when(n: int) -> None:\n    note("when", n, time.time())\n')
    work = shop.work("-w", "1", "--sleep", "60")
    work.wait_line("master.ready")
    shop.qd("dispatch", "when", "n=0", "--delay", "0.3")
    witness.wait("when 0")  # not at the end of --sleep
    shop.qd("dispatch", "when", "n=1", "--delay", "600")
    (payload,) = redis.text("ZRANGE", "queues:default:delayed", 0, -1)
    due = int(redis.text("TIME")[0]) + 2
    redis.call("ZADD", "queues:default:delayed", "XX", due, payload)
    (line,) = witness.wait("when 1")
    assert 0 <= float(line.split()[2]) - due < 15, "started that long after its moment"
    work.stop()


PLAIN = {
    "5.5": '{"displayName":"quick","job":"quick","maxTries":null,"timeout":null,"data":{"n":5},"id":"a1","attempts":0}',
    "5.8": '{"displayName":"quick","job":"quick","maxTries":null,"delay":null,"timeout":null,"timeoutAt":null,'
    '"data":{"n":5},"id":"a1","attempts":0}',
    "7": '{"displayName":"quick","job":"quick","maxTries":null,"maxExceptions":null,"delay":null,"timeout":null,'
    '"timeoutAt":null,"data":{"n":5},"id":"a1","attempts":0}',
    "by hand": '{"job":"quick","data":{"n":5}}',
}


@pytest.mark.parametrize("laravel", PLAIN)
def test_a_job_without_uuid_and_token_starts_within_a_second_or_so(
    shop: Project, witness: Witness, redis: Client, laravel: str
) -> None:
    work = shop.work("-w", "1", "--sleep", "60")
    eventually(lambda: work.children("waiting on"), 20)
    redis.call("RPUSH", "queues:default", PLAIN[laravel])
    began = time.monotonic()
    assert witness.wait("quick")[0].split()[1] == "5"
    assert time.monotonic() - began < 20  # and not the 60 s of --sleep
    work.stop()


def test_laravels_daemon_flag_does_nothing(shop: Project, witness: Witness, redis: Client) -> None:
    push_laravel(redis, "quick")
    shop.work_off("--daemon")
    assert witness.starting("quick")
