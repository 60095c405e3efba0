"""Middleware that rests, skips and fails, and the lock of a unique job that is freed at its start: in real workers."""

from __future__ import annotations

import pytest

from tests.support.payloads import failed, push
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import Client
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")

RESTING = (
    JOBS
    + """
from qd.middleware import FailOnException, RateLimited, SkipIf, SkipIfBatchCancelled, ThrottlesExceptions

@app.job("flaky", tries=1, middleware=[ThrottlesExceptions(2, within=60, wait=3, only=OSError, key="geocoder")])
def flaky(n: int) -> None:
    note("flaky", n)
    if n < 2:
        raise OSError("the other side is broken")

@app.job("innocent", tries=1, middleware=[ThrottlesExceptions(1, within=60, wait=60, only=OSError)])
def innocent() -> None:
    note("innocent")
    raise ValueError("does not count")

@app.job("strict", tries=5, middleware=[FailOnException(ValueError)])
def strict(n: int) -> None:
    note("strict", n)
    if n == 1:
        raise ValueError("no use in trying again")
    if current_job().attempt == 1:
        raise OSError("try again")

@app.job("skipped", middleware=[SkipIf(lambda job: job.arguments["n"] == 1)])
def skipped(n: int) -> None:
    note("skipped", n)

@app.job("member", middleware=[SkipIfBatchCancelled()])
def member(n: int) -> None:
    note("member", n)
    if n == 0:
        app.current_batch().cancel()

@app.job("again", unique="again", unique_until="start")
def again(n: int) -> None:
    sent = again.dispatch(n + 1) if n < 3 else None
    note("again", n)

@app.job("waits", unique="waits", unique_until="start", middleware=[RateLimited("waits", 1, per=60)])
def waits(n: int) -> None:
    note("waits", n)

@app.job("sends")
def sends() -> None:
    waits.dispatch(9)
    note("sent")
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=RESTING)


@pytest.mark.leaves("queues:default:failed*", "qd:rest:*")
def test_after_too_many_errors_the_jobs_of_a_key_rest(shop: Project, redis: Client, witness: Witness):
    for n in range(4):
        push(redis, "flaky", n=n)
    work = ready(shop)
    work.wait_line("geocoder rests for 3 s after 2 errors")
    witness.wait("flaky", 4)
    work.wait_line("job.done", count=2)
    work.stop()
    assert witness.lines[:2] == ["flaky 0", "flaky 1"]
    assert sorted(witness.lines[2:]) == ["flaky 2", "flaky 3"]
    assert len(work.matches(r'job.released .*reason="geocoder rests after 2 errors"')) == 2
    assert len(failed(redis)) == 2  # the errors went their usual way


@pytest.mark.leaves("queues:default:failed*")
def test_errors_of_other_types_do_not_count(shop: Project, redis: Client, witness: Witness):
    push(redis, "innocent", count=3)
    shop.work_off()
    assert witness.lines == ["innocent"] * 3


@pytest.mark.leaves("queues:default:failed*")
def test_an_error_that_fails_the_job_at_once_is_recorded_unchanged(shop: Project, redis: Client, witness: Witness):
    push(redis, "strict", n=1)
    push(redis, "strict", n=2)
    shop.work_off()
    assert sorted(witness.lines) == ["strict 1", "strict 2", "strict 2"]
    ((record, _),) = failed(redis)
    assert (record["error"], record["reason"], record["attempts"]) == ("ValueError", "no use in trying again", 1)
    assert "in strict" in record["trace"]


def test_a_job_is_skipped_and_done(shop: Project, redis: Client, witness: Witness):
    push(redis, "skipped", n=1)
    push(redis, "skipped", n=2)
    work = shop.work_off()
    assert witness.lines == ["skipped 2"]
    assert len(work.matches("job.done")) == 2
    assert work.matches(r"skipped: .*job=skipped")


@pytest.mark.leaves("qd:batch:*")
def test_jobs_of_a_cancelled_batch_are_skipped(shop: Project, redis: Client, witness: Witness):
    shop.python("import jobs; jobs.app.batch(*[jobs.member.bind(n) for n in range(4)]).dispatch()")
    push(redis, "member", n=7)  # of no batch
    work = shop.work_off()
    assert witness.lines == ["member 0", "member 7"]
    assert len(work.matches("skipped: its batch .* was cancelled")) == 3


def test_the_lock_of_a_unique_job_is_free_once_it_has_started(shop: Project, redis: Client, witness: Witness):
    shop.python("import jobs; jobs.again.dispatch(1)")
    shop.work_off()
    assert witness.lines == ["again 1", "again 2", "again 3"]


@pytest.mark.leaves("qd:rate:*", "qd:unique:*", "queues:default:delayed")
def test_a_job_that_middleware_puts_back_has_not_started(shop: Project, redis: Client, witness: Witness):
    """Its lock keeps others away until it does."""
    shop.python("import jobs; jobs.waits.dispatch(1)")
    shop.work_off()
    shop.python("import jobs; jobs.waits.dispatch(2)")
    push(redis, "sends")
    work = ready(shop)
    witness.wait("sent")
    work.wait_line("job.released .*job=waits")
    work.wait_line("job.done .*job=sends")
    work.stop()
    assert witness.lines == ["waits 1", "sent"]
    assert redis.call("ZCARD", "queues:default:delayed") == 1
