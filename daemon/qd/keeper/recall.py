"""Takes back what workers fetched ahead and did not start, so that jobs behind a long one do not wait for it.

    a worker took several jobs, and 100 ms have passed -> write RECALL -> 10 ms later read STARTED
    -> ack what has finished, put back at the head what has not started

The worker's side, and why this is safe: worker/prefetch.py. RECALL is on the scoreboard, so a new keeper
continues. While no worker holds jobs, nothing is done; a byte from a worker starts it (process/channels.Waker).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from qd.drivers.base import LaneConnector
from qd.drivers.types import LaneAnswer, Reserved, reserved_of
from qd.options.tables import PREFETCHED
from qd.payload.reservation import marks_of, unstarted
from qd.process import SLOTS
from qd.process.scoreboard import ALIVE, Scoreboard, Slot, W, turns_of

LOOK = 0.05  # seconds between two looks at the scoreboard while a worker holds jobs
AFTER_NS = 100_000_000  # age of a batch at which it is recalled
SETTLE = 0.01  # seconds between writing RECALL and reading STARTED


class Recall:
    def __init__(self, lanes: LaneConnector, queues: Sequence[str], board: Scoreboard, token: str) -> None:
        self.lanes, self.queues, self.board, self.token = lanes, queues, board, token
        self._since: dict[int, tuple[int, float]] = {}  # slot -> batch, monotonic moment of its RECALL
        self._over: dict[int, int] = {}  # slot -> batch that was taken back

    def look(self) -> float | None:
        """Do what is due. Returns the seconds until the next look; None: no worker holds jobs. Raises ConnectionLost or
        ServerRefused: the next look tries again."""
        next_look = None
        for slot in self._holders():
            next_look = LOOK if next_look is None else next_look
            if time.clock_gettime_ns(time.CLOCK_BOOTTIME) - slot[W.HELD_AT] < AFTER_NS:
                continue
            batch = slot[W.BATCH]
            known, since = self._since.get(slot.number, (0, 0.0))
            if known != batch:
                slot[W.RECALL] = batch
                since = time.monotonic()
                self._since[slot.number] = (batch, since)
            if time.monotonic() - since < SETTLE:
                next_look = SETTLE
            else:
                self._take_back(slot, batch)
                self._over[slot.number] = batch
        return next_look

    def _holders(self) -> Iterator[Slot]:
        for slot in self.board:
            if slot[W.HELD_AT] and slot[W.STATE] in ALIVE and self._over.get(slot.number) != slot[W.BATCH]:
                yield slot

    def _take_back(self, slot: Slot, batch: int) -> None:
        """Nothing of this batch starts any more. The worker may have taken another batch meanwhile: that is not touched."""
        turns = turns_of(batch)
        jobs = [job for job in jobs_of(self.lanes, self.queues, self.token, slot.number) if job.turn in turns]
        last = min(self.board.finished(slot, [job.turn for job in jobs]), turns[-1])
        slot[W.SETTLED] = max(slot[W.SETTLED], last)  # before the ack: the worker's own ack may find them gone
        for queue in self.queues:
            answers = [
                LaneAnswer(job.owner, job.member, None if job.turn <= last else unstarted(job.member, job.mark))
                for job in jobs
                if job.queue == queue and (job.turn <= last or job.turn > slot[W.STARTED])
            ]
            if answers:
                self.lanes.settle_lanes(queue, answers)


def jobs_of(
    lanes: LaneConnector, queues: Sequence[str], token: str, slot: int, most: int = PREFETCHED
) -> list[Reserved]:
    """What this worker owns in its lanes 1 to `most`, by turn."""
    owners = [f"{token}/{slot + SLOTS * lane}" for lane in range(1, most + 1)]
    owned = [(queue, *each) for queue in queues for each in lanes.owned_by(queue, owners).items()]
    found = [reserved_of(queue, member, marks_of(owner)) for queue, owner, member in owned]
    return sorted([job for job in found if job.mark], key=lambda job: job.turn)
