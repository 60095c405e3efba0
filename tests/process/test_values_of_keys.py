"""Keys of arguments are made of values: by producers with other hash seeds, and of jobs that PHP has written."""

from __future__ import annotations

import pytest

from tests.support.project import MakeProject, Project, ready
from tests.support.pushing import push_laravel
from tests.support.resp import Client
from tests.support.witness import JOBS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")

KEYED = (
    JOBS
    + """
from qd.middleware import WithoutOverlapping

@app.job("tagged", unique="{tags}")
def tagged(tags: set[str]) -> None: ...

@app.job("measured", unique="{m}", middleware=[WithoutOverlapping("{m}", release_after=0.02)])
def measured(m: float) -> None:
    note("measured", current_job().id)
    held()
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
    work.wait_line("another job of measured:1.0 runs")
    witness.go()
    work.wait_line("job.done", 30, count=2)
    work.stop()
    assert len(witness.starting("measured")) == 2
