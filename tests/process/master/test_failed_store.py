"""[failed] enabled and keep: what the store of failed jobs keeps, and for how long."""

from __future__ import annotations

import time

import pytest

from tests.support.payloads import push, push_raw, store_failed_job
from tests.support.project import MakeProject, ready
from tests.support.redis import Client
from tests.support.waiting import eventually

# -- the store switched off and on


JOBS = """
@app.job("fails")
def fails() -> None:
    raise ValueError("no")
"""


@pytest.mark.usefixtures("clean_redis")
def test_a_failed_job_is_gone_where_nothing_is_kept(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=JOBS, config="[failed]\nenabled = false\n")
    push(redis, "fails")
    push_raw(redis, b"no payload", b'{"job":"fails","attempts":0,"data":[[[[1]]],"timeout":"soon"}')
    work = shop.work_off()
    assert len(work.matches(r"job\.failed .*job=fails .*kept=no")) == 1
    assert work.matches(r"job\.malformed .*kept=no")
    listed = shop.qd("failed", "list")
    assert (listed.returncode, listed.stdout) == (0, "")


@pytest.mark.leaves("queues:default:failed", "queues:default:failed_at")
@pytest.mark.usefixtures("clean_redis")
def test_a_real_failure_is_shown_and_runs_again(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=JOBS)
    push(redis, "fails")
    shop.work_off()
    shown = shop.qd("failed", "show", redis.text("HKEYS", "queues:default:failed")[0][:6])
    assert "ValueError: no" in shown.stdout
    assert "in fails" in shown.stdout
    shop.jobs(JOBS.replace('raise ValueError("no")', "pass"))
    assert shop.qd("failed", "retry", "--all").stdout == "1 job sent again\n"
    shop.work_off()
    assert redis.call("EXISTS", "queues:default:failed", "queues:default:failed_at") == 0


# -- how long it keeps failed jobs


STORE = ("queues:default:failed", "queues:default:failed_at")


@pytest.mark.usefixtures("clean_redis")
def test_failed_jobs_are_forgotten_in_a_queue_in_which_nothing_fails_any_more(
    project: MakeProject, redis: Client
) -> None:
    work = ready(project(jobs=JOBS, config='[failed]\nkeep = "2s"\n'))
    push(redis, "fails", count=8)
    eventually(lambda: len(work.matches("job.failed ")) == 8, what="all failed")
    eventually(lambda: redis.call("EXISTS", *STORE) == 0, 20, what="nothing left of them")
    work.stop()


@pytest.mark.usefixtures("clean_redis")
@pytest.mark.leaves(*STORE)
def test_younger_ones_stay_and_what_all_have_is_counted_right(project: MakeProject, redis: Client) -> None:
    for n in range(1201):  # more than two beats take away
        store_failed_job(redis, f"old.{n}", queue="default", at=time.time() - 7200 + n)
    for n in range(3):
        store_failed_job(redis, f"young.{n}", queue="default")
    work = ready(project(jobs=JOBS, config='[failed]\nkeep = "1h"\n'))
    eventually(lambda: redis.call("HLEN", STORE[0]) == 3, 20, what="the old ones gone")
    assert redis.text("ZRANGE", STORE[1], 0, -1) == ["bytes", "young.0", "young.1", "young.2"]
    assert -int(redis.call("ZSCORE", STORE[1], "bytes")) == sum(map(len, redis.call("HVALS", STORE[0])))
    work.stop()


@pytest.mark.usefixtures("clean_redis")
@pytest.mark.leaves(*STORE)
def test_failed_jobs_that_are_dropped_are_reported(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=JOBS, config="[failed]\nmax_count = 3\n")
    push(redis, "fails", count=8)
    work = shop.work_off()
    assert work.matches("WARNING .*failed.dropped queue=default count=5 total=5")
    assert redis.call("HLEN", STORE[0]) == 3
    push(redis, "fails", count=1)
    work = shop.work_off()
    assert work.matches("failed.dropped queue=default count=1 total=6")


@pytest.mark.usefixtures("clean_redis")
@pytest.mark.leaves(*STORE)
def test_what_is_kept_stays_where_the_store_is_switched_off(project: MakeProject, redis: Client) -> None:
    store_failed_job(redis, "old", queue="default", at=time.time() - 7200)
    shop = project(jobs=JOBS, config='[failed]\nenabled = false\nkeep = "1h"\n')
    push(redis, "fails")
    work = ready(shop)
    work.wait_line("job.failed ")
    work.stop()
    assert redis.text("HKEYS", STORE[0]) == ["old"]


@pytest.mark.usefixtures("clean_redis")
@pytest.mark.leaves(*STORE)
def test_a_store_that_cannot_be_read_is_logged_and_stops_no_keeper(project: MakeProject, redis: Client) -> None:
    redis.call("SET", STORE[1], "somebody else's")
    work = ready(project(jobs=JOBS, config='[failed]\nkeep = "1s"\n'))
    work.wait_line("failed.forget_failed .*queue=default .*is a string and not a")
    assert not work.matches("redis.away")
    redis.call("DEL", STORE[1])
    store_failed_job(redis, "old", queue="default", at=time.time() - 7200)
    eventually(lambda: redis.call("EXISTS", *STORE) == 0, 20, what="nothing left of it")
    work.stop()
