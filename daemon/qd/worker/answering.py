"""How an answer reaches the server: until it is there, and never twice. After a broken call the server is asked first what
it holds of this worker; only then the worker goes on.

    answer broke -> pause -> held -> mine still: answer again | not mine: it was given
    turn broke   -> held -> the job before: not acked | another: it is in hand | nothing: look again
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from qd.connectors.base import Connector, Reserved, Turn
from qd.connectors.keeping import Given
from qd.errors import NOTHING_DONE, ConnectionLost, Malformed, NeedsMending, ServerRefused
from qd.log import Log, cut
from qd.payload import read
from qd.worker.rota import Rota
from qd.worker.saving import AWAY, Held, stands

T = TypeVar("T")
FEW = 10  # different refusals that a worker tells of
AGAIN = 1.0  # most seconds between two tries to reach the server
LEAVES = 1.0  # seconds in which an answer could not be sent; then it is left to a keeper, where there is a way


class Answering:
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
        self.say_broken(error)
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

    def untake(self, give_back: Callable[[Reserved], bool]) -> None:
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
                self.surely(Held(mine), give_back)

    def surely(self, held: Held, answer: Callable[[Reserved], T]) -> T | None:
        """Answer for the job until the server has it. None: it was done by a call whose reply was lost."""
        job, asks, sent, sure = held.job, held.unsure, False, True
        while True:
            try:
                found = stands(self.queue, job) if asks else job
                if found is None and sent:
                    return None
                job, before, sent = found or job, sent, True
                said = answer(job)
                if said is not False or not asks or stands(self.queue, job) in (None, job):
                    self._away_since = 0.0
                    return None if said is False and before else said
                sent = False  # a checkpoint whose reply was lost came in between: answer for what stands now
            except AWAY as error:
                asks, sure = True, sure and isinstance(error, NOTHING_DONE)
                self.say_broken(error)
                if self._leaves(job, answer, error, sure=sure):
                    return None
                self.pause()

    def fetch(self, ask: Callable[[], T]) -> T:
        """What the answer for a job needs; ask until the server answers."""
        while True:
            try:
                found = ask()
            except AWAY as error:
                self.say_broken(error)
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

    def say_broken(self, error: Exception) -> None:
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
