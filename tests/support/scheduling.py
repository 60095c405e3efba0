"""A scheduler of a test's own, in its process: the test makes its turns, and its log lines are kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from qd import Qd
from qd.config import load
from qd.log import Log
from qd.scheduler.loop import Scheduler
from tests.support.clock import eventually
from tests.support.server import Server


class Host:
    """app: with its schedule, on `server`. More arguments are the Scheduler's."""

    def __init__(self, app: Qd, server: Server, name: str = "web1", **more: Any) -> None:
        self.app, self.lines = app, list[str]()
        if app._settings is None:
            app.settings = load(code={"url": server.url}, environ={})
        log = Log("scheduler", write=lambda line: self.lines.append(line.decode().partition("] ")[2].strip()))
        entries = more.pop("entries", None) or app.schedule.entries()
        self.scheduler = Scheduler(app, app.settings, log, entries=entries, host=name, **more)

    def turns(self, until: Callable[[], object], seconds: float = 10.0) -> None:
        """Turns of the loop, as its owner makes them, until it is so."""
        due = 0.0

        def turned() -> object:
            nonlocal due
            if time.monotonic() >= due:
                wait = self.scheduler.turn()
                due = time.monotonic() + (0.0 if self.scheduler.runs.alive else wait)
            return until()

        eventually(turned, seconds, every=0.002)

    def said(self, word: str) -> list[str]:
        """Its lines of that event."""
        return [line for line in self.lines if line.partition(" ")[0] == word]

    def close(self) -> None:
        self.scheduler.end()
        self.scheduler.close()
        self.app.connections.close()
