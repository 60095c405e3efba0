"""A worker's connection, which may break: turns, answers, checkpoints and progress. An unreachable server is handled here.

Checkpoints         job.checkpoint() and job.progress() of the current job, from any of its threads; the shield protects
                    calls from alarms. The job sees no connection error: an unsaved state goes with the next checkpoint
                    or the answer. job.step() tries again instead.
RetryingConnection  sends each answer until the server has it, and never twice. WorkerConnection makes turns for one job
                    at a time, LaneConnection for several: fetched ahead (prefetch.py), or at once (LaneTurns). After a
                    broken call they first query which jobs the server holds for this worker:

    answer broke -> pause -> held -> still this job: answer again | not this job: the answer had arrived
    turn broke   -> held -> the previous job: not acked | another: it was reserved | none: next turn
"""

from __future__ import annotations

import heapq
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from qd.drivers.base import Connector, LaneConnector, with_lanes
from qd.drivers.types import LaneAnswer, LaneReply, LaneTurn, LateAnswer, Reserved, Turn, reserved_of
from qd.errors import NOTHING_DONE, ConnectionLost, LeaseLost, NeedsMending, NotInJob, ServerRefused
from qd.log import Log, cut
from qd.payload.format import readable
from qd.payload.reservation import marks_of, saving, unstarted
from qd.process.scoreboard import L, LaneState, Scoreboard, Slot, W, now
from qd.process.shield import in_main_thread, shield
from qd.worker.emitter import Emitter
from qd.worker.queues import Rota
from qd.worker.timeout import Alarm

AWAY = (ConnectionLost, ServerRefused)
PATIENCE = 0.2  # seconds a call waits for the server: less than a job has between its alarm and its kill
STEP_PATIENCE = 1.0  # the same for a step, which cannot be given up: a slow server must be able to answer
REST = 10  # after a failed call, states are only remembered for so many times its duration


class HeldJob(NamedTuple):
    """The job after its attempt. unsaved: a state that may not be on the server. unsure: a call broke, so the server may
    have another text of the job, now or soon: query it before the answer, and after a refused one. steps: it has some."""

    job: Reserved
    unsaved: bytes | None = None
    unsure: bool = False
    steps: bool = False


def still_held(queue: Connector, job: Reserved) -> Reserved | None:
    """The job as it is on the server. None: this worker does not hold it any more."""
    lanes = with_lanes(queue)
    if lanes is None:
        mine = queue.held((job.queue,))
    else:
        member = lanes.owned_by(job.queue, (job.owner,)).get(job.owner)
        mine = None if member is None else reserved_of(job.queue, member, marks_of(job.owner))
    return job._replace(member=mine.member) if mine is not None and mine.mark == job.mark else None


