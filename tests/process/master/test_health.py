"""qd health, the liveness file and a master's report: what each shows of a running qd work."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from qd.process import liveness, proc
from tests.support import warm
from tests.support.payloads import push
from tests.support.processes import waiting
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import Client
from tests.support.servers.redis import free_port
from tests.support.waiting import eventually
from tests.support.witness import JOBS, LASTS, Witness

# -- qd health


Make = Callable[..., Project]
DYING = """
import signal

@app.job("ok")
def ok() -> None: ...

@app.job("die")
def die() -> None:
    if not Path("calm").exists():
        os.kill(os.getpid(), signal.SIGKILL)

@app.job("wait")
def wait() -> None:
    while not Path("calm").exists():
        time.sleep(0.02)
"""


# `qd` that calls a program silent after four seconds, not ten. A master writes its sign of life every two.
IMPATIENT = """
from qd.cli import state
from qd.cli.main import main
from qd.process import liveness
from qd.store import masters

masters.SILENT = liveness.HANGS = state.STUCK = 4.0
main()
"""


def impatient(shop: Project, *words: str) -> subprocess.CompletedProcess[str]:
    return warm.run(
        [sys.executable, "-c", IMPATIENT, *words],
        cwd=shop.root,
        env=shop.env(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def health(shop: Project, *words: str) -> tuple[int, str]:
    found = impatient(shop, "health", *words)
    assert found.stderr == ""
    return found.returncode, found.stdout


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("ssl_cert_reqs=none", "certificate is not verified"),
        ("ssl_check_hostname=No", "any certificate of the CA is accepted"),
    ],
)
def test_work_warns_about_a_server_whose_certificate_is_not_checked(project: Make, option: str, hint: str) -> None:
    shop = project(jobs=DYING, url=f"rediss://127.0.0.1:{free_port()}/0?{option}")
    work = shop.work("-w", "1")
    work.wait_line(f"redis.unverified .*{hint}")
    work.stop()


def test_health_is_ok_while_jobs_run_and_reports_a_stopped_worker(project: Make, clean_redis: Client) -> None:
    shop = project(jobs=DYING)
    work = shop.work("-w", "1")
    work.wait_line("master.ready")  # it sends CONT to who has just come
    eventually(lambda: health(shop)[1].startswith("ok: 1 master with 1 worker,"), 20, what="a master that reports")
    push(clean_redis, "ok", count=3)
    eventually(lambda: "0 jobs ready" in health(shop)[1], 20, what="work that is done")
    (worker,) = waiting(work)
    worker.suspend()
    push(clean_redis, "ok")
    _, output = eventually(lambda: (found := health(shop))[0] == 1 and found, 60, every=0.5, what="a reason")
    assert "stopped answering" in output or "nothing taken for" in output
    with suppress(psutil.NoSuchProcess):  # a master that has missed it for longer ends it
        worker.resume()
    eventually(lambda: health(shop)[0] == 0, 20, every=0.2, what="well again")
    work.stop()


@pytest.mark.leaves("queues:default:deaths")
def test_workers_that_crash_in_a_row_are_a_reason(project: Make, clean_redis: Client) -> None:
    shop = project(jobs=DYING)
    shop.allowed.add("calm")
    work = shop.work("-w", "1", "--max-crashes", "1000")
    push(clean_redis, "die")
    reason = "workers crashed in the last minute; see `worker.died` and `job.killed` in its log"
    eventually(lambda: reason in health(shop)[1], 60, every=0.2, what="the reason")
    work.wait_line("worker.died", count=5)
    (shop.root / "calm").touch()
    eventually(lambda: clean_redis.call("EXISTS", "queues:default", "queues:default:reserved") == 0, 20)
    work.stop()


def test_a_killed_master_is_missed_until_its_successor_is_there(project: Make, clean_redis: Client) -> None:
    shop = project(jobs=DYING)
    work = shop.work("-w", "1")
    eventually(lambda: "1 master " in health(shop)[1], 20, what="a master that reports")
    work.kill()
    _, output = eventually(lambda: (found := health(shop))[0] == 1 and found, 60, every=0.2, what="a reason")
    assert "its keeper has not reported for" in output
    again = shop.work("-w", "1")
    eventually(lambda: health(shop)[0] == 0, 20, every=0.2, what="well again")
    again.stop()


def test_health_status_and_doctor_report_a_master_that_hangs_while_its_keeper_lives(
    project: Make, clean_redis: Client
) -> None:
    shop = project(jobs=DYING)
    shop.allowed.add("calm")
    work = shop.work("-w", "1")
    work.wait_line("master.ready")  # it sends CONT to who has just come
    push(clean_redis, "wait")
    eventually(lambda: clean_redis.call("ZCARD", "queues:default:reserved") == 1, 20, what="a running job")
    eventually(lambda: health(shop)[0] == 0, 20, what="a master that reports")
    stopped = (work.pid, work.child("qd: worker").pid)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    output = eventually(lambda: (found := health(shop))[0] == 1 and found[1], 60, every=0.5, what="a reason")
    assert re.search(rf"\(pid {work.pid}\): the master has not answered for [\d.]+s", output)
    assert f"kill -9 {work.pid} on " in output
    assert re.search(r" hangs for [\d.]+s ", impatient(shop, "status").stdout)
    assert re.search(rf"pid {work.pid} has not answered for [\d.]+s", impatient(shop, "doctor").stdout)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: health(shop)[0] == 0, 20, every=0.2, what="well again")
    (shop.root / "calm").touch()
    work.stop()


def test_a_program_paused_by_a_signal_is_not_stuck(project: Make, clean_redis: Client) -> None:
    shop = project(jobs=DYING)
    work = shop.work("-w", "1")
    eventually(lambda: "1 master " in health(shop)[1], 20, what="a master that reports")
    work.signal(signal.SIGUSR2)
    work.wait_line("paused")
    push(clean_redis, "ok")
    eventually(lambda: " paused " in shop.qd("status").stdout, 20, what="a report of the pause")
    assert health(shop)[0] == 0
    work.signal(signal.SIGCONT)
    eventually(lambda: clean_redis.call("LLEN", "queues:default") == 0, 20, what="work that is done")
    work.stop()


def test_live_is_yes_while_redis_is_away_and_no_when_the_master_hangs_or_is_gone(project: Make) -> None:
    shop = project(jobs=DYING, url=f"redis://127.0.0.1:{free_port()}/0")
    assert health(shop, "--live")[0] == 1
    work = shop.work("-w", "1")
    work.wait_line("redis.away")
    eventually(lambda: health(shop, "--live")[0] == 0, 20, every=0.2, what="a master that lives")
    (live,) = json.loads(shop.qd("health", "--live", "--json").stdout)["masters"]
    assert live["folder"] == str(shop.root)
    assert shop.qd("health").returncode == 69
    os.kill(work.pid, signal.SIGSTOP)
    output = eventually(
        lambda: (found := health(shop, "--live"))[0] == 1 and found[1], 60, every=0.5, what="a hanging one"
    )
    assert re.search(rf"default \(pid {work.pid}\): the master has not reported for [\d.]+s", output)
    os.kill(work.pid, signal.SIGCONT)
    eventually(lambda: health(shop, "--live")[0] == 0, 20, every=0.2, what="a master that lives")
    work.stop()
    assert health(shop, "--live")[0] == 1


# -- the liveness file


def signs(shop: Project) -> list[Path]:
    return sorted((shop.run / "qd").glob("*"))


@pytest.mark.usefixtures("clean_redis")
def test_the_file_has_the_pid_and_the_workers_and_is_deleted_at_a_clean_end(project: MakeProject) -> None:
    shop = project(jobs=JOBS, config="[pools.mail]\nworkers = 2\n")
    work = shop.work("-w", "2", "--pool", "mail")
    work.wait_line("master.ready")
    file = shop.run / "qd" / f"mail.{work.pid}.live"

    def ready() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(file.read_text())
        return found if found["ready"] else {}

    state = eventually(ready, what="a sign of a ready master")
    assert state.pop("keeper_silent_s") < 20
    start, where = proc.start_time(work.pid), str(shop.root)
    assert state == {"pid": work.pid, "start": start, "pool": "mail", "workers": 2, "ready": True, "folder": where}
    assert (shop.run / "qd").stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o777 == 0o600
    before = file.stat().st_mtime_ns
    eventually(lambda: file.stat().st_mtime_ns > before, what="the next sign")
    work.stop()
    assert signs(shop) == []


@pytest.mark.usefixtures("clean_redis")
@pytest.mark.leaves("qd:masters")
def test_a_master_that_hangs_grows_old_and_a_dead_ones_file_is_taken_away(project: MakeProject) -> None:
    shop = project(jobs=JOBS)
    environ = shop.env()
    work = shop.work("-w", "1")
    work.wait_line("master.ready")
    (file,) = eventually(lambda: [f for f in signs(shop) if f.suffix == ".live"], what="a sign")
    work.signal(signal.SIGSTOP)
    eventually(lambda: psutil.Process(work.pid).status() == psutil.STATUS_STOPPED, what="a stopped master")
    os.utime(file, (file.stat().st_atime, file.stat().st_mtime - 11))
    (found,) = liveness.read_all(environ)
    assert (found.pid, found.pool, found.hangs) == (work.pid, "", True)
    work.kill()
    eventually(lambda: not work.session(), what="no child of the dead master")
    half = file.with_suffix(".new")  # as of one that was killed while it wrote
    half.touch()
    os.utime(half, (0, 0))
    assert liveness.read_all(environ) == []
    assert signs(shop) == []


@pytest.mark.usefixtures("clean_redis")
def test_a_folder_of_another_user_is_refused_once_and_harms_nothing(project: MakeProject) -> None:
    shop = project(jobs=JOBS)
    (shop.run / "qd").mkdir()
    (shop.run / "qd").chmod(0o777)
    work = shop.work("-w", "1")
    work.wait_line("liveness.write_failed .*not a folder of this user alone")
    work.wait_line("master.ready")
    keeper = work.child("qd: keeper")
    for count in (1, 2):  # seconds, by the keeper that is missed
        keeper.kill()
        work.wait_line("keeper.died", count=count)
        keeper = eventually(
            lambda before=keeper.pid: [k for k in work.children("qd: keeper") if k.pid != before],  # type: ignore[misc]
            what="a keeper",
        )[0]
    assert len(work.matches("liveness.write_failed")) == 1
    assert signs(shop) == []
    work.stop()


@pytest.mark.usefixtures("clean_redis")
@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({"RUNTIME_DIRECTORY": "/run/qd:/run/other", "XDG_RUNTIME_DIR": "/"}, "/run/qd"),
        ({"XDG_RUNTIME_DIR": "/tmp"}, "/tmp/qd"),
        ({"XDG_RUNTIME_DIR": "/not/there"}, f"/tmp/qd-{os.getuid()}"),
    ],
)
def test_the_folder_is_the_first_that_there_is(environ: dict[str, str], place: str) -> None:
    assert str(liveness.folder(environ)) == place
    assert liveness.path(Path("/x"), "a/b c", 7) == Path("/x/a_b_c.7.live")


# -- a master's report


def report(redis: Client) -> dict[str, Any]:
    """Of the one master."""
    (text,) = eventually(lambda: [*redis.hash("qd:masters").values()], what="a report")
    found: dict[str, Any] = json.loads(text)
    return found


def comes(redis: Client, field: str, wanted: Callable[[Any], object], seconds: float = 20.0) -> Any:
    """Return the report's value of `field` once it satisfies `wanted`."""

    def found() -> list[Any] | None:
        value = report(redis)[field]
        return [value] if wanted(value) else None

    return eventually(found, seconds, what=field)[0]


