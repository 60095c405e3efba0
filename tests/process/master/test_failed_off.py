"""[failed] enabled = false: what has failed is gone, and the log says so."""

from __future__ import annotations

import pytest

from tests.support.payloads import push, push_raw
from tests.support.project import MakeProject
from tests.support.redis import Client

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
    said = shop.qd("failed", "list")
    assert (said.returncode, said.stdout) == (0, "")


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
