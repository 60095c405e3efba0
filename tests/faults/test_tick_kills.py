"""A scheduler is killed (SIGKILL) at a line of its code while it takes ticks: the next one takes the remaining ticks."""

from __future__ import annotations

import os
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
from qd.scheduler import ticks as early
from qd.scheduler.scheduler import Scheduler
from tests.faults.test_schedulers import ran, sent
from tests.support.redis import Client
from tests.support.schedulers import app_of, early_app_of
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

pytestmark = pytest.mark.leaves("queues:*", "qd:*", "ran:*")
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


@pytest.fixture(autouse=True)
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


@pytest.mark.parametrize("kind", KINDS)
def test_each_tick_sends_its_job_once_if_its_scheduler_is_killed_at_any_line(
    server: Server, clean_redis: Client, kind: str
) -> None:
    assert sweep(server, clean_redis, 40 + int(time.time()) % 211, 211, KINDS[kind]) > 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_tick_sends_its_job_once_if_its_scheduler_is_killed_at_each_seventh_line(
    server: Server, clean_redis: Client, kind: str
) -> None:
    assert sweep(server, clean_redis, 1 + int(time.time()) % 7, 7, KINDS[kind]) > 100