def now(redis: Client) -> float:
    seconds, micros = redis.text("TIME")
    return float(seconds) + float(micros) / 1e6


@pytest.mark.usefixtures("clean_redis")
@pytest.mark.leaves("queues:*:deaths")
def test_the_report_has_crashes_lost_keepers_and_the_last_reservation(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=JOBS + LASTS)
    witness = Witness(shop)
    work = ready(shop)
    first = report(redis)
    assert (first["crashes"], first["keeper_restarts"], first["silent"], first["stuck"]) == ([], 0, [], {})
    assert (first["took_at"], first["root"]) == (None, os.geteuid() == 0 and not proc.in_container())
    began = now(redis)
    push(redis, "lasts")
    os.kill(int(witness.wait("start")[0].split()[2]), 9)
    one_since: Callable[[Any], bool] = lambda crashes: len(crashes) == 1 and began - 0.5 <= crashes[0] <= now(redis)  # noqa: E731
    comes(redis, "crashes", one_since)
    witness.go()
    witness.wait("end")
    took = comes(redis, "took_at", lambda at: at and began <= at <= now(redis) + 0.5)
    keeper = work.child("qd: keeper")
    keeper.kill()
    comes(redis, "keeper_restarts", lambda count: count == 1)
    comes(redis, "crashes", one_since)  # a new keeper knows them too
    comes(redis, "took_at", lambda at: at and abs(at - took) < 1.5)
    work.stop()


