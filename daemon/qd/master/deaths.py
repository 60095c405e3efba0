"""A worker that has ended: what is told of it, and what its slot says until the keeper has moved its jobs."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qd.process.exits import ending
from qd.process.scoreboard import Role, Slot, State, Verdict, W

if TYPE_CHECKING:
    from qd.master.children import Worker

YOUNG = 5.0  # seconds in which a worker that dies without having had a job may be part of a crash loop


@dataclass(frozen=True, slots=True)
class Unsettled:
    """What the master has written into the slot of a dead worker, until the keeper has moved its jobs."""

    words: tuple[tuple[W, int], ...]

    def stand(self, slot: Slot) -> bool:
        """Write it. False: it stands there, or the keeper has just said that the jobs are moved."""
        if all(slot[word] == value or (word, slot[word]) == (W.STATE, State.SETTLED) for word, value in self.words):
            return False
        for word, value in self.words:
            slot[word] = value
        return True


@dataclass(frozen=True, slots=True)
class Death:
    """What is told when a worker has ended."""

    worker: Worker
    status: int
    verdict: Verdict | None  # None: it left cleanly, there is nothing to move
    job: str
    queue: str
    took: float
    jobs: int  # it has done
    handed_back: int
    peak: int  # bytes
    stack: str
    oom: bool | None  # the kernel ended it for want of memory; None: nobody can tell

    @property
    def exit_code(self) -> int:
        return os.waitstatus_to_exitcode(self.status)

    @property
    def how(self) -> str:
        if self.worker.role is Role.SCHEDULER and self.worker.ready and self.verdict and os.WIFEXITED(self.status):
            return f"left with exit code {self.exit_code} (os._exit or sys.exit)"
        return ending(self.status, oom=self.oom, in_job=self.verdict is Verdict.CRASH and bool(self.job))

    @property
    def fell_idle(self) -> bool:
        """It died by itself, soon after it was ready, and had done nothing."""
        ended_itself = self.verdict is Verdict.CRASH and self.worker.verdict is None
        return ended_itself and not (self.job or self.jobs) and time.monotonic() - self.worker.ready_at < YOUNG

    @property
    def at_boot(self) -> bool:
        return not self.worker.ready

    @property
    def is_crash(self) -> bool:
        """Nobody asked for its end."""
        if self.verdict is None:
            return self.at_boot and not self.worker.draining
        return self.verdict in (Verdict.CRASH, Verdict.MEMORY)
