"""Middleware in the real worker: around every kind of job, free releases, and ended by the alarm like the job."""

from __future__ import annotations

import pytest

from tests.support.payloads import failed, push
from tests.support.project import GENTLE, MakeProject, Project, ready
from tests.support.redis import Client
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")

AROUND = (
    JOBS
    + """
from qd.errors import JobTimeout

@app.middleware
def of_the_app(job, call_next):
    note("app", job.name, job.connection, job.attempt, job.uuid != "", b'"job"' in job.payload, ",".join(job.tags))
    return call_next()

def doubled(job, call_next):
    result = call_next()
    note("result", result)
    return result

async def inside(job, call_next):
    note("inside")
    return await call_next()

@app.job("plain", middleware=[doubled], tags=["a", "b"], display_name="a plain one")
def plain() -> int:
    note("ran", "plain")
    return 1

@app.job("async", middleware=[doubled, inside])
async def asynchronous() -> int:
    note("ran", "async")
    return 2

def thrice(job, call_next):
    note("attempt", job.attempt)
    if len(open("witness").read().split("attempt")) < 5:
        job.release(0, reason="not yet", counts=False)
    return call_next()

@app.job("patient", middleware=[thrice], tries=1)
def patient() -> None:
    note("ran", "patient")

def slow_around(job, call_next):
    try:
        time.sleep(60)
    except JobTimeout:
        note("timed out in middleware")
        raise

@app.job("stuck", middleware=[slow_around], timeout=1)
def stuck() -> None:
    note("ran", "stuck")

def skip(job, call_next):
    note("skipped")

@app.job("skipped", middleware=[skip])
def skipped() -> None:
    note("ran", "skipped")
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=AROUND)


def test_middleware_wraps_plain_and_async_jobs(shop: Project, redis: Client, witness: Witness):
    shop.python("import jobs; jobs.plain.dispatch(); jobs.asynchronous.dispatch()")
    work = shop.work_off()
    assert witness.lines == [
        "app plain redis 1 True True a,b",
        "ran plain",
        "result 1",
        "app async redis 1 True True ",
        "inside",
        "ran async",
        "result 2",
    ]
    assert len(work.matches("job.done")) == 2
    assert work.matches('job.done .*job=plain display="a plain one" .*tags=a,b')
    assert not work.matches("job.done .*job=async .*(display|tags)=")


def test_a_release_by_middleware_costs_no_attempt_and_says_why(shop: Project, redis: Client, witness: Witness):
    push(redis, "patient")
    work = shop.work_off()
    assert witness.starting("attempt") == ["attempt 1"] * 4
    assert len(work.matches(r'job.released .*reason="not yet"')) == 3
    assert witness.starting("ran") == ["ran patient"]
    assert len(work.matches("job.done")) == 1


@pytest.mark.leaves("queues:default:failed*")
def test_the_timeout_of_the_job_ends_its_middleware(shop: Project, redis: Client, witness: Witness):
    shop.program = GENTLE
    work = ready(shop)
    push(redis, "stuck")
    work.wait_line("job.failed")
    work.stop()
    assert witness.starting("timed out") == ["timed out in middleware"]
    assert witness.starting("ran") == []
    assert failed(redis)[0][0]["error"] == "JobTimeout"


def test_a_job_that_its_middleware_does_not_call_is_done(shop: Project, redis: Client, witness: Witness):
    push(redis, "skipped")
    shop.work_off()
    assert [line for line in witness.lines if not line.startswith("app")] == ["skipped"]


def test_a_worker_with_a_wrong_middleware_does_not_start(project: MakeProject):
    shop = project(jobs='@app.job("x", middleware=[lambda job: None])\ndef x() -> None: ...\n')
    done = shop.qd("work", "-w", "1")
    assert done.returncode in (3, 78)
    assert "does not take (job, call_next)" in done.stderr
