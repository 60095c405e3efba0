"""The keeper's care for the failed store: old records are deleted, also in a queue in which nothing fails any more, and
records that were dropped to make room for newer ones are reported.

once a minute, for each queue: one script call that deletes at most STEP records; while there are more, at each beat
failed.dropped                 at most once a minute for each queue, and when the keeper leaves
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from qd.connectors.keeping import Keeping
from qd.errors import ServerRefused
from qd.keeper.parts import each_of
from qd.log import Log

EVERY = 60.0  # seconds between two looks, less if records are kept for less; and between two warnings for a queue
STEP = 500


class Aged:
    def __init__(self, queue: Keeping, queues: Sequence[str], keep: float, log: Log) -> None:
        """keep: seconds; 0: whatever is there stays."""
        self.queue, self.queues, self.keep, self.log = queue, queues, keep, log
        self._due = 0.0
        self._reported: dict[str, tuple[int, float]] = {}  # queue -> counter at its last report, and when that was

    def forget(self, *, leaving: bool = False) -> None:
        """leaving: look now, and report what is not reported yet. Raises ConnectionLost after all queues were tried. A
        refusal (a missing right, a key of another type) must not stop the keeper: it is logged."""
        at = time.monotonic()
        if self.keep and (leaving or at >= self._due):
            self._due = at + min(EVERY, self.keep)
            each_of(self.queues, lambda name: self._of(name, at, leaving))

    def _of(self, name: str, at: float, leaving: bool) -> None:
        try:
            found = self.queue.forget_aged(name, self.keep, STEP)
        except ServerRefused as error:
            self.log.warning("failed.forget_failed", queue=name, error=str(error))
            return
        if found.aged == STEP:
            self._due = at
        self._report(name, found.dropped, at, leaving)

    def _report(self, name: str, dropped: int, at: float, leaving: bool) -> None:
        """Log what was dropped since the last report. What is there at the first look, the previous keeper has reported."""
        before, reported_at = self._reported.setdefault(name, (dropped, at - EVERY))
        if dropped < before:  # the counter started again
            before = 0
        if dropped > before and (leaving or at - reported_at >= EVERY):
            self.log.warning("failed.dropped", queue=name, count=dropped - before, total=dropped)
            self._reported[name] = dropped, at
