"""A scheduler that is killed (SIGKILL) at a line of its own while it takes ticks: the next one takes what is left."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from msgspec.structs import replace

import qd
from qd.log import Log
from qd.scheduler.loop import Scheduler
from tests.faults.test_schedulers import ran, sent
from tests.support.clock import eventually
from tests.support.resp import Client
from tests.support.schedulers import app_of
from tests.support.server import Server

pytestmark = pytest.mark.leaves("queues:*", "qd:*", "ran:*")
HOUR = 3600.0
OURS = tuple(str(Path(qd.__file__).parent / part) + os.sep for part in ("scheduler", "connectors"))
TICKS = 3


class Hourly:
    """The last tick was half an hour ago: nothing is due while a test looks."""

    text = mark = "hourly"
    zone = "UTC"

    def __init__(self, base: float) -> None:
        self.base = base

    def next_after(self, at: float) -> float:
        return self.base + ((at - self.base) // HOUR + 1) * HOUR


def scheduler(server: Server, base: float) -> Scheduler:
    """Of an entry that sends a job and one that runs a function."""
    app, entries = app_of(server.url, 1, 1)
    timed = [replace(entry, timing=Hourly(base), missed="all") for entry in entries]
    return Scheduler(app, app.settings, Log("scheduler", write=lambda line: None), entries=timed, host="web1")


def takes_all(one: Scheduler, redis: Client, base: float) -> None:
    """Its turns, until all ticks are taken and what was run has ended."""

    def over() -> bool:
        one.turn()
        last = [redis.text("HGET", "qd:ticks", "j0"), redis.text("HGET", "qd:ticks", "f0")]
        return all(int(text.split()[0]) == base * 1000 for text in last) and not one.runs.alive

    eventually(over, 20, every=0.001)


def killed_at(server: Server, base: float, line: int) -> bool:
    """Fork a scheduler that is killed at this line of qd's. False: it came to its end before."""
    pid = os.fork()
    if pid == 0:
        try:
            sys.settrace(Killer(line))
            with server.client() as redis:
                takes_all(scheduler(server, base), redis, base)
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


def sweep(server: Server, redis: Client, first: int, stride: int) -> int:
    """Returns how many were killed."""
    line, kills = first, 0
    while True:
        redis.call("FLUSHALL")
        base = float(round(time.time() - HOUR / 2))
        for entry in ("j0", "f0"):
            redis.call("HSET", "qd:ticks", entry, f"{round((base - TICKS * HOUR) * 1000)} x hourly")
        more = killed_at(server, base, line)
        next_one = scheduler(server, base)
        takes_all(next_one, redis, base)
        next_one.close()
        ticks = [base - n * HOUR for n in reversed(range(TICKS))]
        assert sent(redis, "q0") == ticks, f"killed at line {line}"
        once = ran(redis, "f0")
        assert sorted(set(once)) == once, f"killed at line {line}"
        assert len(ticks) - len(once) <= 1, f"killed at line {line}: only the one in hand is lost"
        if not more:
            return kills
        line, kills = line + stride, kills + 1


def test_whatever_line_a_scheduler_dies_at_each_tick_of_a_job_is_sent_once(server: Server, clean_redis: Client) -> None:
    assert sweep(server, clean_redis, 40 + int(time.time()) % 211, 211) > 5


@pytest.mark.slow
def test_at_each_seventh_line(server: Server, clean_redis: Client) -> None:
    assert sweep(server, clean_redis, 1 + int(time.time()) % 7, 7) > 100