@pytest.mark.usefixtures("clean_redis")
@pytest.mark.leaves("queues:*:deaths", "queues:*:failed", "queues:*:failed_at")
def test_the_report_has_the_last_eight_of_nine_crashes(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=JOBS + "\n@app.job('die')\ndef die() -> None:\n    os._exit(1)\n")
    work = ready(shop)
    push(redis, "die", count=3)  # three crashes each, then it is failed
    work.wait_line("job.failed", count=3)
    work.wait_line(r"worker\.died", count=9)  # the keeper logs job.failed and may be faster
    assert len(work.matches(r"worker\.died")) == 9
    crashes = comes(redis, "crashes", lambda crashes: len(crashes) == 8)
    assert crashes == sorted(crashes)
    work.stop()


LAZY = (
    JOBS
    + """
from qd import events

@app.on(events.Looping)
def look(event: events.Looping) -> bool:
    return Path("awake").exists()
"""
)


@pytest.mark.usefixtures("clean_redis")
def test_the_report_has_the_time_since_which_a_queue_is_not_served(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=LAZY)
    witness = Witness(shop)
    shop.allowed.add("awake")
    work = ready(shop)
    began = now(redis)
    push(redis, "quick")
    since = comes(redis, "stuck", lambda stuck: stuck.get("default"))["default"]
    assert began - 0.5 <= since <= now(redis)
    later = report(redis)["seen_at"] + 1.5
    eventually(lambda: report(redis)["seen_at"] > later, what="later reports")
    assert report(redis)["stuck"] == {"default": since}
    redis.call("SET", "queues:default:paused", "{}")
    comes(redis, "stuck", lambda stuck: stuck == {})
    redis.call("DEL", "queues:default:paused")
    comes(redis, "stuck", lambda stuck: stuck.get("default", 0) > since)
    (shop.root / "awake").touch()
    witness.wait("quick")
    comes(redis, "stuck", lambda stuck: stuck == {})
    work.stop()
