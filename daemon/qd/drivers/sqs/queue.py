"""Queues of SQS: those of drivers/broker, and what a FIFO queue needs beside.

A FIFO queue gives out the jobs of a group one after the other, so one that is tried again must not go to the end of it as a
new message. There the message stays, is hidden for the delay, and holds its group back meanwhile; the text of the job, with
its counts, is kept beside it by the message's id (parcel_keep.lua) and stands for its body the next time.

How the manager opens a connection to SQS.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from qd.drivers.broker.base import Delivery
from qd.drivers.broker.keeper import BorrowedKeeping, Refused, open_borrowed
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import script
from qd.drivers.keyspace.sending import spoken
from qd.drivers.sqs.broker import SqsBackend
from qd.drivers.types import BeatReply, BeatRequest, Effect, Outgoing, Released, Reserved
from qd.drivers.urls import SqsUrl, is_fifo
from qd.errors import ConnectionLost, Malformed, NeverTaken, QdError, ServerRefused
from qd.log import cut
from qd.payload.format import read

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings, Settings
    from qd.drivers.base import ClientIdentity


KEPT = 15 * 86400  # seconds for which SQS may keep a message at most, and a day
LONGEST = 6 * 3600.0  # seconds that a message is hidden for: SQS takes twelve hours, those of the attempt included
FEW, WORDS = 10, 200  # jobs that are named, and letters of why
LOOK, SOON = 30.0, 3.0  # seconds between two looks of a keeper at what waits, as often as leases run out
RECLAIM = 100  # leases that a beat ends in a queue at most


class SqsQueue(BorrowedKeeping):
    backend: SqsBackend
    _looked_for_waiting = float("-inf")
    _found_waiting: Sequence[int] = ()
    _said_waiting: list[int] = []  # noqa: RUF012 - never changed in place
    _wrong: dict[str, QdError] = {}  # noqa: RUF012 - as that

    def _waits(self, job: Outgoing) -> bool:
        """A FIFO queue knows no delay of a single message."""
        return super()._waits(job) or (job.delay > 0 and is_fifo(job.queue))

    def _send(self, queue: str, jobs: Sequence[tuple[bytes, float]]) -> None:
        """Raises what SQS says of those that it did not take, one by one; all others were sent."""
        said = self.backend.send(queue, jobs) if jobs else []
        refused = [(payload, error) for (payload, _), error in zip(jobs, said, strict=True) if error is not None]
        if not refused:
            return
        why = refused[0][1]
        if not isinstance(why, NeverTaken) and [error for _, error in refused] == [why] * len(jobs):
            raise why  # whatever the jobs are
        raise type(why)(told(queue, refused, len(jobs)))

    # -- a message of a FIFO queue with the text that is kept for it

    def _look(self, done: Reserved | None, queues: Sequence[str], shut: Sequence[str]) -> Delivery | None:
        return self._with_text(super()._look(done, queues, shut))

    def wait(self, queues: Sequence[str], seconds: float, wake: int) -> None:
        if self._parcel is None:
            super().wait(queues, seconds, wake)
            self._parcel = self._with_text(self._parcel)

    def _with_text(self, parcel: Delivery | None) -> Delivery | None:
        """None: its queue was paused meanwhile, and it stays where it is, before the others of its group."""
        if parcel is None or not is_fifo(parcel.queue):
            return parcel
        try:
            names = self._keys(keys.kept_text(parcel.queue, parcel.id), keys.paused(parcel.queue))
            text, paused = self.space.call_many([("GET", names[0]), ("EXISTS", names[1])])
        except BaseException:
            self._leave(parcel)
            raise
        if paused:
            self._paused = frozenset({*(self._paused or ()), parcel.queue})
            self._leave(parcel)
            return None
        return parcel._replace(body=text) if isinstance(text, bytes) else parcel

    def _leave(self, parcel: Delivery) -> None:
        with suppress(ConnectionLost, ServerRefused):
            self.backend.put_back(parcel, 0)

    def _over(self, queue: str, its: bytes | int) -> None:
        """Where the lease was lost, the message is somebody else's by now, or gone."""
        if not isinstance(its, bytes):
            self._hand = None
        super()._over(queue, its)
        self._forget_text(queue, its)

    def _drop(self, queue: str, its: bytes) -> None:
        super()._drop(queue, its)
        self._forget_text(queue, its)

    def _forget_text(self, queue: str, its: bytes | int) -> None:
        if is_fifo(queue) and isinstance(its, bytes) and its:
            id = its.decode().partition(" ")[0]
            with suppress(ConnectionLost, ServerRefused):  # it is gone after some days
                self.space.call("EXPIRE", *self._keys(keys.kept_text(queue, id)), 0)

    # -- what is put back

    def release(self, held: Reserved, back: Released, effects: Sequence[Effect] = ()) -> bool:
        if not stays(held.queue, back.delay):
            return super().release(held, back, effects)
        its = self._keep(held.queue, self.owner, held.member, back.text, effects)
        self._hand = None
        self.backend.hold(None)
        if isinstance(its, bytes):
            self._show(held.queue, its, back.delay)
            self._send_on(effects)
        return isinstance(its, bytes)

    def give_back(self, queue: str, owner: str, member: bytes, back: Released, effects: Sequence[Effect] = ()) -> bool:
        if not stays(queue, back.delay):
            return super().give_back(queue, owner, member, back, effects)
        its = self._keep(queue, owner, member, back.text, effects)
        if isinstance(its, bytes):
            self._show(queue, its, back.delay)
        return isinstance(its, bytes)

    def _keep(self, queue: str, owner: str, member: bytes, text: bytes, effects: Sequence[Effect]) -> bytes | int:
        """The step. Who holds it is asked first: nobody else changes that."""
        self._note(effects)
        (held,) = self.space.call("HMGET", *self._keys(keys.holding(queue)), owner)
        id = (held or b"").decode().partition(" ")[0]
        more, said = spoken(effects, self.settings.prefix)
        own = (keys.reserved(queue), keys.owners(queue), keys.CANCEL, keys.kept_text(queue, id))
        names = self._keys(*own, keys.taken(queue), keys.holding(queue), *more)
        its: bytes | int = script("parcel_keep").call(self.space, names, owner, member, text, KEPT, *said)
        return its

    def _show(self, queue: str, its: bytes, delay: float) -> None:
        """Should it fail, SQS shows it when its lease is over."""
        handle = its.decode().partition(" ")[2]
        with suppress(ConnectionLost, ServerRefused):
            self.backend.show(queue, handle, delay)

    def beat(self, queues: Sequence[str], asked: BeatRequest) -> BeatReply:
        answer = super().beat(queues, asked)
        if answer.broke is not None:
            self._looked_for_waiting = float("-inf")  # a beat that asks SQS nothing does not tell that it is back
        return answer

    def _waiting(self, queues: Sequence[str], refused: Refused) -> list[int]:
        """Those that were found so twice running: each look is paid for, and what SQS counts is some seconds old."""
        at = time.monotonic()
        if at - self._looked_for_waiting >= min(LOOK, max(SOON, self.settings.retry_after)):
            wrong = dict[str, QdError]()
            found, before = super()._waiting(queues, wrong.__setitem__), self._found_waiting
            self._looked_for_waiting, self._found_waiting, self._wrong = at, found, wrong
            self._said_waiting = [place for place in found if place in before]
        for queue, error in self._wrong.items():
            refused(queue, error)
        return self._said_waiting

    def _reclaim(self, queues: Sequence[str], until: float) -> int:
        others = [queue for queue in queues if not is_fifo(queue)]
        count = super()._reclaim(others, until) if others else 0
        seconds, micros = self.space.call("TIME")
        now = int(seconds) + int(micros) / 1e6
        if now > until:
            return count
        return count + sum(self._end_leases(queue, now) for queue in queues if is_fifo(queue))

    def _end_leases(self, queue: str, now: float) -> int:
        """Of jobs that stay where they are. One whose owner is not known is given out by SQS as it was."""
        reserved, owners = self._keys(keys.reserved(queue), keys.owners(queue))
        expired = self.space.call("ZRANGEBYSCORE", reserved, "-inf", f"{now:.6f}", "LIMIT", 0, RECLAIM)
        flat = self.space.call("HGETALL", owners) if expired else []
        whose = {flat[n + 1]: flat[n].decode() for n in range(0, len(flat), 2)}
        for member in expired:
            if member in whose:
                self.give_back(queue, whose[member], member, Released(member))
            else:
                self.space.call("ZREM", reserved, member)
        return len(expired)


def stays(queue: str, delay: float) -> bool:
    return is_fifo(queue) and delay <= LONGEST


def told(queue: str, refused: Sequence[tuple[bytes, QdError]], of: int) -> str:
    """Which were not sent and why, as far as a line goes."""
    few = "; ".join(f"{named(payload)}: {cut(str(why), WORDS)}" for payload, why in refused[:FEW])
    more = f"; and {len(refused) - FEW} more" if len(refused) > FEW else ""
    others = ", the others were sent" if len(refused) < of else ""
    return f"SQS has not taken {len(refused)} of {of} jobs for queue '{queue}'{others}: {few}{more}"


def named(payload: bytes) -> str:
    try:
        known = read(payload)
    except Malformed:
        return f"a payload of {len(payload)} bytes"
    return f"{cut(known.job)} {cut(known.id or known.uuid or '')} ({len(payload)} bytes)"


def open_queue(settings: Settings, at: ConnectionSettings, who: ClientIdentity) -> BorrowedKeeping:
    backend = SqsBackend(SqsUrl(at.url or ""), lease=at.retry_after, prefix=at.prefix)
    return open_borrowed(settings, at, who, backend, SqsQueue)
