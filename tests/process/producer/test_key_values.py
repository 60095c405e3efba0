"""Keys, and what middleware and listeners see of arguments, are values: by producers with other hash seeds, and of jobs that
PHP has written."""

from __future__ import annotations

import pytest

from tests.support.payloads import push_laravel
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import Client
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")

KEYED = (
    JOBS
    + """
from dataclasses import dataclass
from datetime import datetime
from qd.events import JobFailed, JobProcessing
from qd.middleware import WithoutOverlapping

@app.job("tagged", unique="{tags}")
def tagged(tags: set[str]) -> None: ...

@app.job("measured", unique="{m}", middleware=[WithoutOverlapping("{m}", release_after=0.02)])
def measured(m: float) -> None:
    note("measured", current_job().id)
    held()

@dataclass
class Line:
    sku: str

    def __post_init__(self):
        note("made", self.sku)

def looks(job, call_next):
    note("middleware", job.arguments)
    return call_next()

@app.on(JobProcessing)
@app.on(JobFailed)
def heard(event):
    if event.job.name == "looked":
        note(type(event).__name__, event.job.arguments)

@app.job("looked", tries=1, middleware=[looks])
def looked(line: Line, when: datetime, note: str = "none") -> None:
    if note == "fails":
        raise ValueError
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=KEYED)


def test_a_unique_job_of_a_set_is_sent_once_whatever_the_order_of_the_set(shop: Project, redis: Client) -> None:
    send = "from jobs import tagged; tagged.dispatch(set('abcdefgh')); print(','.join(set('abcdefgh')))"
    orders = {shop.python(send, PYTHONHASHSEED=seed).stdout for seed in ("1", "2", "3")}
    assert len(orders) > 1
    assert redis.call("LLEN", "queues:default") == 1
    shop.work_off()


def test_jobs_of_one_number_do_not_overlap_however_it_is_written(
    shop: Project, redis: Client, witness: Witness
) -> None:
    shop.python("from jobs import measured; measured.dispatch(1.0); measured.dispatch(1)")
    assert redis.call("LLEN", "queues:default") == 1
    push_laravel(redis, "measured", {"m": 1})
    work = ready(shop, workers=2)
    work.wait_line("another job of measured:1.0 is running")
    witness.go()
    work.wait_line("job.done", 30, count=2)
    work.stop()
    assert len(witness.starting("measured")) == 2


@pytest.mark.leaves("queues:default:failed*")
def test_middleware_and_listeners_see_the_values_that_the_function_gets(
    shop: Project, redis: Client, witness: Witness
) -> None:
    given: dict[str, object] = {"line": {"sku": "a"}, "when": "2026-11-22T12:00:00Z"}
    push_laravel(redis, "looked", given)
    push_laravel(redis, "looked", {**given, "note": "fails"})
    shop.work_off()
    when = "datetime.datetime(2026, 11, 22, 12, 0, tzinfo=datetime.timezone.utc)"
    said = [f"{{'line': Line(sku='a'), 'when': {when}, 'note': '{note}'}}" for note in ("none", "fails")]
    expected = [
        line for arguments in said for line in ("made a", f"JobProcessing {arguments}", f"middleware {arguments}")
    ]
    assert witness.lines == [*expected, f"JobFailed {said[1]}"]
