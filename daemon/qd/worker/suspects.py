"""When a worker with several jobs looks for suspects: jobs that may have killed such a worker. They run in a worker that
takes nothing else and leaves afterwards.

    a worker died     -> its jobs are suspects -> isqrt(concurrency) of them run together
    it died as well   -> these are suspects for the second time -> each runs alone
    it died           -> a crash is counted against the job

A new worker looks for them, one that has found no job, and each now and then; but not if enough others run some. A busy
worker leaves, so that a new one takes its place and runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from qd.drivers.base import Connector
from qd.drivers.keyspace import keys
from qd.options.tables import WorkOptions
from qd.process.scoreboard import ALIVE, H, Role, Scoreboard, Slot, W, now
from qd.worker.connection import AWAY

LOOK_NS = 10_000_000_000  # between two looks; a worker that runs some leaves after as long
LOOK_SOON_NS = 1_000_000_000  # the same if it has looked for a job in vain


class Suspects:
    """found_nothing: since the last job that it ran, this worker has looked for one in vain."""

    def __init__(self, board: Scoreboard, slot: Slot, work: WorkOptions) -> None:
        self.board, self.slot = board, slot
        self.soon = 0 if work.stop_when_empty or work.stop_when_empty_for else LOOK_SOON_NS
        self.found_nothing = self.ran = False
        self._looked_at = 0

    def note_turn(self, found: bool, *, in_vain: bool) -> None:
        """A turn has found a job, or none. in_vain: the wait before it ended without a token."""
        new = not self.soon or self.found_nothing or self.ran or not in_vain
        self.found_nothing = new and not found
        self.ran = self.ran and not self.found_nothing

    def due(self, *, busy: bool) -> bool:
        """Whether to look now. busy: this worker runs jobs."""
        every = self.soon if self.found_nothing and not busy else LOOK_NS
        if self._looked_at and now() - self._looked_at < every:
            return False
        workers = [slot for slot in self.board if slot[W.STATE] in ALIVE and slot[W.ROLE] == Role.WORKER]
        left_at = self.board.header(H.SUSPECTS_AT)  # after a turn of suspects, a single worker runs other jobs
        if len(workers) == 1 and left_at and now() - left_at < LOOK_NS and not self.found_nothing:
            return False
        others = sum(slot[W.SUSPECTS] or (slot[W.LEAVES] if busy else 0) for slot in workers)
        return others < max(1, len(workers) // 4)

    def look(self) -> int:
        """A look begins. Returns the moment."""
        self._looked_at = now()
        return self._looked_at

    def wait_in(self, queue: Connector, names: Sequence[str]) -> bool:
        """Whether one of these queues has suspects."""
        self.look()
        space, prefix = queue.kept
        with suppress(*AWAY):
            return any(space.call("EXISTS", prefix + keys.suspects(name)) for name in names)
        return False
