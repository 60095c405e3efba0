"""`qd metrics` agrees with what the jobs wrote down, whatever was killed meanwhile."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from tests.support.payloads import push
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import DEATHS, FAILED, Client
from tests.support.waiting import eventually
from tests.support.witness import JOBS, LASTS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")
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
    eventually(lambda: json.loads(shop.quick("status", "--json").stdout)["queues"][0]["reserved"] == 0)
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
