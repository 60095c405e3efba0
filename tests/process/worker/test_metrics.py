"""`qd metrics` agrees with what the jobs wrote down, whatever was killed meanwhile."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from qd.store.statistics import BOUNDS
from tests.support.payloads import push, push_raw
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import DEATHS, FAILED, Client
from tests.support.waiting import eventually
from tests.support.witness import JOBS, LASTS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")
TOO_LONG = """
import ctypes

@app.job("late", timeout=1, tries=2)
def late() -> None:
    note("late", current_job().attempt)
    if current_job().attempt == 1:
        time.sleep(30)

@app.job("stuck", timeout=1, tries=2)
def stuck() -> None:
    note("stuck", current_job().attempt)
    if current_job().attempt == 1:
        ctypes.PyDLL(None).usleep(30_000_000)
"""
LANES = pytest.mark.leaves("queues:*:owners")
WAYS = {"one": ("--prefetch", "1"), "prefetch": ("--prefetch", "16"), "concurrency": ("--concurrency", "4")}


def metrics(shop: Project, *words: str) -> dict[str, dict[str, Any]]:
    """Job -> its row."""
    found = json.loads(shop.quick("metrics", "--json", *words).stdout)
    assert found["schema"] == 1
    return {row["job"]: row for row in found["jobs"]}


def outcomes(row: dict[str, Any]) -> dict[str, int]:
    return {word: count for word, count in row["outcomes"].items() if count}


@DEATHS
@FAILED
@LANES
@pytest.mark.parametrize("way", WAYS)
def test_each_attempt_is_counted_once_although_workers_and_keeper_are_killed(
    project: MakeProject, redis: Client, way: str
) -> None:
    shop = project(jobs=JOBS + LASTS)
    witness = Witness(shop)
    work = ready(shop, *WAYS[way], workers=2)
    push(redis, "quick", count=50)
    push(redis, "boom", count=5)
    witness.wait("quick", 50)
    witness.wait("boom", 10)
    push(redis, "lasts")
    (line,) = witness.wait("start")
    os.kill(int(line.split()[-1]), signal.SIGKILL)
    witness.wait("start", 2)
    (keeper,) = work.children("qd: keeper")
    keeper.kill()
    witness.go()
    witness.wait("end")
    eventually(lambda: [json.loads(each)["keeper_restarts"] for each in redis.call("HVALS", "qd:masters")] == [1])
    work.stop()
    found = metrics(shop)
    starts = {
        job: len(witness.starting(word)) for job, word in (("quick", "quick"), ("boom", "boom"), ("lasts", "start"))
    }
    assert {job: row["started"] for job, row in found.items()} == starts
    assert {job: outcomes(row) for job, row in found.items()} == {
        "quick": {"done": starts["quick"]},
        "boom": {"released": 5, "failed": 5},
        "lasts": {"crashed": 1, "done": 1},
    }


@DEATHS
@LANES
@pytest.mark.parametrize("way", WAYS)
def test_an_attempt_that_exceeds_its_timeout_is_counted_as_such(project: MakeProject, redis: Client, way: str) -> None:
    """`late` is interrupted by its worker; `stuck` holds the interpreter's lock, and its worker is killed for it."""
    shop = project(jobs=JOBS + TOO_LONG)
    witness = Witness(shop)
    work = ready(shop, *WAYS[way])
    for job in ("late", "stuck"):
        push(redis, job)
        witness.wait(f"{job} 2")
        eventually(lambda: redis.call("ZCARD", "queues:default:reserved") == 0)
    work.stop()
    found = metrics(shop)
    assert {job: outcomes(row) for job, row in found.items()} == {
        job: {"timed_out": 1, "done": 1} for job in ("late", "stuck")
    }
    assert all(row["run"]["p99_s"] >= 1.0 for row in found.values())


def test_a_stop_counts_unfinished_jobs_as_handed_back(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=JOBS + LASTS)
    witness = Witness(shop)
    work = ready(shop, "--stop-timeout", "1")
    push(redis, "lasts")
    witness.wait("start")
    work.stop()
    assert outcomes(metrics(shop)["lasts"]) == {"handed_back": 1}
    redis.call("DEL", "queues:default", "queues:default:notify")


@FAILED
def test_a_job_that_cannot_run_is_counted_without_its_name(shop: Project, redis: Client) -> None:
    push_raw(redis, b'{"job": 3}')
    shop.work_off()
    found = metrics(shop)
    assert outcomes(found["(not run)"]) == {"failed": 1}


def test_the_text_has_counters_and_histograms(shop: Project, witness: Witness, redis: Client) -> None:
    push(redis, "quick", count=3)
    shop.work_off()
    lines = shop.quick("metrics").stdout.splitlines()
    labels = 'connection="redis",queue="default",job="quick"'
    assert f'qd_jobs_total{{{labels},outcome="done"}} 3' in lines
    assert f"qd_jobs_started_total{{{labels}}} 3" in lines
    for metric in ("qd_job_wait_seconds", "qd_job_run_seconds"):
        buckets = [int(line.split()[-1]) for line in lines if line.startswith(f"{metric}_bucket")]
        assert (len(buckets), buckets[-1]) == (len(BOUNDS) + 1, 3)
        assert buckets == sorted(buckets)
        assert f"{metric}_count{{{labels}}} 3" in lines