class Checkpoints:
    def __init__(self, queue: Connector, alarm: Alarm, log: Log, emitter: Emitter) -> None:
        self.queue, self.alarm, self.log, self.emitter = queue, alarm, log, emitter
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._mark: str | None = None  # of the current job; None: no attempt is running
        self._job: Reserved | None = None  # with its last saved text
        self._unsaved: bytes | None = None
        self._used = self._unsure = self._calling = self._stepped = self._waits = False
        self._not_before = 0.0

    def begin(self, job: Reserved) -> None:
        if self._used:
            self._used = self._unsure = self._stepped = self._waits = False
            self._unsaved, self._not_before = None, 0.0
        self._job, self._mark = job, job.mark

    def end(self) -> HeldJob:
        """The attempt has ended: no more of its states are saved."""
        self._mark = None
        # `_used` is set before the mark is checked: a concurrent call is seen here, or sees that it is too late.
        if self._used:
            with self._lock, self.emitter.lock:
                pass
        assert self._job is not None
        return HeldJob(self._job, self._unsaved, self._unsure, self._stepped)

    def keep(self, mark: str, state: bytes) -> None:
        """Keep `state` (JSON text) with the job that was reserved under `mark`. Raises NotInJob; LeaseLost in the job."""
        if self._call("checkpoint", mark, lambda: self._kept(state), state) is False:
            self.alarm.lease_lost()
            if not in_main_thread():
                raise LeaseLost("the reservation is gone")

    def progress(self, mark: str, id: str, ttl: float, percent: float, details: bytes) -> None:
        """Try to save the progress of the job that was reserved under `mark`. Raises NotInJob."""
        self._call("progress", mark, lambda: self.queue.jobs.progress(id, percent, ttl, details))

    def emit(self, mark: str, id: str, ttl: float | None, data: bytes) -> None:
        """Send an event (JSON) of the job that was reserved under `mark`, soon. Raises NotInJob."""
        with shield:
            self._check("emit", mark)
            self._used = True
            with self.emitter.lock:
                self._check("emit", mark)
                self.emitter.add(mark, id, ttl, data)

    def _check(self, name: str, mark: str) -> None:
        if os.getpid() != self._pid:
            way = "call it in the job's own"
            raise NotInJob(f"job.{name}() was called in a process that the job has forked: {way}")
        if self._mark != mark:
            raise NotInJob(f"job.{name}() was called after its job had ended")

    def step(self, id: str, mark: str, *added: str | bytes) -> Any:
        """As Jobs.steps. None: the server did not answer, which is logged once. Raises NotInJob; LeaseLost in the job."""
        found = self._call("step", mark, lambda: self._steps(id, mark, *added))
        if found == 0:
            self.alarm.lease_lost()
            raise LeaseLost("the reservation is gone")
        return found

    def _steps(self, id: str, mark: str, *added: str | bytes) -> Any:
        self._stepped, found = True, self.queue.jobs.steps(id, mark, *added)
        if found == 0 and self._job is not None and still_held(self.queue, self._job) is not None:
            return self.queue.jobs.steps(id, mark, *added, 1)  # an attempt without a lease has read them
        return found

    def _call(self, name: str, mark: str, call: Callable[[], object], state: bytes | None = None) -> object:
        """Call the server for the running job. Returns None if the call broke or must wait; `state` is then remembered."""
        with shield:
            self._check(name, mark)
            self._used = True
            with self._lock:
                self._check(name, mark)
                self._unsaved = self._unsaved if state is None else state
                began = time.monotonic()
                if self._calling or began < self._not_before:
                    return None  # in a signal handler during a call, or soon after a failed call
                self._calling = True
                try:
                    with self.queue.within(STEP_PATIENCE if name == "step" else PATIENCE):
                        return call()
                except AWAY as error:
                    if state is not None:
                        self._unsure = self._unsure or not isinstance(error, NOTHING_DONE)
                    failed_at = time.monotonic()
                    self._not_before = failed_at + REST * (failed_at - began)
                    if name == "step" and not self._waits and self._job is not None:
                        self._waits = True
                        self.log.warning("job.step_waits", id=id_of(self._job.member), error=str(error))
                    self.log.debug(f"job.{name}", kept="no" if state is None else "in memory", error=str(error))
                    return None
                finally:
                    self._calling = False

    def _kept(self, state: bytes) -> bool:
        """False: the lease was lost."""
        assert self._job is not None
        job: Reserved | None = self._job
        if self._unsure:
            job = still_held(self.queue, self._job)
        while job is not None:
            self._job = job
            member = saving(job.member, job.mark, state)
            if self.queue.checkpoint(job, member):
                self._job, self._unsaved, self._unsure = job._replace(member=member), None, False
                return True
            # A checkpoint whose reply was lost may have arrived in between.
            found = still_held(self.queue, job) if self._unsure else None
            job = found if found is not None and found.member != job.member else None
        return False


T = TypeVar("T")
FEW = 10  # different refusals that a worker logs
AGAIN = 1.0  # seconds between two tries to reach the server, at most
LEAVES = 1.0  # seconds of failed tries after which an answer is left to a keeper, if the connection supports it


