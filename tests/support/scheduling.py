"""A scheduler of a test's own, in its process: the test makes its turns, and its log lines are kept. And how the store
stands: what was sent, where the app's one entry is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from qd import Qd
from qd.config.load import load
from qd.log import Log
from qd.payload.format import Payload, read
from qd.schedule.entry import Entry
from qd.scheduler.scheduler import Scheduler
from tests.support.clock import eventually
from tests.support.resp import Client
from tests.support.server import Server

HOUR = 3600.0


class Host:
    """app: with its schedule, on `server`. More arguments are the Scheduler's."""

    def __init__(self, app: Qd, server: Server, name: str = "web1", **more: Any) -> None:
        self.app, self.lines = app, list[str]()
        if not app._services.has_settings:
            app.settings = load(code={"url": server.url}, environ={})
        log = Log("scheduler", write=lambda line: self.lines.append(line.decode().partition("] ")[2].strip()))
        entries = more.pop("entries", None) or app.schedule.entries()
        self.scheduler = Scheduler(app, app.settings, log, entries=entries, host=name, **more)

    def turns(self, until: Callable[[], object], seconds: float = 60.0) -> None:
        """Turns of the loop, as its owner makes them, until it is so."""
        due = 0.0

        def turned() -> object:
            nonlocal due
            if time.monotonic() >= due:
                wait = self.scheduler.turn()
                due = time.monotonic() + (0.0 if self.scheduler.runs.alive or self.scheduler._filters else wait)
            return until()

        eventually(turned, seconds, every=0.002)

    def said(self, word: str) -> list[str]:
        """Its lines of that event."""
        return [line for line in self.lines if line.partition(" ")[0] == word]

    def close(self) -> None:
        self.scheduler.end()
        self.scheduler.close()
        self.app.connections.close()


Open = Callable[..., Host]


def waiting(redis: Client, queue: str = "default") -> list[Payload]:
    return [read(raw) for raw in redis.call("LRANGE", f"queues:{queue}", 0, -1)]


def last_tick(redis: Client, app: Qd, ago: float, mark: str = "") -> None:
    """The app's one entry had its last tick so many seconds ago."""
    (entry,) = app.schedule.entries()
    redis.call("HSET", "qd:ticks", entry.name, f"{round((time.time() - ago) * 1000)} x {mark or entry.timing.mark}")


def field(redis: Client, app: Qd) -> str:
    """Where the app's one entry stands; "" if nobody has seen it."""
    (entry,) = app.schedule.entries()
    return str(redis.text("HGET", "qd:ticks", entry.name) or "")


def moment_of(redis: Client, app: Qd) -> float:
    """The last tick of the app's one entry, unix seconds."""
    return int(field(redis, app).split()[0] or 0) / 1000


class HalfAnHourAgo:
    """Each hour; the last tick was half an hour ago."""

    text = mark = "hourly"
    zone = "UTC"

    def __init__(self) -> None:
        self.base = round(time.time() - HOUR / 2)

    def next_after(self, at: float) -> float:
        return self.base + ((at - self.base) // HOUR + 1) * HOUR


def hourly(app: Qd, timing: HalfAnHourAgo | None = None) -> list[Entry]:
    """The app's entries, so timed: a test that begins on the hour is no other. Two apps need the same `timing`: between two
    calls a second may end."""
    timing = timing or HalfAnHourAgo()
    return [replace(entry, timing=timing) for entry in app.schedule.entries()]
