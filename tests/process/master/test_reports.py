"""What a master's report says beside its workers: crashes, lost keepers, queues that nobody serves. `qd health` reads it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from qd.process import proc
from tests.support.payloads import push
from tests.support.project import MakeProject, ready
from tests.support.redis import Client
from tests.support.waiting import eventually
from tests.support.witness import JOBS, LASTS, Witness

pytestmark = pytest.mark.usefixtures("clean_redis")


def report(redis: Client) -> dict[str, Any]:
    """Of the one master."""
    (text,) = eventually(lambda: [*redis.hash("qd:masters").values()], what="a report")
    found: dict[str, Any] = json.loads(text)
    return found


def comes(redis: Client, field: str, wanted: Callable[[Any], object], seconds: float = 20.0) -> Any:
    """What the report says in `field`, once it is as wanted."""

    def found() -> list[Any] | None:
        said = report(redis)[field]
        return [said] if wanted(said) else None

    return eventually(found, seconds, what=field)[0]


def now(redis: Client) -> float:
    seconds, micros = redis.text("TIME")
    return float(seconds) + float(micros) / 1e6


@pytest.mark.leaves("queues:*:deaths")
def test_crashes_and_lost_keepers_and_the_last_reservation_are_told(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=JOBS + LASTS)
    witness = Witness(shop)
    work = ready(shop)
    first = report(redis)
    assert (first["crashes"], first["keeper_restarts"], first["silent"], first["stuck"]) == ([], 0, [], {})
    assert (first["took_at"], first["root"]) == (None, os.geteuid() == 0 and not proc.in_container())
    began = now(redis)
    push(redis, "lasts")
    os.kill(int(witness.wait("start")[0].split()[2]), 9)
    one_since: Callable[[Any], bool] = lambda crashes: len(crashes) == 1 and began - 0.5 <= crashes[0] <= now(redis)  # noqa: E731
    comes(redis, "crashes", one_since)
    witness.go()
    witness.wait("end")
    took = comes(redis, "took_at", lambda at: at and began <= at <= now(redis) + 0.5)
    keeper = work.child("qd: keeper")
    keeper.kill()
    comes(redis, "keeper_restarts", lambda count: count == 1)
    comes(redis, "crashes", one_since)  # a new keeper knows them too
    comes(redis, "took_at", lambda at: at and abs(at - took) < 1.5)
    work.stop()


@pytest.mark.leaves("queues:*:deaths", "queues:*:failed", "queues:*:failed_at")
def test_nine_crashes_are_told_as_the_last_eight(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=JOBS + "\n@app.job('die')\ndef die() -> None:\n    os._exit(1)\n")
    work = ready(shop)
    push(redis, "die", count=3)  # three crashes each, then it is failed
    work.wait_line("job.failed", count=3)
    work.wait_line(r"worker\.died", count=9)  # the keeper, which says the other, may be the faster one
    assert len(work.matches(r"worker\.died")) == 9
    crashes = comes(redis, "crashes", lambda crashes: len(crashes) == 8)
    assert crashes == sorted(crashes)
    work.stop()


LAZY = (
    JOBS
    + """
from qd import events

@app.on(events.Looping)
def look(event: events.Looping) -> bool:
    return Path("awake").exists()
"""
)


def test_a_queue_that_nobody_serves_is_told_since_when(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=LAZY)
    witness = Witness(shop)
    shop.allowed.add("awake")
    work = ready(shop)
    began = now(redis)
    push(redis, "quick")
    since = comes(redis, "stuck", lambda stuck: stuck.get("default"))["default"]
    assert began - 0.5 <= since <= now(redis)
    later = report(redis)["seen_at"] + 1.5
    eventually(lambda: report(redis)["seen_at"] > later, what="later reports")
    assert report(redis)["stuck"] == {"default": since}
    redis.call("SET", "queues:default:paused", "{}")
    comes(redis, "stuck", lambda stuck: stuck == {})
    redis.call("DEL", "queues:default:paused")
    comes(redis, "stuck", lambda stuck: stuck.get("default", 0) > since)
    (shop.root / "awake").touch()
    witness.wait("quick")
    comes(redis, "stuck", lambda stuck: stuck == {})
    work.stop()