class RetryingConnection:
    """Answers of a worker, which are sent until the server has them.

    finished: done, and to be acked with the next turn. rest(seconds): sleeps and handles signals.
    """

    def __init__(self, queue: Connector, rota: Rota, log: Log, rest: Callable[[float], None]) -> None:
        self.queue, self.rota, self.queues, self.log, self.rest = queue, rota, rota.queues, log, rest
        self.finished = list[Reserved]()
        self.unsure = False  # the effect of the last turn is unknown: query the server before the next one
        self._away_since = 0.0
        self._refused = set[str]()  # refusals that were logged

    @property
    def away(self) -> bool:
        """Whether the last call broke, so that it is unknown whether jobs are ready."""
        return bool(self._away_since)

    @property
    def settled(self) -> bool:
        """Whether this worker certainly owns no job between two jobs."""
        return not (self.unsure or self.finished)

    def finish(self, job: Reserved) -> None:
        """The job is done: its ack goes with the next turn."""
        self.finished.append(job)

    def flush(self, give_back: Callable[[Reserved], bool], ack: Callable[[HeldJob], object]) -> None:
        """Send the acks that wait for the next turn, and give back jobs that have not started."""

    def broke(self, error: Exception) -> None:
        """Note that the last turn broke."""
        self.log_broken(error)
        self._away_since = self._away_since or time.monotonic()
        self.unsure = self.unsure or not isinstance(error, NOTHING_DONE)

    def until_answered(self, held: HeldJob, answer: Callable[[Reserved], T]) -> T | None:
        """Repeat the answer until the server has it. None: an earlier call whose reply was lost had already succeeded."""
        job, unsure, sent, sure = held.job, held.unsure, False, True
        while True:
            try:
                found = still_held(self.queue, job) if unsure else job
                if found is None and sent:
                    return None
                job, before, sent = found or job, sent, True
                reply = answer(job)
                if reply is not False or not unsure or still_held(self.queue, job) in (None, job):
                    self._away_since = 0.0
                    return None if reply is False and before else reply
                sent = False  # a late checkpoint has changed the text of the job: answer again
            except AWAY as error:
                unsure, sure = True, sure and isinstance(error, NOTHING_DONE)
                self.log_broken(error)
                if self._leaves(job, answer, error, sure=sure):
                    return None
                self.pause()

    def fetch(self, query: Callable[[], T]) -> T:
        """Repeat a query that the answer needs until the server replies."""
        while True:
            try:
                found = query()
                self._away_since = 0.0
                return found
            except AWAY as error:
                self.log_broken(error)
                self.pause()

    def _leaves(self, job: Reserved, answer: Callable[[Reserved], object], error: Exception, *, sure: bool) -> bool:
        """Whether the answer was left to a keeper, because the server of this job is unreachable and another one is not.
        Only a connection with several servers has `leave`."""
        leave = getattr(self.queue, "leave", None)
        if leave is None or not isinstance(error, ConnectionLost):
            return False
        if not self._away_since or time.monotonic() - self._away_since < LEAVES:
            return False
        if not leave(job, answer, sure=sure):
            return False
        self._away_since = time.monotonic()  # other servers may reply: the next pause is short
        reason = "its node is unreachable; a keeper will answer"
        self.log.info("job.answer_left", queue=job.queue, id=id_of(job.member), reason=reason)
        return True

    def log_broken(self, error: Exception) -> None:
        """Log refusals once: the keeper may have other permissions. Unreachable servers are logged by the keeper."""
        server = getattr(error, "server", None) or self.queue.settings.driver
        refused = isinstance(error, ServerRefused | NeedsMending) and str(error) not in self._refused
        if refused and len(self._refused) < FEW:
            self._refused.add(str(error))
            self.log.warning(f"{server}.refused", error=str(error))
        else:
            self.log.debug(f"{server}.broken", error=str(error))

    def pause(self) -> None:
        """Sleep before the next try, longer the longer the server is unreachable."""
        at = time.monotonic()
        self._away_since = self._away_since or at
        self.rest(min(AGAIN, 0.02 + (at - self._away_since)) * random.uniform(0.5, 1.0))


