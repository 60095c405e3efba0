"""SIGALRM that nobody gave a meaning: it ends no job, and takes no job's own timeout away."""

from __future__ import annotations

import pytest

from tests.support.payloads import push
from tests.support.project import GENTLE, MakeProject, ready
from tests.support.redis import FAILED, Client
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")

STRAY = (
    JOBS
    + """
import signal, threading

begun, rung = threading.Event(), threading.Event()

def ring():
    begun.wait(30)
    for _ in range(20):
        os.kill(os.getpid(), signal.SIGALRM)
        time.sleep(0.005)
    rung.set()

@app.job("leaves")
def leaves() -> None:
    threading.Thread(target=ring, daemon=True).start()
    note("leaves", os.getpid())

@app.job("victim", timeout=30, tries=1)
def victim() -> None:
    begun.set()
    note("victim", os.getpid(), rung.wait(20))

@app.job("endless", tries=1)
def endless() -> None:
    begun.set()
    note("victim", os.getpid(), rung.wait(20))

@app.job("timer", timeout=1, tries=1)
def timer() -> None:
    began = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        time.sleep(60)
    finally:
        note("timer", type(sys.exc_info()[1]).__name__, time.monotonic() - began)
"""
)


@pytest.mark.parametrize("name", ["victim", "endless"])
def test_an_alarm_of_a_thread_that_a_job_before_left_ends_nothing(
    project: MakeProject, redis: Client, name: str
) -> None:
    shop = project(jobs=STRAY)
    witness = Witness(shop)
    work = ready(shop, "--timeout", "0")
    push(redis, "leaves")
    push(redis, name)
    push(redis, "quick")
    witness.wait("quick")
    work.stop()
    ((_, left),) = (line.split() for line in witness.starting("leaves"))
    assert witness.starting("victim") == [f"victim {left} True"], "it ran in the worker of that thread, to its end"
    assert not work.matches("job.failed|worker.died")


@FAILED
def test_a_job_that_takes_the_timer_is_ended_at_its_timeout_and_not_before(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=STRAY)
    shop.program = GENTLE
    witness = Witness(shop)
    work = ready(shop)
    push(redis, "timer")
    (line,) = witness.wait("timer")
    work.wait_line("job.failed.*ran longer than its timeout")
    work.stop()
    _, kind, took = line.split()
    assert (kind, float(took) > 0.98) == ("JobTimeout", True), "its clock starts a little after the deadline's"
