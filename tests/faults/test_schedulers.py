"""Schedulers are killed while they take ticks. Five schedulers, whose clocks differ by up to 45 s, take each tick of a job
exactly once, and each of a function at most once."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

import qd
from qd.log import Log
from qd.payload.format import read
from qd.schedule.entry import Entry
from qd.schedule.timing import Every
from qd.scheduler import ticks as early
from qd.scheduler.scheduler import Scheduler
from tests.support.redis import Client
from tests.support.schedulers import Several, app_of, early_app_of, run
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

pytestmark = pytest.mark.leaves("queues:*", "qd:*", "ran:*")


SKEWS = (-45.0, -20.0, 0.0, 17.0, 45.0)


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


# --- killed at a line of its code


HOUR = 3600.0
OURS = tuple(str(Path(qd.__file__).parent / part) + os.sep for part in ("scheduler", "drivers"))
TICKS = 3


class Hourly:
    """The last tick was half an hour ago, so that no tick is due during a test."""

    text = mark = "hourly"
    zone = "UTC"

    def __init__(self, base: float) -> None:
        self.base = base

    def next_after(self, at: float) -> float:
        return self.base + ((at - self.base) // HOUR + 1) * HOUR


class Kind(NamedTuple):
    """app: creates an app and its entries. right: whether the server has exactly what these ticks send and run."""

    app: Callable[[str, float, int], tuple[qd.Qd, list[Entry]]]
    right: Callable[[Client, list[float]], bool]


def sent_and_run(redis: Client, ticks: list[float]) -> bool:
    """Each job was sent once; at most the run during the kill is missing."""
    once = ran(redis, "f0")
    return sent(redis, "q0") == ticks and sorted(set(once)) == once and len(ticks) - len(once) <= 1


def sent_early(redis: Client, ticks: list[float]) -> bool:
    """The jobs are distinct, and the first one, made early, has the time of its tick."""
    found = [read(raw) for raw in redis.call("LRANGE", "queues:q0", 0, -1)]
    return len({job.id for job in found}) == len(found) == len(ticks) and found[0].createdAt == ticks[0]


KINDS = {"made at the tick": Kind(app_of, sent_and_run), "made before it": Kind(early_app_of, sent_early)}


@pytest.fixture
def all_ticks_are_future(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the code that makes jobs early."""
    monkeypatch.setattr(early, "NEAR", -24 * 3_600_000)


def scheduler(server: Server, base: float, kind: Kind) -> Scheduler:
    app, entries = kind.app(server.url, 1, 1)
    timed = [replace(entry, timing=Hourly(base), missed="all") for entry in entries]
    return Scheduler(app, app.settings, Log("scheduler", write=lambda line: None), entries=timed, host="web1")


def takes_all(one: Scheduler, redis: Client, base: float) -> None:
    """Run turns until all ticks are taken and all runs have ended. Early jobs are made before each turn."""

    def over() -> bool:
        if one._control.poll():
            while any(each.step() for each in one._early):
                pass
        one.turn()
        last = redis.hash("qd:ticks").values()
        return all(int(text.split()[0]) == base * 1000 for text in last) and not one.runs.alive

    eventually(over, 20, every=0.001)


def killed_at(server: Server, base: float, line: int, kind: Kind) -> bool:
    """Fork a scheduler that is killed at this line of qd. Returns False if it finished before."""
    pid = os.fork()
    if pid == 0:
        try:
            sys.settrace(Killer(line))
            with server.client() as redis:
                takes_all(scheduler(server, base, kind), redis, base)
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


class Killer:
    def __init__(self, line: int) -> None:
        self.left, self.pid = line, os.getpid()

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(OURS) or os.getpid() != self.pid:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                os.kill(self.pid, signal.SIGKILL)
        return self


def sweep(server: Server, redis: Client, first: int, stride: int, kind: Kind) -> int:
    """Kill a scheduler at every `stride`-th line. Returns the number of kills."""
    entries = [entry.name for entry in kind.app(server.url, 1, 1)[1]]
    line, kills = first, 0
    while True:
        redis.call("FLUSHALL")
        base = float(round(time.time() - HOUR / 2))
        for entry in entries:
            redis.call("HSET", "qd:ticks", entry, f"{round((base - TICKS * HOUR) * 1000)} x hourly")
        more = killed_at(server, base, line, kind)
        next_one = scheduler(server, base, kind)
        takes_all(next_one, redis, base)
        next_one.close()
        ticks = [base - n * HOUR for n in reversed(range(TICKS))]
        assert kind.right(redis, ticks), f"killed at line {line}"
        if not more:
            return kills
        line, kills = line + stride, kills + 1


@pytest.mark.usefixtures("all_ticks_are_future")
@pytest.mark.parametrize("kind", KINDS)
def test_each_tick_sends_its_job_once_if_its_scheduler_is_killed_at_any_line(
    server: Server, clean_redis: Client, kind: str
) -> None:
    assert sweep(server, clean_redis, 40 + int(time.time()) % 211, 211, KINDS[kind]) > 5


@pytest.mark.usefixtures("all_ticks_are_future")
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_tick_sends_its_job_once_if_its_scheduler_is_killed_at_each_seventh_line(
    server: Server, clean_redis: Client, kind: str
) -> None:
    assert sweep(server, clean_redis, 1 + int(time.time()) % 7, 7, KINDS[kind]) > 100
