"""Attempts that another program has made and only the server has counted, in a payload that has no count of its own.

What every program does with a queue whose server keeps jobs and nothing else: send, look, clear. What a worker does
besides is queue.py, and what a keeper does keeping.py.

A queue whose server keeps jobs and nothing else: that one is the `backend`, all else stands in a borrowed keyspace.

    push, later             to the backend; a keyed or unique job, a job of a batch, a tick: to the outbox, and on from there
    turn  backend.take      a job is reserved over there, and the one before deleted
          parcel_turn.lua   the job before is acked here, and the new one leased: owner, counts, mark
          backend.drop      then the one before is deleted over there, where the look has not (one that is slow, or broke)
    ack, release, bury      the step of every connection, with the job's effects, and a note that its parcel is ended; then
                            it is deleted over there. What is put back is a new job, with its counts, in the outbox
    wait                    by the backend

Who has a job in hand is said here, and nowhere else: as long as a keeper renews the lease no other worker runs it, also when
the backend hands it out once more (a connection broke, its server was started anew). A worker that is given such a one puts
it back; one that is given an ended one deletes it. Until the step that answers it, a job stands here with all of its bytes,
deleted over there or not. So a worker may be killed between any two of these calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING

from qd.drivers.base import PRODUCER, STAYS, ClientIdentity
from qd.drivers.broker.base import Broker, Delivery
from qd.drivers.broker.outbox import Outbox, PushedBatches, PushedTicks, digest
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg, Keyspace, script
from qd.drivers.keyspace.queue import DEFAULT, Bounds, KeyspaceQueue
from qd.drivers.keyspace.sending import spoken
from qd.drivers.types import Count, Effect, Gaps, Outgoing, Push, Released, Reserved, Sizes, Turn
from qd.errors import ConnectionLost, Malformed, ServerRefused
from qd.payload.format import read

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings


def counted(parcel: Delivery) -> bytes:
    """The payload as it is leased: with what the server has counted at its end, where it says nothing itself."""
    body = parcel.body
    if not (parcel.attempts or parcel.crashes) or b'"attempts"' in body or not body.rstrip().endswith(b"}"):
        return body
    close = body.rindex(b"}")
    if body[:close].strip() == b"{":
        return body
    crashes = b',"crashes":%d' % parcel.crashes if parcel.crashes else b""
    return body[:close] + b',"attempts":%d' % parcel.attempts + crashes + body[close:]


def uncounted(job: Reserved) -> Reserved:
    """Of what `counted` has changed: so that what stood there before is what was pushed, without those counts."""
    return job._replace(start=job.start - 1, length=job.length + 1, before=b"")


class BorrowedSending(KeyspaceQueue):
    """space: borrowed; prefix: what every name in it begins with."""

    def __init__(
        self,
        settings: ConnectionSettings,
        backend: Broker,
        space: Keyspace,
        prefix: str,
        who: ClientIdentity = PRODUCER,
        *,
        keep: Bounds = DEFAULT,
        max_payload: int = 0,
    ) -> None:
        super().__init__(replace(settings, prefix=prefix), space, who, keep=keep, max_payload=max_payload)
        self.backend = backend
        self.outbox = Outbox(space, prefix, backend)
        self.batches = PushedBatches(self.outbox)
        self.ticks = PushedTicks(self.outbox)

    @property
    def limits(self) -> Gaps:
        return self.backend.limits

    def patience(self, connect: float, answer: float) -> None:
        super().patience(connect, answer)
        self.backend.patience(connect, answer)

    # -- sending

    def push(self, queue: str, payload: bytes) -> None:
        self.post([Outgoing(queue, payload)])

    def later(self, queue: str, payload: bytes, delay: float) -> None:
        self.post([Outgoing(queue, payload, delay)])

    def post(self, jobs: Sequence[Outgoing]) -> list[str | None]:
        """What needs no keyspace goes straight to the server; what that does not take is raised, the first of it. All else
        goes to the outbox, and is sent from there, at the latest by a keeper."""
        queues, found = dict.fromkeys([job.queue for job in jobs]), list[str | None]([None] * len(jobs))
        for queue in queues:
            self.backend.check(queue)
        waits = [place for place, job in enumerate(jobs) if self._waits(job)]
        for queue in queues:
            self._send(queue, [(job.payload, job.delay) for job in jobs if job.queue == queue and not self._waits(job)])
        if waits:
            those = [jobs[place] for place in waits]
            self.outbox.note([job.queue for job in those])
            for place, holder in zip(waits, super().post(those), strict=True):
                found[place] = holder
            self.outbox.try_to_forward(dict.fromkeys([job.queue for job in those if not job.delay]))
        return found

    def _waits(self, job: Outgoing) -> bool:
        return bool(job.lock or job.key) or job.delay > self.backend.longest

    def _send(self, queue: str, jobs: Sequence[tuple[bytes, float]]) -> None:
        for error in self.backend.send(queue, jobs) if jobs else ():
            if error is not None:
                raise error

    def move_keyed(self, queue: str, name: str, delay: float) -> bool:
        moved = super().move_keyed(queue, name, delay)
        if moved and not delay:
            self.outbox.try_to_forward([queue])
        return moved

    # -- looking

    def queues(self) -> Sequence[str]:
        return self.backend.queues()

    def sizes(self, queue: str) -> Sizes:
        """Those over there, and those in the outbox. One that is ended, and reserved over there still, runs nowhere."""
        here, there = super().sizes(queue), self.backend.standing(queue)
        sending, ended = self.space.call_many(
            [("LLEN", *self._keys(keys.sending(queue))), ("ZCARD", *self._keys(keys.ended(queue)))]
        )
        ended = ended if self.backend.counts_ended else 0
        ages = [age for age in (here.oldest_age, there.oldest) if age is not None]
        return Sizes(
            there.ready + here.ready + sending,
            there.delayed + here.delayed,
            max(there.reserved - ended, here.reserved),
            here.failed,
            max(ages) if ages else None,
        )

    def clear(self, queue: str) -> int:
        return super().clear(queue) + self.backend.clear(queue, self._forget)

    def _forget(self, payload: bytes) -> None:
        """The lock of a job that is cleared."""
        if b'"qd":{' not in payload:
            return
        with suppress(Malformed):
            known = read(payload)
            if known.qd is not None and known.qd.unique is not None and known.uuid:
                self.free(known.qd.unique, known.uuid)

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        with self.space.within(seconds), self.backend.within(seconds):
            yield


TURNED = (
    *(keys.ready, keys.delayed, keys.reserved, keys.owners, keys.taken, keys.holding, keys.ended, keys.paused),
    *(keys.failed, keys.failed_at, keys.elsewhere, keys.resent, keys.sending),
)  # of each queue, as parcel_turn.lua has them
PARCEL = (keys.taken, keys.holding, keys.ended)
OWN = ("parcel_turn", "parcel_ack", "parcel_release", "parcel_bury", "outbox", "outbox_leave", "outbox_waiting")
TRIES = 100  # parcels a turn is given at most that are none for this worker
AGAIN = 1.0  # seconds after which one that another worker has in hand may be handed out once more
NONE_PAUSED = frozenset[str]()
OBJECT_JOB = b"CallQueuedHandler@call"
LOOKS_AWAY = 5  # seconds, more than parcel_turn.lua says
LOOKS, PAUSE = 10, 0.02  # looks, and seconds between two, for what goes through an outbox right now
SURELY = 0.5  # seconds for which a parcel is certainly still reserved: the shortest time of any server is one second
SOON = 0.05  # seconds a worker waits at least where something in an outbox is due


class BrokerQueue(BorrowedSending):
    """Without a keeper's part: borrowed/keeping.py."""

    answers = (*BorrowedSending.answers, *OWN)
    stays = STAYS
    _parcel: Delivery | None = None  # reserved over there, and not yet leased here
    _parcel_at = 0.0  # when that was, or when the server confirmed it
    _hand: Delivery | None = None  # in which the job came that this worker has in hand,
    _mark = ""  # reserved under this one
    _sends = False  # something stood in an outbox at the last look
    _paused: frozenset[str] | None = None  # those that the last look found; None: nobody has looked

    @cached_property
    def _turned(self) -> dict[tuple[str, ...], tuple[str, ...]]:
        """The names of keys of a turn, by its queues."""
        return {}

    @cached_property
    def _fixed(self) -> list[bytes]:
        """The arguments of a turn that stay the same."""
        (locks,) = self._keys(keys.unique(""))
        fixed = (self.owner, self.settings.retry_after, *self.keep.args, self.longest, locks)
        return [str(each).encode() for each in fixed]

    def turn(self, done: Reserved | None, queues: Sequence[str], shut: Sequence[str] = ()) -> Turn:
        acked, malformed, again, to_ack = None, 0, 0, done is not None
        self._confirm_parcel()
        slow = to_ack and self.backend.slow  # else a worker that is killed as it looks has not acked
        if slow or self._paused is None or self._paused:  # asked about again before anything is reserved
            acked, done = self._step(done, queues, None).acked, None
        for _ in range(TRIES):
            try:
                parcel = self._parcel or self._reserved(self._look(done, queues, shut))
            except (ConnectionLost, ServerRefused) as error:
                if done is not None:  # acked all the same: its worker may be killed before that server is back
                    self._step(done, queues, None)
                if not to_ack:
                    raise
                raise ConnectionLost(str(error)) from None  # and not "nothing was done"
            step = self._step(done, queues, parcel)
            if done is not None:
                acked, done = step.acked, None
            malformed += step.malformed
            if step.reserved is not None:
                break
            if parcel is None:  # what is just being sent on is no reason to call the queues empty
                if not self._sends or again == LOOKS:
                    break
                again += 1
                time.sleep(PAUSE)
        closed = {*(self._paused or ()), *shut}
        paused = tuple([queue for queue in queues if queue in closed]) if closed else ()
        return Turn(acked, step.reserved, step.next_due, paused, malformed)

    def _reserved(self, parcel: Delivery | None) -> Delivery | None:
        self._parcel, self._parcel_at = parcel, time.monotonic()
        return parcel

    def _confirm_parcel(self) -> None:
        """If the control connection was away, a parcel may have waited here for longer than its server reserves it. Then
        another worker may have run its job by now, and nothing there or here would say so."""
        parcel = self._parcel
        if parcel is None or time.monotonic() - self._parcel_at <= SURELY:
            return
        kept = False
        with suppress(ConnectionLost, ServerRefused):
            kept = self.backend.kept(parcel)
        self._reserved(parcel if kept else None)

    def _look(self, done: Reserved | None, queues: Sequence[str], shut: Sequence[str]) -> Delivery | None:
        """One that is paused after this is found by the step. What is done is deleted over there with the same call: it
        stands here until that step, and runs once more from here if that does not come to pass."""
        closed = {*(self._paused or ()), *shut}
        open_ = [queue for queue in queues if queue not in closed] if closed else queues
        if not open_:
            return None
        if done is not None and self._hand is not None and self._mark == done.mark:
            self.backend.drop(self._hand.queue, self._hand.id, self._hand.handle, soon=True)
        return self.backend.take(open_, 0.0)

    def _step(self, done: Reserved | None, queues: Sequence[str], parcel: Delivery | None) -> Turn:
        """The call of parcel_turn.lua, and what follows of it over there. Which queues are paused, `_paused` knows then."""
        self.turns += 1
        names = self._turned.get(tuple(queues)) or self._turned_of(tuple(queues))
        leased = counted(parcel) if parcel is not None else b""
        gone = self.backend.gone()
        deleted = self._of_hand(done, gone) if done is not None else ""
        args = self._args(done, deleted, queues, parcel, leased, gone)
        reply = script("parcel_turn").call(self.space, names, *args)
        acked, its, became, wait, outbox, member, mark, start, length, before, *paused = reply
        if acked == -2:
            raise ConnectionLost("the server has run a call of this worker that was given up before")
        self._paused = frozenset([queues[place - 1] for place in paused]) if paused else NONE_PAUSED
        if parcel is not None:
            self._parcel = None
        if deleted:
            self._hand = None
        elif done is not None:
            self._over(done.queue, its if acked == 1 else 0)
        job = None
        if parcel is not None and became == b"leased":
            job = Reserved(parcel.queue, member, mark.decode(), start, length, before)
            if leased is not parcel.body:
                job = uncounted(job)
            self._hand, self._mark = parcel, job.mark
            self.backend.hold(parcel)
        else:
            self.backend.hold(None)
            if parcel is not None:
                self._pass_on(parcel, became)
        full = [queue for place in outbox.split() if (queue := queues[int(place) - 1]) not in self._paused]
        self._sends = bool(full)
        if full:
            self.outbox.try_to_forward(full)
        due = None if wait < 0 else max(SOON, wait / 1000)
        return Turn(None if acked < 0 else acked == 1, job, due, (), int(became == b"malformed"))

    def _turned_of(self, queues: tuple[str, ...]) -> tuple[str, ...]:
        names = self._turned[queues] = tuple(self._keys(*[kind(queue) for queue in queues for kind in TURNED]))
        return names

    def _of_hand(self, done: Reserved, gone: list[tuple[str, str]]) -> str:
        """The id of the parcel that `done` came in, when it is deleted over there, and taken out of `gone`. Else ""."""
        hand = self._hand
        if hand is None or self._mark != done.mark or (hand.queue, hand.id) not in gone:
            return ""
        gone.remove((hand.queue, hand.id))
        return hand.id

    def _args(
        self,
        done: Reserved | None,
        deleted: str,
        queues: Sequence[str],
        parcel: Delivery | None,
        leased: bytes,
        gone: Sequence[tuple[str, str]],
    ) -> list[Arg]:
        args: list[Arg] = [*self._fixed, f"{self.base}{self.turns}"]
        args += (0, "", "") if done is None else (queues.index(done.queue) + 1, done.member, deleted)
        if parcel is None:
            args += (0, "", "", "", "")
        else:
            args += (queues.index(parcel.queue) + 1, parcel.id, parcel.handle, leased, digest(parcel.body))
        for queue, id in gone:
            if queue in queues:
                args += (queues.index(queue) + 1, id)
        return args

    def _pass_on(self, parcel: Delivery, became: bytes) -> None:
        """One that is none for this worker."""
        with suppress(ConnectionLost, ServerRefused):  # who is handed it out does the same
            if became in (b"held", b"back"):
                self.backend.put_back(parcel, AGAIN if became == b"held" else 0.0)
            else:
                self.backend.drop(parcel.queue, parcel.id, parcel.handle)

    def _over(self, queue: str, its: bytes | int) -> None:
        """The job in hand is answered. its: id and handle of its parcel; 0: its lease was lost, and it stays where it is."""
        hand, self._hand = self._hand, None
        self.backend.hold(None)
        if isinstance(its, bytes):
            id, _, handle = its.decode().partition(" ")
            if id:
                with suppress(ConnectionLost, ServerRefused):  # who is handed it out deletes it
                    self.backend.drop(queue, id, handle)
        elif hand is not None:
            with suppress(ConnectionLost, ServerRefused):
                self.backend.put_back(hand, 0.0)

    def held(self, queues: Sequence[str]) -> Reserved | None:
        """Of a turn whose reply was lost, the parcel is in hand over there as well."""
        found = super().held(queues)
        if found is not None and self._parcel is not None and self._parcel.queue == found.queue:
            its = self.space.call("HGET", *self._keys(keys.holding(found.queue)), self.owner) or b""
            if its.decode().partition(" ")[0] == self._parcel.id:
                self._hand, self._mark, self._parcel = self._parcel, found.mark, None
                self.backend.hold(self._hand)
        return found

    def wait(self, queues: Sequence[str], seconds: float, wake: int) -> None:
        if self._parcel is None:
            self._reserved(self.backend.take(queues, seconds, wake))

    # -- answers: the steps of every connection, and the end of the parcel

    def _answer(
        self, name: str, queue: str, names: Sequence[str], args: Sequence[Arg], effects: Sequence[Effect]
    ) -> bytes | int:
        """Returns 0 when the lease was lost, else id and handle of the parcel."""
        self._note(effects)
        more, said = spoken(effects, self.settings.prefix)
        beside = [kind(queue) for kind in PARCEL]
        its: bytes | int = script(name).call(self.space, self._keys(*names, *more, *beside), *args, *said)
        return its

    def _note(self, effects: Sequence[Effect]) -> None:
        self.outbox.note([effect.queue for effect in effects if isinstance(effect, Push)])

    def _send_on(self, effects: Sequence[Effect]) -> None:
        """What they have pushed; callbacks of a batch may be anywhere."""
        with suppress(ConnectionLost, ServerRefused):
            if any(isinstance(effect, Count) for effect in effects):
                self.outbox.forward_all(self.outbox.known(), lambda *_: None)
            else:
                self.outbox.try_to_forward([effect.queue for effect in effects if isinstance(effect, Push)])

    def ack(self, done: Reserved, effects: Sequence[Effect] = ()) -> bool:
        names = (keys.reserved(done.queue), keys.owners(done.queue))
        its = self._answer("parcel_ack", done.queue, names, (self.owner, done.member), effects)
        self._over(done.queue, its)
        self._send_on(effects)
        return its != 0

    def release(self, held: Reserved, back: Released, effects: Sequence[Effect] = ()) -> bool:
        its = self._put_back(held.queue, self.owner, held.member, back, effects)
        self._over(held.queue, its)
        if its != 0 and not back.delay:
            self.outbox.try_to_forward([held.queue])
        elif its != 0 and OBJECT_JOB in back.text:
            self._leave_to_php(held.queue, back.delay)
        self._send_on(effects)
        return its != 0

    def _leave_to_php(self, queue: str, delay: float) -> None:
        """When it stands there again, those who wait here would be faster each time than a PHP worker who looks every few
        seconds: they look away then."""
        now = float(self.space.call("TIME")[0])
        self.space.call("SET", *self._keys(keys.elsewhere(queue)), now + delay, "EX", ceil(delay) + LOOKS_AWAY)

    def _put_back(
        self, queue: str, owner: str, member: bytes, back: Released, effects: Sequence[Effect]
    ) -> bytes | int:
        self.outbox.note([queue])
        kinds = (keys.ready, keys.reserved, keys.delayed, keys.notify, keys.owners)
        names = [*[kind(queue) for kind in kinds], keys.CANCEL]
        args = (owner, member, back.text, back.delay, int(back.head))
        return self._answer("parcel_release", queue, names, args, effects)

    def bury(self, held: Reserved, record: bytes, raw: bytes, effects: Sequence[Effect] = ()) -> bool:
        kinds = (keys.reserved, keys.owners, keys.failed, keys.failed_at)
        names = [kind(held.queue) for kind in kinds]
        args = (self.owner, held.member, held.mark, record, raw, *self.keep.args)
        its = self._answer("parcel_bury", held.queue, names, args, effects)
        self._over(held.queue, its)
        self._send_on(effects)
        return its != 0

    def beats(self, about: Callable[[float], None]) -> None:
        super().beats(about)
        self.backend.on_progress(about)

    def close(self) -> None:
        """What was deleted over there need not be known here any more; what is still on its way, a keeper looks after."""
        with suppress(ConnectionLost, ServerRefused):
            self._forget_gone(wait=True)
        self._parcel = self._hand = None
        self.backend.close()
        self.space.close()

    def _forget_gone(self, wait: bool) -> None:
        gone = self.backend.gone(wait)
        if gone:
            self.space.call_many([("ZREM", *self._keys(keys.ended(queue)), id) for queue, id in gone])
