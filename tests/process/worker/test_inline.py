"""`qd work --workers 0`: in the command's own process, for breakpoints."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.support import warm
from tests.support.payloads import push_laravel
from tests.support.processes import QD
from tests.support.project import Project
from tests.support.redis import Client
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")
RESERVED = "queues:default:reserved"
HELD = """
@app.job("held")
def held_job() -> None:
    note("start")
    held()
    note("end")

@app.job("asked")
def asked() -> None:
    note("start")
    while not current_job().stopping:
        time.sleep(0.01)
    note("asked to stop")
    time.sleep(60)
"""


def test_no_workers_runs_jobs_in_this_very_process_with_its_input(shop: Project, redis: Client) -> None:
    ask = '\n@app.job("ask")\ndef ask() -> None:\n    time.sleep(1.3)\n    print(os.getpid(), input(), flush=True)\n'
    shop.jobs(JOBS + ask)
    push_laravel(redis, "ask", timeout=1)
    command = [*QD, "work", "-w", "0", "--once"]
    process = warm.Popen(
        command, cwd=shop.root, env=shop.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    output, _ = process.communicate("typed\n", timeout=60)
    assert (output, process.returncode) == (f"{process.pid} typed\n", 0)


def test_no_workers_keeps_the_lease_and_leaves_at_an_empty_queue(
    shop: Project, witness: Witness, redis: Client
) -> None:
    shop.config('retry_after = "2s"')
    shop.jobs(JOBS + HELD)
    shop.allowed.add("go")
    push_laravel(redis, "held")
    work = shop.work("-w", "0", "--stop-when-empty")
    witness.wait("start")
    ends: Callable[[], float] = lambda: float(redis.text("ZRANGE", RESERVED, 0, -1, "WITHSCORES")[1])  # noqa: E731
    first = ends()
    eventually(lambda: ends() > first + 2, what="a renewed lease")
    (shop.root / "go").touch()
    work.ends_clean()
    assert witness.starting("end")
    assert work.matches("master.started .*workers=0 jobs=5")
    assert not work.matches("lease|ERROR")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_an_inline_worker_finishes_its_job_and_leaves_at_a_stop_signal(
    shop: Project, witness: Witness, redis: Client, number: signal.Signals
) -> None:
    work = shop.work("-w", "0", "--sleep", "60")
    eventually(lambda: "qd:inline:worker" in redis.text("CLIENT", "LIST"), 20)
    work.stop(number, seconds=20)
    push_laravel(redis, "slow", {"seconds": 2})
    work = shop.work("-w", "0")
    witness.wait("start")
    work.stop(number)
    assert witness.starting("end")


def test_no_workers_hands_the_job_back_at_the_second_signal(shop: Project, witness: Witness, redis: Client) -> None:
    shop.jobs(JOBS + HELD)
    push_laravel(redis, "asked")
    work = shop.work("-w", "0")
    witness.wait("start")
    work.signal(signal.SIGINT)
    witness.wait("asked to stop")  # it has come; now
    time.sleep(1.1)  # wait out the second in which two signals count as one
    work.stop(signal.SIGINT, seconds=20)
    assert '"attempts":0' in redis.text("LRANGE", "queues:default", 0, -1)[0]
    assert work.matches("job.released.*the worker stops")
    shop.qd("clear", "default", "--yes")


def test_no_workers_replaces_a_keeper_that_died(shop: Project, witness: Witness, redis: Client) -> None:
    work = shop.work("-w", "0")
    keeper = work.child("qd: keeper")
    eventually(lambda: time.time() - keeper.create_time() > 1.1)
    keeper.kill()
    work.wait_line("keeper.died.*signal 9")
    assert work.child("qd: keeper").pid != keeper.pid
    push_laravel(redis, "quick")
    witness.wait("quick")
    work.stop()


@pytest.mark.leaves("qd:restart")
def test_no_workers_obeys_restart_and_down(shop: Project, witness: Witness, redis: Client) -> None:
    work = shop.work("-w", "0", "--sleep", "60")
    eventually(lambda: "qd:inline:worker" in redis.text("CLIENT", "LIST"), 20)
    shop.qd("down")
    push_laravel(redis, "quick")
    shop.qd("up")
    witness.wait("quick")
    shop.qd("restart")
    work.ends_clean(seconds=20)
    assert work.matches("worker.stopping reason=.qd restart")
