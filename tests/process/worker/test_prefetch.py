"""A real worker with several jobs of one turn: what it does not run goes back, in order and as it was pushed."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.payloads import failed, push
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import Client
from tests.support.waiting import eventually
from tests.support.witness import JOBS, LASTS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")
QUEUE = "queues:default"
MANY = 200  # a turn takes one job, and one more for each 16 that are ready


STOPPED = """
@app.job("stopped")
def stopped(n: int) -> None:
    note("start", n)
    while not current_job().stopping:
        time.sleep(0.01)
"""


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=JOBS + LASTS + STOPPED)


def fill(redis: Client, first: str = "lasts") -> list[bytes]:
    """A long job in front, and short ones behind it. Returns the payloads of the short ones."""
    push(redis, first, n=0)
    for n in range(1, MANY):
        push(redis, "quick", n=n)
    short: list[bytes] = redis.call("LRANGE", QUEUE, 1, -1)
    return short


def begun(witness: Witness) -> list[int]:
    return [int(line.split()[1]) for line in witness.starting("quick")]


def test_jobs_behind_a_long_one_run_in_another_worker(shop: Project, witness: Witness, redis: Client) -> None:
    fill(redis)
    work = ready(shop, "--prefetch", "8", workers=2)
    witness.wait("quick", MANY - 1)
    assert sorted(begun(witness)) == list(range(1, MANY))
    assert len(witness.starting("start")) == 1
    witness.go()
    eventually(lambda: redis.call("ZCARD", f"{QUEUE}:reserved") == 0)
    work.stop()


def test_the_keeper_puts_back_what_waits_behind_a_long_job(shop: Project, witness: Witness, redis: Client) -> None:
    short = fill(redis)
    work = ready(shop, "--prefetch", "8")
    witness.wait("start")
    eventually(lambda: redis.call("LRANGE", QUEUE, 0, -1) == short, what="the short jobs at the head")
    assert redis.call("ZCARD", f"{QUEUE}:reserved") == 1
    witness.go()
    witness.wait("quick", MANY - 1)
    assert begun(witness) == list(range(1, MANY))
    work.stop()


def test_a_killed_worker_counts_a_crash_for_its_running_job_only(
    shop: Project, witness: Witness, redis: Client
) -> None:
    short = fill(redis)
    work = ready(shop, "--prefetch", "8")
    witness.wait("start")
    keeper = work.child("qd: keeper").pid
    os.kill(keeper, signal.SIGSTOP)  # it puts nothing back now
    work.child("qd: worker").kill()
    work.wait_line("worker.died")
    os.kill(keeper, signal.SIGCONT)
    witness.wait("start", 2)
    witness.go()
    witness.wait("quick", len(short))
    assert sorted(begun(witness)) == list(range(1, MANY))
    eventually(lambda: redis.call("ZCARD", f"{QUEUE}:reserved") == 0)
    assert failed(redis) == []
    work.stop()
    assert redis.call("DEL", f"{QUEUE}:deaths") == 1


def test_a_stop_puts_back_what_has_not_started(shop: Project, witness: Witness, redis: Client) -> None:
    short = fill(redis, "stopped")
    work = ready(shop, "--prefetch", "8")
    witness.wait("start")
    work.signal(signal.SIGTERM)
    work.ends_clean()
    assert redis.call("LRANGE", QUEUE, 0, -1) == short
    assert redis.call("EXISTS", f"{QUEUE}:owners", f"{QUEUE}:reserved") == 0
    redis.call("DEL", QUEUE, f"{QUEUE}:notify")


def test_a_paused_queue_gets_its_jobs_back(shop: Project, witness: Witness, redis: Client) -> None:
    short = fill(redis)
    work = ready(shop, "--prefetch", "8")
    witness.wait("start")
    shop.qd("pause", "default")
    witness.go()
    eventually(lambda: redis.call("LRANGE", QUEUE, 0, -1) == short)
    shop.qd("resume", "default")
    witness.wait("quick", MANY - 1)
    work.stop()
