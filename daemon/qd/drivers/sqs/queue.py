"""SqsQueue: a BrokerQueue, and what a FIFO queue needs besides; how a connection to SQS is opened.

A FIFO queue delivers the jobs of a group one after the other, so a retry must not go to the end of its group as a new
message. The message stays, is hidden for the delay, and holds back its group meanwhile. The job's text, with its counts, is
kept under the message's id (delivery_keep.lua) and replaces the body at the next delivery.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from qd.drivers.broker.base import Delivery
from qd.drivers.broker.queue import BrokerQueue, Refused
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import chunked, script
from qd.drivers.keyspace.sending import effect_args
from qd.drivers.sqs.broker import SqsBroker
from qd.drivers.types import BeatReply, BeatRequest, Effect, Outgoing, Released, Reserved
from qd.drivers.urls import SqsUrl, is_fifo
from qd.errors import ConnectionLost, NeverTaken, QdError, ServerRefused
from qd.log import cut
from qd.options.kinds import count
from qd.payload.format import readable

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings, Settings
    from qd.drivers.base import ClientIdentity


KEPT = 15 * 86400  # seconds a text is kept: the longest that SQS may keep a message, and a day
LONGEST = 6 * 3600.0  # seconds a message is hidden; SQS allows twelve hours, including the attempt
FEW, WORDS = 10, 200  # refused jobs named in an error, and characters of each reason
RARELY, OFTEN = 30.0, 3.0  # seconds between two counts of waiting jobs by a keeper: the lease, within these bounds
RECLAIM = 100  # leases a beat ends per queue, at most


class SqsQueue(BrokerQueue):
    backend: SqsBroker
    _counted_at = float("-inf")
    _found_waiting: Sequence[int] = ()  # by the last count
    _reported_waiting: list[int] = []  # noqa: RUF012 - never changed in place
    _count_errors: dict[str, QdError] = {}  # noqa: RUF012 - never changed in place

    def _waits(self, job: Outgoing) -> bool:
        """A FIFO queue cannot delay a single message."""
        return super()._waits(job) or (job.delay > 0 and is_fifo(job.queue))

    def _send(self, queue: str, jobs: Sequence[tuple[bytes, float]]) -> None:
        """Raises the errors of the jobs that SQS refused, one by one; all others were sent."""
        errors = self.backend.send(queue, jobs) if jobs else []
        refused = [(payload, error) for (payload, _), error in zip(jobs, errors, strict=True) if error is not None]
        if not refused:
            return
        first = refused[0][1]
        if not isinstance(first, NeverTaken) and [error for _, error in refused] == [first] * len(jobs):
            raise first  # for every job, so not because of one
        raise type(first)(refusal(queue, refused, len(jobs)))

    # -- the kept text of a message of a FIFO queue

    def _reserve(self, done: Reserved | None, queues: Sequence[str], shut: Sequence[str]) -> Delivery | None:
        return self._with_text(super()._reserve(done, queues, shut))

    def wait(self, queues: Sequence[str], seconds: float, wake: int) -> None:
        if self._pending is None:
            super().wait(queues, seconds, wake)
            self._pending = self._with_text(self._pending)

    def _with_text(self, delivery: Delivery | None) -> Delivery | None:
        """None if its queue was paused meanwhile: the message stays at the head of its group."""
        if delivery is None or not is_fifo(delivery.queue):
            return delivery
        try:
            names = self._keys(keys.kept_text(delivery.queue, delivery.id), keys.paused(delivery.queue))
            text, paused = self.space.call_many([("GET", names[0]), ("EXISTS", names[1])])
        except BaseException:
            self._leave(delivery)
            raise
        if paused:
            self._paused = frozenset({*(self._paused or ()), delivery.queue})
            self._leave(delivery)
            return None
        return delivery._replace(body=text) if isinstance(text, bytes) else delivery

    def _leave(self, delivery: Delivery) -> None:
        with suppress(ConnectionLost, ServerRefused):
            self.backend.release(delivery, 0)

    def _end_current(self, queue: str, answered: bytes | None) -> None:
        """If the lease was lost, another worker has the message by now, or it is gone."""
        if answered is None:
            self._current = None
        super()._end_current(queue, answered)

    def _delete(self, queue: str, answered: bytes) -> None:
        super()._delete(queue, answered)
        if is_fifo(queue) and answered:
            id = answered.decode().partition(" ")[0]
            with suppress(ConnectionLost, ServerRefused):  # it expires after KEPT seconds
                self.space.call("EXPIRE", *self._keys(keys.kept_text(queue, id)), 0)

    # -- retries, which stay in place

    def release(self, held: Reserved, back: Released, effects: Sequence[Effect] = ()) -> bool:
        if not stays(held.queue, back.delay):
            return super().release(held, back, effects)
        kept = self._keep(held.queue, self.owner, held.member, back, effects)
        self._current = None
        self.backend.keep_reserved(None)
        if kept:
            self._forward(effects)
        return kept

    def give_back(self, queue: str, owner: str, member: bytes, back: Released, effects: Sequence[Effect] = ()) -> bool:
        if not stays(queue, back.delay):
            return super().give_back(queue, owner, member, back, effects)
        return self._keep(queue, owner, member, back, effects)

    def _keep(self, queue: str, owner: str, member: bytes, back: Released, effects: Sequence[Effect]) -> bool:
        """The step, then hide the message for the delay. False: the lease was lost. The delivery's id is read first: only
        this answer can change it."""
        self._note(effects)
        (held,) = self.space.call("HMGET", *self._keys(keys.holding(queue)), owner)
        id = (held or b"").decode().partition(" ")[0]
        more, options = effect_args(effects, self.settings.prefix)
        own = (keys.reserved(queue), keys.owners(queue), keys.CANCEL, keys.kept_text(queue, id))
        names = self._keys(*own, keys.taken(queue), keys.holding(queue), *more)
        reply = script("delivery_keep").call(self.space, names, owner, member, back.text, KEPT, *options)
        if not isinstance(reply, bytes):
            return False
        with suppress(ConnectionLost, ServerRefused):  # if this fails, SQS delivers it when its lease is over
            self.backend.messages.hide(queue, reply.decode().partition(" ")[2], back.delay)
        return True

    def beat(self, queues: Sequence[str], request: BeatRequest) -> BeatReply:
        reply = super().beat(queues, request)
        if reply.broke is not None:
            self._counted_at = float("-inf")  # count with the next beat, so that it shows whether SQS is back
        return reply

    def _waiting(self, queues: Sequence[str], refused: Refused) -> list[int]:
        """Queues that were waiting in two counts in a row: SQS charges for each count, and it is some seconds old."""
        now = time.monotonic()
        if now - self._counted_at >= min(RARELY, max(OFTEN, self.settings.retry_after)):
            errors = dict[str, QdError]()
            found = super()._waiting(queues, errors.__setitem__)
            self._reported_waiting = [place for place in found if place in self._found_waiting]
            self._counted_at, self._found_waiting, self._count_errors = now, found, errors
        for queue, error in self._count_errors.items():
            refused(queue, error)
        return self._reported_waiting

    def _reclaim(self, queues: Sequence[str], until: float) -> int:
        others = [queue for queue in queues if not is_fifo(queue)]
        count = super()._reclaim(others, until) if others else 0
        seconds, micros = self.space.call("TIME")
        now = int(seconds) + int(micros) / 1e6
        if now > until:
            return count
        return count + sum(self._end_leases(queue, now) for queue in queues if is_fifo(queue))

    def _end_leases(self, queue: str, now: float) -> int:
        """Of jobs that stay in place. SQS delivers one without a known owner unchanged."""
        reserved, owners = self._keys(keys.reserved(queue), keys.owners(queue))
        expired = self.space.call("ZRANGEBYSCORE", reserved, "-inf", f"{now:.6f}", "LIMIT", 0, RECLAIM)
        flat = self.space.call("HGETALL", owners) if expired else []
        whose = {member: owner.decode() for owner, member in chunked(flat, 2)}
        for member in expired:
            if member in whose:
                self.give_back(queue, whose[member], member, Released(member))
            else:
                self.space.call("ZREM", reserved, member)
        return len(expired)


def stays(queue: str, delay: float) -> bool:
    """Whether a retry is the same message."""
    return is_fifo(queue) and delay <= LONGEST


def refusal(queue: str, refused: Sequence[tuple[bytes, QdError]], of: int) -> str:
    """One line: which jobs were not sent, and why."""
    few = "; ".join(f"{name_of(payload)}: {cut(str(error), WORDS)}" for payload, error in refused[:FEW])
    more = f"; and {len(refused) - FEW} more" if len(refused) > FEW else ""
    others = ", the others were sent" if len(refused) < of else ""
    return f"SQS did not accept {len(refused)} of {count(of, 'job')} for queue '{queue}'{others}: {few}{more}"


def name_of(payload: bytes) -> str:
    if (known := readable(payload)) is None:
        return f"a payload of {len(payload)} bytes"
    return f"{cut(known.job)} {cut(known.id or known.uuid or '')} ({len(payload)} bytes)"


def open_queue(settings: Settings, at: ConnectionSettings, who: ClientIdentity) -> SqsQueue:
    backend = SqsBroker(SqsUrl(at.url or ""), lease=at.retry_after, prefix=at.prefix)
    return SqsQueue(settings, at, who, backend)
