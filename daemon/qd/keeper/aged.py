"""Failed jobs that are older than [failed] keep are forgotten, also in a queue in which nothing fails any more.

once a minute, for each queue: one script call that takes away at most STEP records; while there are more, at each beat
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from qd.connectors.keeping import Keeping
from qd.errors import ServerRefused
from qd.keeper.parts import each_of
from qd.log import Log

EVERY = 60.0  # seconds between two looks; less where records are kept for less
STEP = 500


class Aged:
    def __init__(self, queue: Keeping, queues: Sequence[str], keep: float, log: Log) -> None:
        """keep: seconds; 0: whatever is there stays."""
        self.queue, self.queues, self.keep, self.log = queue, queues, keep, log
        self._due = 0.0

    def forget(self) -> None:
        """Raises ConnectionLost, when all others are done. That this user may not, or a key is none of ours, must not stop
        the keeper: it is said."""
        at = time.monotonic()
        if self.keep and at >= self._due:
            self._due = at + min(EVERY, self.keep)
            each_of(self.queues, lambda name: self._of(name, at))

    def _of(self, name: str, at: float) -> None:
        try:
            if self.queue.forget_aged(name, self.keep, STEP) == STEP:
                self._due = at
        except ServerRefused as error:
            self.log.warning("failed.not_forgotten", queue=name, error=str(error))
