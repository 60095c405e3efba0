"""qd health beside a real qd work: what it says of it while it works, stands still, crashes and is gone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

import psutil
import pytest

from tests.support import warm
from tests.support.payloads import push
from tests.support.processes import waiting
from tests.support.project import Project
from tests.support.redis import Client
from tests.support.servers.redis import free_port
from tests.support.waiting import eventually

Make = Callable[..., Project]
JOBS = """
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


def told(shop: Project, *words: str) -> tuple[int, str]:
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
    shop = project(jobs=JOBS, url=f"rediss://127.0.0.1:{free_port()}/0?{option}")
    work = shop.work("-w", "1")
    work.wait_line(f"redis.unverified .*{hint}")
    work.stop()


def test_work_that_goes_on_is_well_and_a_stopped_worker_makes_it_stuck(project: Make, clean_redis: Client) -> None:
    shop = project(jobs=JOBS)
    work = shop.work("-w", "1")
    work.wait_line("master.ready")  # it sends CONT to who has just come
    eventually(lambda: told(shop)[1].startswith("ok: 1 master with 1 worker,"), 20, what="a master that reports")
    push(clean_redis, "ok", count=3)
    eventually(lambda: "0 jobs ready" in told(shop)[1], 20, what="work that is done")
    (worker,) = waiting(work)
    worker.suspend()
    push(clean_redis, "ok")
    _, said = eventually(lambda: (found := told(shop))[0] == 1 and found, 60, every=0.5, what="a reason")
    assert "stopped answering" in said or "nothing taken for" in said
    with suppress(psutil.NoSuchProcess):  # a master that has missed it for longer ends it
        worker.resume()
    eventually(lambda: told(shop)[0] == 0, 20, every=0.2, what="well again")
    work.stop()


@pytest.mark.leaves("queues:default:deaths")
def test_workers_that_crash_in_a_row_are_a_reason(project: Make, clean_redis: Client) -> None:
    shop = project(jobs=JOBS)
    shop.allowed.add("calm")
    work = shop.work("-w", "1", "--max-crashes", "1000")
    push(clean_redis, "die")
    told_how = "workers crashed in the last 30s; see `worker.died` in its log"
    eventually(lambda: told_how in told(shop)[1], 60, every=0.2, what="the reason")
    work.wait_line("worker.died", count=5)
    (shop.root / "calm").touch()
    eventually(lambda: clean_redis.call("EXISTS", "queues:default", "queues:default:reserved") == 0, 20)
    work.stop()


def test_a_killed_master_is_missed_until_its_successor_is_there(project: Make, clean_redis: Client) -> None:
    shop = project(jobs=JOBS)
    work = shop.work("-w", "1")
    eventually(lambda: "1 master " in told(shop)[1], 20, what="a master that reports")
    work.kill()
    _, said = eventually(lambda: (found := told(shop))[0] == 1 and found, 60, every=0.2, what="a reason")
    assert "its keeper has not reported for" in said
    again = shop.work("-w", "1")
    eventually(lambda: told(shop)[0] == 0, 20, every=0.2, what="well again")
    again.stop()


def test_a_master_that_hangs_beside_its_living_keeper_is_told_everywhere(project: Make, clean_redis: Client) -> None:
    shop = project(jobs=JOBS)
    shop.allowed.add("calm")
    work = shop.work("-w", "1")
    work.wait_line("master.ready")  # it sends CONT to who has just come
    push(clean_redis, "wait")
    eventually(lambda: clean_redis.call("HLEN", "queues:default:owners") == 1, 20, what="a running job")
    eventually(lambda: told(shop)[0] == 0, 20, what="a master that reports")
    stopped = (work.pid, work.child("qd: worker").pid)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    said = eventually(lambda: (found := told(shop))[0] == 1 and found[1], 60, every=0.5, what="a reason")
    assert re.search(rf"\(pid {work.pid}\): the master has not answered for [\d.]+s", said)
    assert f"kill -9 {work.pid} on " in said
    assert re.search(r" hangs for [\d.]+s ", impatient(shop, "status").stdout)
    assert re.search(rf"pid {work.pid} has not answered for [\d.]+s", impatient(shop, "doctor").stdout)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: told(shop)[0] == 0, 20, every=0.2, what="well again")
    (shop.root / "calm").touch()
    work.stop()


def test_a_program_paused_by_a_signal_is_not_stuck(project: Make, clean_redis: Client) -> None:
    shop = project(jobs=JOBS)
    work = shop.work("-w", "1")
    eventually(lambda: "1 master " in told(shop)[1], 20, what="a master that reports")
    work.signal(signal.SIGUSR2)
    work.wait_line("paused")
    push(clean_redis, "ok")
    eventually(lambda: " paused " in shop.qd("status").stdout, 20, what="a report of the pause")
    assert told(shop)[0] == 0
    work.signal(signal.SIGCONT)
    eventually(lambda: clean_redis.call("LLEN", "queues:default") == 0, 20, what="work that is done")
    work.stop()


def test_live_is_yes_while_redis_is_away_and_no_when_the_master_hangs_or_is_gone(project: Make) -> None:
    shop = project(jobs=JOBS, url=f"redis://127.0.0.1:{free_port()}/0")
    assert told(shop, "--live")[0] == 1
    work = shop.work("-w", "1")
    work.wait_line("redis.away")
    eventually(lambda: told(shop, "--live")[0] == 0, 20, every=0.2, what="a master that lives")
    assert shop.qd("health").returncode == 69
    os.kill(work.pid, signal.SIGSTOP)
    said = eventually(lambda: (found := told(shop, "--live"))[0] == 1 and found[1], 60, every=0.5, what="a hanging one")
    assert re.search(rf"default \(pid {work.pid}\): the master has not reported for [\d.]+s", said)
    os.kill(work.pid, signal.SIGCONT)
    eventually(lambda: told(shop, "--live")[0] == 0, 20, every=0.2, what="a master that lives")
    work.stop()
    assert told(shop, "--live")[0] == 1
