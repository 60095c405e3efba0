"""Workers that do not stay: they die before they are ready, or at once after it, or cannot be forked at all. A delay that
grows, and when to give up."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from qd.master.children import Worker
from qd.process.exits import Exit

MOST = 5  # boot deaths with none ever ready
FIRST, LONGEST = 0.1, 30.0  # seconds until the next try
NO_PROCESS, NO_PROCESS_LONGEST = 1.0, 4.0  # the steps where the system gives no process: there may be one any moment
SETTLED = 5.0  # seconds after which a worker that has done nothing yet is no part of a crash loop


@dataclass(slots=True)
class Steps:
    """A delay that doubles with each failure."""

    first: float
    longest: float = LONGEST
    count: int = 0
    until: float = 0.0  # monotonic

    def step(self) -> float:
        """One more. Returns the seconds until the next try."""
        delay = min(self.longest, self.first * 2.0 ** min(self.count, 30))
        self.count += 1
        self.until = time.monotonic() + delay
        return delay

    def clear(self) -> None:
        self.count, self.until = 0, 0.0

    @property
    def waits(self) -> bool:
        return time.monotonic() < self.until


class Boots:
    """boot: deaths before ready; fall: deaths of ready workers without any job; fork: no process to be had."""

    def __init__(self) -> None:
        self.boot, self.fall, self.fork = Steps(FIRST), Steps(FIRST), Steps(NO_PROCESS, NO_PROCESS_LONGEST)
        self.ever_ready = False
        self._fell_at = 0.0

    @property
    def may_spawn(self) -> bool:
        return not (self.boot.waits or self.fall.waits or self.fork.waits)

    def ready(self) -> None:
        self.boot.clear()
        self.ever_ready = True

    def died(self) -> float:
        """At boot. Returns the seconds until the next try."""
        return self.boot.step()

    def fell(self, at: float) -> float:
        """A ready worker died before it had done anything. Returns the seconds until the next try."""
        self._fell_at = at
        return self.fall.step()

    def look(self, workers: Iterable[Worker], at: float) -> None:
        """A worker that came after the last fall and stays: the loop is over. (Older ones prove nothing.)"""
        if self.fall.count:
            for worker in workers:
                if worker.stays(at - SETTLED):
                    self.worked(worker)

    def worked(self, worker: Worker) -> None:
        if worker.ready_at > self._fell_at:
            self.fall.clear()

    def hopeless(self, exit_code: int) -> Exit | None:
        """What `qd work` is to exit with, when trying again makes no sense."""
        if self.ever_ready:
            return None
        if exit_code in (Exit.IMPORT, Exit.CONFIG):
            return Exit(exit_code)
        return Exit.IMPORT if self.boot.count >= MOST else None
