"""Five schedulers whose clocks differ by up to 45 s, one of them killed every second: each tick of a job is taken exactly
once, each of a function at most once."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from qd.schedule.timing import Every
from tests.support.redis import Client
from tests.support.schedulers import Several, run
from tests.support.servers.redis import Server

SKEWS = (-45.0, -20.0, 0.0, 17.0, 45.0)
pytestmark = pytest.mark.leaves("queues:*", "qd:*", "ran:*")


def sent(redis: Client, queue: str) -> list[float]:
    """The ticks in the payloads of the queue, in the order of sending."""
    return [json.loads(raw)["tick"] for raw in redis.call("LRANGE", f"queues:{queue}", 0, -1)]


def ran(redis: Client, name: str) -> list[float]:
    return [float(tick) for tick in redis.text("LRANGE", f"ran:{name}", 0, -1)]


def all_from(first: float, last: float, step: float) -> list[float]:
    return [round(first + n * step, 3) for n in range(round((last - first) / step) + 1)]


def watch(
    server: Server, redis: Client, log: Path, ticks: int, *, seed: int, seconds: float = 0.25, count: int = 4
) -> int:
    """Run until `ticks` ticks of jobs were taken. Returns the number of killed schedulers."""
    several = Several(server.url, seconds, count, SKEWS, log)
    try:
        enough = lambda: sum(redis.call("LLEN", f"queues:q{n}") for n in range(count)) >= ticks  # noqa: E731
        run(several, 60 + 3 * ticks * seconds / count, enough, random.Random(seed))
    finally:
        several.close()
    for n in range(count):
        found = sent(redis, f"q{n}")
        assert found == all_from(found[0], found[-1], seconds), "each tick once, none left out, in order"
        once = ran(redis, f"f{n}")
        assert once, "functions ran too"
        assert len(set(once)) == len(once), "no tick of a function ran twice"
        due = all_from(min(once), max(once), seconds)
        assert set(once) <= set(due)
        assert len(due) - len(once) <= several.killed + 1, "only runs during a kill are lost"
    return several.killed


def test_five_schedulers_take_each_tick_exactly_once_while_one_is_killed_each_second(
    server: Server, clean_redis: Client, tmp_path: Path
) -> None:
    assert watch(server, clean_redis, tmp_path / "log", 100, seed=7) > 2


@pytest.mark.slow
def test_each_of_a_thousand_ticks_is_taken_exactly_once(server: Server, clean_redis: Client, tmp_path: Path) -> None:
    killed = watch(server, clean_redis, tmp_path / "log", 1000, seed=11, seconds=0.1)
    assert killed > 10


@pytest.mark.slow
def test_each_of_a_thousand_ticks_with_early_jobs_is_taken_exactly_once(
    server: Server, clean_redis: Client, tmp_path: Path
) -> None:
    base, seconds = round(time.time()), 0.1
    for n in range(4):
        clean_redis.call("HSET", "qd:ticks", f"j{n}", f"{base * 1000} x {Every(seconds).mark}")
    several = Several(server.url, seconds, 4, SKEWS, tmp_path / "log", "early")
    try:
        enough = lambda: sum(clean_redis.call("LLEN", f"queues:q{n}") for n in range(4)) >= 1000  # noqa: E731
        run(several, 100, enough, random.Random(13))
    finally:
        several.close()
    assert several.killed > 10
    for n in range(4):
        last = int(str(clean_redis.text("HGET", "qd:ticks", f"j{n}")).split()[0])
        ids = [json.loads(raw)["id"] for raw in clean_redis.call("LRANGE", f"queues:q{n}", 0, -1)]
        assert len(set(ids)) == len(ids) == round((last / 1000 - base) / seconds)
