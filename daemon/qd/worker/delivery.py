"""What the job in hand saves or tells, on its way to the server: job.checkpoint() -> Saver -> queue.checkpoint, and
job.progress() -> Saver -> queue.jobs.progress.

A call of it may come from any thread of the job, and from its main thread is never torn by an alarm. Nothing of a server
that is away reaches the job: what could not be kept is remembered, and goes with the next checkpoint or with the answer.

How an answer reaches the server: until it is there, and never twice. After a broken call the server is asked first what
it holds of this worker; only then the worker goes on.

    answer broke -> pause -> held -> mine still: answer again | not mine: it was given
    turn broke   -> held -> the job before: not acked | another: it is in hand | nothing: look again
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from qd.drivers.base import Connector
from qd.drivers.types import Given, Reserved, Turn
from qd.errors import NOTHING_DONE, ConnectionLost, LeaseLost, Malformed, NeedsMending, NotInJob, ServerRefused
from qd.log import Log, cut
from qd.payload.format import read
from qd.payload.reservation import saving
from qd.process.shield import in_main_thread, shield
from qd.worker.queues import Rota
from qd.worker.timeout import Alarm

AWAY = (ConnectionLost, ServerRefused)
PATIENCE = 0.2  # seconds a call waits for the server: less than what a job has between its alarm and its end
REST = 10  # times as long as a call has failed, the next ones only remember


class HeldJob(NamedTuple):
    """The job after its attempt. unsaved: a state that the server does not have for certain. unsure: a call broke, so
    another text of it may stand there, now or a little later: ask before the answer, and after one that was refused."""

    job: Reserved
    unsaved: bytes | None = None
    unsure: bool = False


def still_held(queue: Connector, job: Reserved) -> Reserved | None:
    """The job as it stands by the server's word. None: it is not this worker's any more."""
    mine = queue.held((job.queue,))
    return job._replace(member=mine.member) if mine is not None and mine.mark == job.mark else None


class Checkpoints:
    def __init__(self, queue: Connector, alarm: Alarm, log: Log) -> None:
        self.queue, self.alarm, self.log = queue, alarm, log
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._mark: str | None = None  # of the job whose checkpoints are taken; None: no attempt is under way
        self._job: Reserved | None = None  # as it stands
        self._unsaved: bytes | None = None
        self._used = self._unsure = self._calling = False
        self._not_before = 0.0

    def begin(self, job: Reserved) -> None:
        if self._used:
            self._unsaved, self._used, self._unsure, self._not_before = None, False, False, 0.0
        self._job, self._mark = job, job.mark

    def end(self) -> HeldJob:
        """The attempt is over: nothing of it is saved any more."""
        self._mark = None
        # Set before the mark is looked at: a call under way is seen here, or sees that it comes too late.
        if self._used:
            with self._lock:
                pass
        assert self._job is not None
        return HeldJob(self._job, self._unsaved, self._unsure)

    def keep(self, mark: str, state: bytes) -> None:
        """Keep `state` (JSON text) with the job that was reserved under `mark`. Raises NotInJob; LeaseLost in the job."""
        with shield:
            if os.getpid() != self._pid:
                raise NotInJob(
                    "job.checkpoint() was called in a process that the job has forked: call it in the job's own"
                )
            self._used = True
            with self._lock:
                if self._mark != mark:
                    raise NotInJob("job.checkpoint() was called after its job had ended")
                self._unsaved = state
                if self._calling or time.monotonic() < self._not_before:
                    return  # from a signal handler, in the middle of a call; or the server is away
                kept = self._send(state)
        if not kept:
            self.alarm.lease_lost()
            if not in_main_thread():
                raise LeaseLost("the reservation is gone")

    def tell(self, mark: str, id: str, ttl: float, percent: float) -> None:
        """Keep how far the job is that was reserved under `mark`, as well as it goes. Raises NotInJob."""
        with shield:
            if os.getpid() != self._pid:
                raise NotInJob(
                    "job.progress() was called in a process that the job has forked: call it in the job's own"
                )
            self._used = True
            with self._lock:
                if self._mark != mark:
                    raise NotInJob("job.progress() was called after its job had ended")
                if self._calling or time.monotonic() < self._not_before:
                    return
                self._progress(id, percent, ttl)

    def _progress(self, id: str, percent: float, ttl: float) -> None:
        began = time.monotonic()
        self._calling = True
        try:
            with self.queue.within(PATIENCE):
                self.queue.jobs.progress(id, percent, ttl)
        except AWAY as error:
            self._not_before = time.monotonic() + REST * (time.monotonic() - began)
            self.log.debug("job.progress", kept=False, error=str(error))
        finally:
            self._calling = False

    def _send(self, state: bytes) -> bool:
        """False: the lease was lost."""
        began = time.monotonic()
        self._calling = True
        try:
            with self.queue.within(PATIENCE):
                return self._kept(state)
        except AWAY as error:
            self._unsure = self._unsure or not isinstance(error, NOTHING_DONE)
            self._not_before = time.monotonic() + REST * (time.monotonic() - began)
            self.log.debug("job.checkpoint", kept="in memory", error=str(error))
            return True
        finally:
            self._calling = False

    def _kept(self, state: bytes) -> bool:
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
            # One whose reply was lost may have come in between.
            found = still_held(self.queue, job) if self._unsure else None
            job = found if found is not None and found.member != job.member else None
        return False


T = TypeVar("T")
FEW = 10  # different refusals that a worker tells of
AGAIN = 1.0  # most seconds between two tries to reach the server
LEAVES = 1.0  # seconds in which an answer could not be sent; then it is left to a keeper, where there is a way


class Delivery:
    """What a worker says to the server, and what it knows of it.

    done: a job that is finished and not acked yet; its ack goes with the next turn. rest(seconds): sleeps, and hears
    signals meanwhile.
    """

    def __init__(self, queue: Connector, rota: Rota, log: Log, rest: Callable[[float], None]) -> None:
        self.queue, self.rota, self.queues, self.log, self.rest = queue, rota, rota.queues, log, rest
        self.done: Reserved | None = None
        self.unsure = False  # what the last turn did; then the server is asked before the next one
        self._away_since = 0.0
        self._refused = set[str]()  # what was said

    @property
    def away(self) -> bool:
        """The last call broke: nobody knows whether jobs are ready."""
        return bool(self._away_since)

    def turn(self, shut: tuple[str, ...] = ()) -> Turn:
        """Ack `done` and take the next job in one call, from a queue that is not shut. Not before `ask` where `unsure`."""
        turn = self.queue.turn(self.done, self.rota.order, shut)
        if turn.reserved is not None:
            self.rota.took(turn.reserved.queue, time.monotonic())
        self.done, self._away_since = None, 0.0
        return turn

    def broke(self, error: Exception) -> None:
        """The last turn did."""
        self.log_broken(error)
        self._away_since = self._away_since or time.monotonic()
        self.unsure = self.unsure or not isinstance(error, NOTHING_DONE)
        if self.done is not None and self._leaves(self.done, self.queue.ack, error, sure=not self.unsure):
            self.done = None

    def ask(self) -> Reserved | None:
        """A broken turn may have acked, and may have reserved: no other before this is known. The job it reserved."""
        mine = self.queue.held(self.queues)
        self.unsure = False
        self._tell_given()
        if mine is not None and self.done is not None and mine.mark == self.done.mark:
            return None  # neither acked nor reserved
        self.done = None
        return mine

    def give_back_reserved(self, give_back: Callable[[Reserved], bool]) -> None:
        """Give back what a broken turn has reserved. With no ack to send it is tried once: it is asked for again."""
        while self.unsure:
            try:
                mine = self.ask()
            except AWAY as error:
                self.broke(error)
                if self.done is None:
                    return
                self.pause()
                continue
            if mine is not None:
                self.until_answered(HeldJob(mine), give_back)

    def until_answered(self, held: HeldJob, answer: Callable[[Reserved], T]) -> T | None:
        """Answer for the job until the server has it. None: it was done by a call whose reply was lost."""
        job, asks, sent, sure = held.job, held.unsure, False, True
        while True:
            try:
                found = still_held(self.queue, job) if asks else job
                if found is None and sent:
                    return None
                job, before, sent = found or job, sent, True
                said = answer(job)
                if said is not False or not asks or still_held(self.queue, job) in (None, job):
                    self._away_since = 0.0
                    return None if said is False and before else said
                sent = False  # a checkpoint whose reply was lost came in between: answer for what stands now
            except AWAY as error:
                asks, sure = True, sure and isinstance(error, NOTHING_DONE)
                self.log_broken(error)
                if self._leaves(job, answer, error, sure=sure):
                    return None
                self.pause()

    def fetch(self, ask: Callable[[], T]) -> T:
        """What the answer for a job needs; ask until the server answers."""
        while True:
            try:
                found = ask()
            except AWAY as error:
                self.log_broken(error)
                self.pause()
            else:
                self._away_since = 0.0
                return found

    def _leaves(self, job: Reserved, answer: Callable[[Reserved], object], error: Exception, *, sure: bool) -> bool:
        """Whether the answer is left for a keeper to give: the server of this job is away, and that of another queue is not.
        Only a connection of several servers has `leave`."""
        leave = getattr(self.queue, "leave", None)
        if leave is None or not isinstance(error, ConnectionLost):
            return False
        if not self._away_since or time.monotonic() - self._away_since < LEAVES:
            return False
        if not leave(job, answer, sure=sure):
            return False
        self._away_since = time.monotonic()  # others may answer: the next pause is short
        self.log.info(
            "job.answer_left", queue=job.queue, id=id_of(job.member), reason="its node is away; a keeper gives it"
        )
        return True

    def _tell_given(self) -> None:
        """Of answers that this worker had left, and found before a keeper gave them."""
        given: Callable[[], Sequence[Given]] = getattr(self.queue, "given", tuple)
        for queue, member, there in given():
            if there:
                self.log.info("job.answered_late", queue=queue, id=id_of(member))
            else:
                self.log.error("job.lease_lost", queue=queue, id=id_of(member))

    def log_broken(self, error: Exception) -> None:
        """A server that is away is told of by the keeper, once for all; one that refuses this worker, here, once: it may do
        what the keeper asks of it."""
        refused = isinstance(error, ServerRefused | NeedsMending) and str(error) not in self._refused
        if refused and len(self._refused) < FEW:
            self._refused.add(str(error))
            self.log.warning(f"{server_of(error, self.queue)}.refused", error=str(error))
        else:
            self.log.debug(f"{server_of(error, self.queue)}.broken", error=str(error))

    def pause(self) -> None:
        """Before the next try; longer the longer the server is away."""
        at = time.monotonic()
        self._away_since = self._away_since or at
        self.rest(min(AGAIN, 0.02 + (at - self._away_since)) * random.uniform(0.5, 1.0))


def id_of(member: bytes) -> str | None:
    try:
        payload = read(member)
    except Malformed:
        return None
    return cut(payload.id or payload.uuid or "") or None


def server_of(error: Exception, queue: Connector) -> str:
    """The driver of the server that the error came from, for the log."""
    return getattr(error, "server", None) or queue.settings.driver
