"""The turns of a worker that runs several jobs: which lanes are free, what is acked, what a broken turn has left."""

from __future__ import annotations

import heapq
import time
from collections.abc import Mapping, Sequence
from typing import Any

from qd.drivers.types import LaneAnswer, LaneReply, LaneTurn, Reserved
from qd.payload.reservation import unstarted
from qd.process.scoreboard import L, LaneState, W, now
from qd.worker.connection import LaneConnection


class LaneTurns(LaneConnection):
    """free: lanes without a job, a heap. words: of each lane. since: when the first of the finished jobs had finished."""

    def __init__(self, *base: Any, most: int) -> None:
        super().__init__(*base)
        self.most, self.since = most, 0
        self.free = list(range(1, most + 1))
        self.words = {lane: self.board.lane(self.slot.number, lane) for lane in self.free}
        self._asked: list[int] = []  # lanes of a turn whose reply is lost,
        self._suspects = False  # and whether that took suspects

    def take(self, most: int, shut: tuple[str, ...], *, busy: bool, suspects: bool = False) -> LaneReply:
        """Ack what has finished and reserve up to `most` jobs, or suspects. busy: a lane has a job. First call `query_held`
        if `unsure`."""
        self._suspects = suspects
        lanes = self._asked = [heapq.heappop(self.free) for _ in range(min(most, len(self.free)))]
        for lane in lanes:
            self.words[lane].set(0, LaneState.ASKED)
        if lanes:
            self.slot[W.LANES] = max(self.slot[W.LANES] if busy or self.owes else 0, lanes[-1])
        turn = LaneTurn(self.rota.order, lanes=lanes, shut=shut, suspects=suspects, diverts=not suspects)
        if not lanes:
            turn = turn._replace(shut=self.queues)
        elif not suspects:
            turn = turn._replace(single=lanes[0])
        reply = self.exchange(turn)
        for job in reply.jobs:
            self.rota.took(job.queue, time.monotonic())
        self._release_asked(reply.jobs)
        return reply

    def exchange(self, turn: LaneTurn) -> LaneReply:
        done = self.finished
        reply = super().exchange(turn)
        self.since = 0
        for job in done:
            self.release(job.lane)
        return reply

    def finish(self, job: Reserved) -> None:
        self.since = self.since or now()
        super().finish(job)
        proof = self.board.proof_of(job.turn)
        if words := self.words.get(job.lane):
            words[L.PROOF] = proof
        else:
            self.slot[W.PROOF] = proof

    def release(self, lane: int) -> None:
        if words := self.words.get(lane):
            words.set(0, LaneState.EMPTY)
            heapq.heappush(self.free, lane)

    def _release_asked(self, jobs: Sequence[Reserved]) -> None:
        """Release the lanes of the last turn that have none of these jobs."""
        taken = {job.lane for job in jobs}
        asked, self._asked = self._asked, []
        for lane in asked:
            if lane not in taken:
                self.release(lane)

    # -- broken turns

    def broke(self, error: Exception) -> None:
        super().broke(error)
        if not self.unsure:
            self._release_asked([])

    def query_held(self, running: Mapping[int, str]) -> list[Reserved]:
        """After a broken turn: what it acked is gone. Returns what it reserved, to be started now. running: lane -> mark."""
        done = self.finished
        lanes = sorted({*self._asked, *running, *(job.lane for job in done)})
        found = [job for job in self.query_lanes(lanes) if job.mark not in running.values()]
        kept = {job.mark for job in self.finished}
        for job in done:
            if job.mark not in kept:
                self.release(job.lane)
        if suspects := found if self._suspects else [job for job in found if not job.lane]:
            self.unsure = True  # until they are answered: they must not run beside other jobs
            for job in suspects:
                text = job.member if job.lane else unstarted(job.member, job.mark)
                self.lanes.settle_lanes(job.queue, [LaneAnswer(job.owner, job.member, text, suspect=True)])
            self.unsure = False
        jobs = [job for job in found if job not in suspects]
        self._release_asked(jobs)
        return jobs
