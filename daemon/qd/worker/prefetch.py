"""Jobs that a worker fetches ahead: one runs while the next few are already reserved. They save a round trip each.

    turn      acks the finished jobs, puts back what has not started, reserves a batch of up to k: one call
    start     one job of the batch after the other, in its order, as long as each of these holds:
              10 ms have not passed since the batch was asked for; the keeper does not recall it; the job's name is known
              to be short (unless k was given, or the job is the first of its batch)
    recall    100 ms after the batch was asked for, the keeper acks what has finished and puts back what has not started
              (keeper/recall.py): the jobs behind a long one do not wait for it

k doubles from turn to turn as long as k jobs fit into 5 ms, by the highest average of the names that ran lately.

Safety depends on no clock but one: the keeper's wait lets every processor see RECALL. Before a job starts, the worker
writes its turn into STARTED, then reads RECALL; the keeper writes RECALL, waits, then reads STARTED. A worker that finds its
batch recalled starts nothing of it and puts back, under the marks of this batch, what it still holds: what the keeper has
put back already has no such mark any more.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from qd.drivers.types import LaneReply, LaneTurn, Reserved
from qd.options.tables import PREFETCHED
from qd.process.channels import Waker
from qd.process.scoreboard import W, batch_of
from qd.worker.connection import AWAY, HeldJob, LaneConnection

SHORT = 0.005  # seconds that the jobs of a batch may take together; a longer job is not fetched ahead
MOST = 64  # jobs of a batch
WINDOW_NS = 10_000_000  # after this no further job of a batch starts
WAKE_NS = 1_000_000_000  # between two wakes of the keeper, which then looks often by itself
ALONE = (0,)
NAMES = 1000  # averages that are kept: names come from payloads


def boottime_ns() -> int:
    """Goes on while the host is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def name_of(member: bytes) -> bytes:
    """The job's name, or some other part of the payload: good enough for an estimate."""
    at = member.find(b'"job":"') + 7
    return member[at : member.find(b'"', at)]


class Estimate:
    """How many jobs to fetch at once. most: fixed number, 0: automatic."""

    def __init__(self, most: int) -> None:
        self._fixed = most
        self._averages: dict[bytes, float] = {}  # name -> seconds
        self._slowest = self._slowest_before = 0.0  # of the names that ran since the last turn, and before that
        self._last = 1

    def ran(self, job: Reserved, took: float) -> None:
        if self._fixed:
            return
        name = name_of(job.member)
        before = self._averages.get(name)
        if before is None and len(self._averages) >= NAMES:
            self._averages.clear()
        average = self._averages[name] = took if before is None else before + (took - before) / 32
        if average > self._slowest:
            self._slowest = average

    def next(self) -> int:
        """The number to ask for with the next turn."""
        if self._fixed:
            return self._fixed
        slowest = max(self._slowest, self._slowest_before)
        self._slowest_before, self._slowest = self._slowest or self._slowest_before, 0.0
        fits = int(SHORT / slowest) if slowest else 1
        self._last = max(1, min(MOST, 2 * self._last, fits))
        return self._last

    def fits(self, job: Reserved) -> bool:
        """Whether it may start behind another job of its batch."""
        return self._fixed > 0 or self._averages.get(name_of(job.member), SHORT) < SHORT


class PrefetchConnection(LaneConnection):
    """held: reserved together, to start in this order. back: not to be started any more, to put back with the next turn.
    lost: called with finished jobs whose leases were lost."""

    def __init__(self, *base: Any, prefetch: int, wake: Waker | None = None) -> None:
        """wake: wakes the keeper."""
        super().__init__(*base)
        self.estimate, self.wake = Estimate(prefetch), wake
        self.held = deque[Reserved]()
        self.back = list[Reserved]()
        self.lost: Callable[[Sequence[Reserved]], None] = lambda jobs: None
        self.started = 0  # turn of the job that was started last; those of a batch ascend by one, in its order
        self._batch, self._first, self._until, self._woke = 0, True, 0, 0

    # -- one turn

    def fill(self, most: int, shut: tuple[str, ...]) -> LaneReply:
        """Answer what is to be answered and reserve up to `most` jobs. First call `query_held` if `unsure`."""
        asked = min(most, self.estimate.next(), self.rota.most, PREFETCHED)
        return self._turn(LaneTurn(self.rota.order, lanes=range(1, asked + 1) if asked > 1 else ALONE, shut=shut))

    def _turn(self, turn: LaneTurn) -> LaneReply:
        slot, sent_at = self.slot, boottime_ns()
        self._give_up_held()
        slot[W.HELD_AT] = 0
        slot[W.LANES] = max(slot[W.LANES], len(turn.lanes))
        reply = self.exchange(turn._replace(back=self.back))
        jobs = reply.jobs
        for job in self.back:
            self.rota.put_back(job.queue)
        self.back, self.held = [], deque(jobs)
        slot[W.LANES] = jobs[-1].lane if jobs else 0
        if jobs:
            self.rota.took(jobs[0].queue, time.monotonic(), len(jobs))
            first = jobs[0].turn
            self.started = first - 1
            self._batch = slot[W.BATCH] = batch_of(first, len(jobs))
            self._first, self._until = True, sent_at + WINDOW_NS
        if len(jobs) > 1:
            slot[W.HELD_AT] = sent_at
            if self.wake is not None and sent_at - self._woke > WAKE_NS:
                self._woke = sent_at
                self.wake.wake()
        return reply

    def lost_of(self, reply: LaneReply) -> list[Reserved]:
        """The leases that were really lost: the keeper may have acked finished jobs."""
        return [job for job in reply.lost if job.turn > self.slot[W.SETTLED]]

    def next_held(self) -> Reserved | None:
        """The next job of the batch, which must start now. None: there is none, or the rest must go back."""
        if not self.held:
            return None
        job = self.held[0]
        if not self._first and (boottime_ns() > self._until or not self.estimate.fits(job)):
            return None
        words = self.slot.words
        words[W.STARTED] = self.started + 1
        if words[W.RECALL] == self._batch:
            words[W.STARTED] = self.started  # it has not
            return None
        self._first = False
        self.started += 1
        return self.held.popleft()

    def finish(self, job: Reserved) -> None:
        """job: the one that was started last."""
        super().finish(job)
        self.slot.words[W.PROOF] = self.board.proof_of(self.started)

    def _give_up_held(self) -> None:
        """Nothing that is held now will start."""
        self.back += self.held
        self.held.clear()

    # -- broken calls, and the end

    @property
    def settled(self) -> bool:
        return super().settled and not (self.held or self.back)

    def broke(self, error: Exception) -> None:
        super().broke(error)
        self._give_up_held()
        if self.back:
            self.slot[W.HELD_AT] = 1  # long ago: the keeper puts them back if it reaches the server

    def query_held(self) -> None:
        """A broken turn may have acked, put back and reserved. What it reserved is put back by the next turn."""
        self.back = self.query_lanes(range(1, PREFETCHED + 1))

    def flush(self, give_back: Callable[[Reserved], bool], ack: Callable[[HeldJob], object]) -> None:
        """Ack what has finished and put back what has not started, in one call."""
        self._give_up_held()
        while not self.settled:
            try:
                if self.unsure:
                    self.query_held()
                elif self.finished or self.back:
                    self.lost(self.lost_of(self._turn(LaneTurn(self.queues, shut=self.queues))))
            except AWAY as error:
                self.broke(error)
                if not self.finished:
                    return  # the next turn tries again; if there is none, the keeper puts them back
                self.pause()
