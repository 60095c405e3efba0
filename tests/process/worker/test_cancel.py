"""Running jobs are cancelled: whatever they do, they end, are dropped, and do not run again."""

from __future__ import annotations

import re

import pytest

from tests.support.payloads import push
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import Client
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")

CANCELLED = (
    JOBS
    + """
import asyncio
from qd import events

@app.job("sleeps", tries=5)
def sleeps(how: str) -> None:
    try:
        note("start", how, current_job().attempt)
        if how == "in C":
            sum(range(10**12))
        time.sleep(60)
    except BaseException as error:
        note("raised", type(error).__name__)
        if how == "swallows":
            time.sleep(60)
        raise

@app.job("asleep", tries=5)
async def asleep() -> None:
    note("start")
    try:
        await asyncio.sleep(60)
    except BaseException as error:
        note("raised", type(error).__name__)
        raise

@app.on(events.JobCancelled)
def heard(event: events.JobCancelled) -> None:
    note("heard", event.job.name, event.job.attempt)
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=CANCELLED)


def cancel(redis: Client) -> None:
    """As handle.cancel() does it for a running job."""
    (held,) = redis.call("ZRANGE", "queues:default:reserved", 0, -1)
    mark = re.findall(rb'"rsv":"(\w+\.\d+\.\d+)\.\d+"', held)[-1]
    redis.call("HSET", "qd:cancel", mark, redis.call("TIME")[0])


def test_a_sleeping_job_gets_an_exception_and_is_dropped(shop: Project, witness: Witness, redis: Client) -> None:
    work = ready(shop)
    push(redis, "sleeps", how="well")
    witness.wait("start")
    cancel(redis)
    assert witness.wait("raised") == ["raised JobCancelled"]
    work.wait_line("job.cancelled .*job=sleeps .*attempt=1")
    assert witness.wait("heard") == ["heard sleeps 1"]
    push(redis, "quick")
    witness.wait("quick")
    work.stop()
    assert len(witness.starting("start")) == 1
    assert not work.matches("job.failed|job.released|job.killed")


def test_an_async_job_is_cancelled_as_a_task(shop: Project, witness: Witness, redis: Client) -> None:
    work = ready(shop)
    push(redis, "asleep")
    witness.wait("start")
    cancel(redis)
    assert witness.wait("raised") == ["raised CancelledError"]
    work.wait_line("job.cancelled .*job=asleep")
    work.stop()
    assert len(witness.starting("start")) == 1


@pytest.mark.parametrize("how", ["in C", "swallows"])
def test_a_job_that_does_not_hear_is_killed_and_dropped(
    shop: Project, witness: Witness, redis: Client, how: str
) -> None:
    work = ready(shop)
    push(redis, "sleeps", how=how)
    witness.wait("start")
    cancel(redis)
    work.wait_line("job.killed .*reason=cancelled")
    work.wait_line("job.cancelled .*job=sleeps")
    assert witness.wait("heard") == ["heard sleeps 2"]
    push(redis, "quick")
    witness.wait("quick")
    work.stop()
    assert len(witness.starting("start")) == 1


@pytest.mark.leaves("queues:*:deaths")
def test_a_cancelled_job_whose_worker_is_killed_is_not_run_again(
    shop: Project, witness: Witness, redis: Client
) -> None:
    """The worker dies before the keeper's next beat, so the keeper does not know of the cancellation."""
    work = ready(shop)
    push(redis, "sleeps", how="in C")
    witness.wait("start")
    worker, keeper = work.child("qd: worker"), work.child("qd: keeper")
    keeper.suspend()
    cancel(redis)
    worker.kill()
    work.wait_line("worker.died")
    keeper.resume()
    work.wait_line("job.requeued .*job=sleeps")
    work.wait_line("job.cancelled .*job=sleeps")
    work.stop()
    assert len(witness.starting("start")) == 1
    assert not redis.call("EXISTS", "qd:cancel")


def test_a_cancelled_job_that_is_handed_back_is_not_run_again(shop: Project, witness: Witness, redis: Client) -> None:
    """The master stops at once, and another master reserves the job that it hands back."""
    work = ready(shop, "--stop-timeout", "0.1s")
    push(redis, "sleeps", how="in C")
    witness.wait("start")
    cancel(redis)
    work.stop()
    other = ready(shop)
    if not work.matches("job.cancelled"):
        other.wait_line("job.cancelled .*job=sleeps")
    other.stop()
    assert len(witness.starting("start")) == 1