class WorkerConnection(RetryingConnection):
    """One job at a time."""

    def turn(self, shut: tuple[str, ...] = ()) -> Turn:
        """Ack the finished job and reserve the next one from a queue that is not shut, in one call. First call
        `query_held` if `unsure`."""
        turn = self.queue.turn(self.done, self.rota.order, shut)
        if turn.reserved is not None:
            self.rota.took(turn.reserved.queue, time.monotonic())
        self.finished, self._away_since = [], 0.0
        return turn

    @property
    def done(self) -> Reserved | None:
        """The finished job that is not acked yet."""
        return self.finished[0] if self.finished else None

    def flush(self, give_back: Callable[[Reserved], bool], ack: Callable[[HeldJob], object]) -> None:
        while self.unsure:
            try:
                mine = self.query_held()
            except AWAY as error:
                self.broke(error)
                if not self.finished:
                    return  # the next turn queries again
                self.pause()
            else:
                if mine is not None:
                    self.until_answered(HeldJob(mine), give_back)
        if (done := self.done) is not None:
            self.finished = []
            ack(HeldJob(done))

    def broke(self, error: Exception) -> None:
        super().broke(error)
        if self.done is not None and self._leaves(self.done, self.queue.ack, error, sure=not self.unsure):
            self.finished = []

    def query_held(self) -> Reserved | None:
        """A broken turn may have acked and may have reserved. Returns the job that it reserved, if any."""
        mine = self.queue.held(self.queues)
        self.unsure = False
        self._log_late_answers()
        if mine is not None and self.done is not None and mine.mark == self.done.mark:
            return None  # neither acked nor reserved
        self.finished = []
        return mine

    def _log_late_answers(self) -> None:
        """Log answers that this worker had left and has sent itself before a keeper did."""
        late_answers: Callable[[], Sequence[LateAnswer]] = getattr(self.queue, "late_answers", tuple)
        for queue, member, there in late_answers():
            if there:
                self.log.info("job.answered_late", queue=queue, id=id_of(member))
            else:
                self.log.error("job.lease_lost", queue=queue, id=id_of(member))


class LaneConnection(RetryingConnection):
    """Several jobs at a time, each in a lane of its own."""

    def __init__(
        self, lanes: LaneConnector, rota: Rota, log: Log, rest: Callable[[float], None], board: Scoreboard, slot: Slot
    ) -> None:
        super().__init__(lanes, rota, log, rest)
        self.lanes, self.board, self.slot = lanes, board, slot

    def exchange(self, turn: LaneTurn) -> LaneReply:
        """Ack what has finished and make this turn, in one call. First call `query_lanes` if `unsure`."""
        reply = self.lanes.turn_lanes(turn._replace(done=self.finished))
        self.finished, self._away_since = [], 0.0
        return reply

    def query_lanes(self, lanes: Sequence[int]) -> list[Reserved]:
        """A broken turn may have acked and reserved. Returns the jobs in these lanes that have not finished."""
        owned = self.lanes.held_lanes(self.queues, lanes)
        self.unsure = False
        marks = {job.mark for job in self.finished}
        self.finished = [job for job in owned if job.mark in marks]
        return [job for job in owned if job.mark not in marks]

    def leave(self) -> None:
        """The worker has settled everything and leaves."""
        try:
            if self.settled:
                self.lanes.leave_lanes()
        except AWAY as error:
            self.log_broken(error)


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
        lanes = self._asked = [heapq.heappop(self.free) for _ in range(min(most, self.rota.most, len(self.free)))]
        for lane in lanes:
            self.words[lane].set(0, LaneState.ASKED)
        if lanes:
            self.slot[W.LANES] = max(self.slot[W.LANES] if busy or self.finished else 0, lanes[-1])
        turn = LaneTurn(self.rota.order, lanes=lanes, shut=shut, suspects=suspects, diverts=not suspects)
        if not lanes:
            turn = turn._replace(shut=self.queues)
        elif not suspects:
            turn = turn._replace(single=lanes[0])
        reply = self.exchange(turn)
        if reply.jobs:
            self.rota.took(reply.jobs[0].queue, time.monotonic(), len(reply.jobs))
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


def id_of(member: bytes) -> str | None:
    payload = readable(member)
    return cut(payload.id or payload.uuid or "") or None if payload is not None else None
