"""Workers that die before they are ready: a delay that grows, and when to give up."""

from __future__ import annotations

import time

from qd.process.exits import Exit

MOST = 5  # boot deaths with none ever ready
FIRST, LONGEST = 0.1, 30.0  # seconds until the next try


class Boots:
    def __init__(self) -> None:
        self.deaths = 0
        self.ever_ready = False
        self._retry_at = 0.0

    @property
    def may_spawn(self) -> bool:
        return time.monotonic() >= self._retry_at

    def ready(self) -> None:
        self.deaths, self._retry_at, self.ever_ready = 0, 0.0, True

    def wait(self, seconds: float) -> None:
        """No process can be had now."""
        self._retry_at = time.monotonic() + seconds

    def died(self) -> float:
        """Returns the seconds until the next try."""
        self.deaths += 1
        delay = min(LONGEST, FIRST * 2.0 ** (self.deaths - 1))
        self.wait(delay)
        return delay

    def hopeless(self, exit_code: int) -> Exit | None:
        """What `qd work` is to exit with, when trying again makes no sense."""
        if self.ever_ready:
            return None
        if exit_code in (Exit.IMPORT, Exit.CONFIG):
            return Exit(exit_code)
        return Exit.IMPORT if self.deaths >= MOST else None
