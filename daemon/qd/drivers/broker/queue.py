"""A queue whose broker keeps the jobs (the `backend`), while everything else is in a borrowed keyspace.

    push, later               to the broker; a keyed or unique job, a batch's job, a tick: to the outbox, and from there on
    turn  backend.reserve     a job is reserved at the broker, and the previous one deleted
          delivery_turn.lua   the previous job is acked here, and the new one leased: owner, counts, mark
          backend.delete      the previous one is deleted at the broker, unless the reserve did it (slow, or it failed)
    ack, release, bury        the step of every connection, with the job's effects; it also notes that the delivery has
                              ended. Then the delivery is deleted. A released job is a new job in the outbox, with its counts
    wait                      at the broker
    beat  beat.lua            renews leases, promotes due jobs in the outbox, reports cancelled jobs and stamps
          delivery_reclaim    moves jobs whose lease ran out to the outbox; their deliveries end and are deleted
          outbox              sends every outbox that is known
          ended               checks deliveries whose worker was killed before it had deleted them

Only the keyspace says which worker has a job: as long as a keeper renews the lease, no other worker runs it, even if the
broker delivers it again (a connection broke, the server restarted). A worker that is given such a delivery releases it, and
deletes one that has ended. Until the step that answers a job, all of its bytes are here, whether or not the broker still has
it. So a worker may be killed between any two of these calls.

The states of a delivery, in one worker:

    reserve, wait -> _pending    reserved at the broker, not leased here; kept over a call that broke
    _pending -> _current         the step leased it, under the mark `_current_mark`
    _pending -> None             the step refused it (released or deleted at the broker), or the broker no longer keeps it
    _current -> None             the step that answers its job: deleted at the broker; if the lease was lost, released there

A turn that acks and reserves has both for a moment: `_current` is the previous job, `_pending` the next. `_paused` and
`_outbox_waits` are what the last step saw of the queues: the next turn reserves from queues that are not paused, and checks
again if jobs were just being sent from an outbox.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from qd.drivers.base import STAYS, ClientIdentity
from qd.drivers.broker.base import Broker, Delivery, LazyKeyspace
from qd.drivers.broker.outbox import Outbox, OutboxBatches, OutboxTicks, digest
from qd.drivers.connections import borrowed_prefix, needs_memory, open_memory
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg, Keyspace, script
from qd.drivers.keyspace.queue import ANSWER_KEYS, KeyspaceQueue, beat, bounds_of, release_args
from qd.drivers.keyspace.sending import effect_args
from qd.drivers.types import Count, Effect, Outgoing, Push, Released, Reserved, Sizes, Turn, Unread
from qd.errors import ConfigError, ConnectionLost, QdError, ServerRefused
from qd.payload.format import readable

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings, Settings
    from qd.drivers.types import BeatReply, BeatRequest


TURN_KEYS = (
    *(keys.ready, keys.delayed, keys.reserved, keys.owners, keys.taken, keys.holding, keys.ended, keys.paused),
    *(keys.failed, keys.failed_at, keys.elsewhere, keys.resent, keys.sending),
)  # of each queue, in the order of delivery_turn.lua
DELIVERY_KEYS = (keys.taken, keys.holding, keys.ended)
SCRIPTS = (
    *("delivery_turn", "delivery_ack", "delivery_release", "delivery_bury"),
    *("outbox", "outbox_leave", "outbox_waiting"),
)
TRIES = 100  # deliveries a turn accepts at most that this worker may not run
AGAIN = 1.0  # seconds after which the broker may deliver a job again that another worker is running
NONE_PAUSED = frozenset[str]()
OBJECT_JOB = b"CallQueuedHandler@call"
YIELD_SECONDS = 5  # seconds an expiry of `elsewhere` is later than the due time; more than delivery_turn.lua uses
CHECKS, PAUSE = 10, 0.02  # checks, and seconds between two, while an outbox is being sent
SURELY = 0.5  # seconds for which a delivery is certainly still reserved: the shortest lease of any broker is one second
SOON = 0.05  # seconds a worker waits at least if something in an outbox is due
RECLAIMED = (keys.ready, keys.reserved, keys.notify, keys.owners, keys.taken, keys.holding, keys.ended)
CHECK_ENDED = 10.0  # seconds between two checks of ended deliveries; a worker deletes its own sooner
ENDED = 100  # ended deliveries that one check queries
LONGEST = 15 * 86400.0  # seconds for which a broker that cannot be queried may still deliver an ended job
Refused = Callable[[str, QdError], object]  # called with a queue that the broker refused


class TurnReply(NamedTuple):
    """The reply of delivery_turn.lua."""

    acked: int  # 1, or 0: the lease was lost, -1: nothing to ack, -2: this worker holds another job
    answered: bytes  # "<id> <handle>" of the delivery that was acked, or b""
    became: bytes  # what became of the new delivery: leased, held, back, ended, dropped, malformed, parked, none
    next_due: int  # ms until the next delayed job in an outbox, or -1
    outboxes: bytes  # places of queues with something to send, from 1
    member: bytes  # of a malformed delivery: the reason
    mark: bytes  # of a malformed delivery: the id of its record
    start: int
    length: int
    before: bytes
    paused: Sequence[int]  # places of paused queues, from 1


class BrokerQueue(KeyspaceQueue):
    """A KeeperConnector. backend: the broker."""

    answers = (*KeyspaceQueue.answers, *SCRIPTS)
    stays = STAYS
    _pending: Delivery | None = None
    _pending_at = 0.0  # when it was reserved, or when the broker last confirmed it
    _current: Delivery | None = None
    _current_mark = ""
    _outbox_waits = False  # whether the last step saw something to send in an outbox
    _paused: frozenset[str] | None = None  # queues that the last step saw paused; None before the first step
    _ended_checked_at = 0.0

    def __init__(self, settings: Settings, at: ConnectionSettings, who: ClientIdentity, backend: Broker) -> None:
        """Raises ConfigError for a worker or keeper if there is no keyspace to borrow; producers can still push."""
        if who.token:
            needs_memory(settings, at.name)
            for name in settings.work.queues if at.name == settings.work.connection else ():
                try:
                    backend.check(name)
                except ServerRefused as error:
                    raise ConfigError(f"connection '{at.name}': {error}") from None
        self._borrowed = LazyKeyspace(
            lambda: open_memory(settings, at.name, title=who.title, patience=who.patience)[0],
            settings.connection(settings.control).driver if settings.control else "",
        )
        space, prefix = cast(Keyspace, self._borrowed), borrowed_prefix(settings, at.name)
        keep = bounds_of(settings.failed)
        super().__init__(replace(at, prefix=prefix), space, who, keep=keep, max_payload=settings.max_payload)
        self.backend, self.limits = backend, backend.limits
        self.outbox = Outbox(space, prefix, backend)
        self.batches = OutboxBatches(self.outbox)
        self.ticks = OutboxTicks(self.outbox)
        self._turn_names: dict[tuple[str, ...], tuple[str, ...]] = {}  # queues -> keys of a turn
        self.patience(who.patience, who.patience)

    def patience(self, connect: float, answer: float) -> None:
        super().patience(connect, answer)
        self.backend.connection.patience(connect, answer)

    # -- sending

    def push(self, queue: str, payload: bytes) -> None:
        self.post([Outgoing(queue, payload)])

    def later(self, queue: str, payload: bytes, delay: float) -> None:
        self.post([Outgoing(queue, payload, delay)])

    def post(self, jobs: Sequence[Outgoing]) -> list[str | None]:
        """Jobs that need no keyspace go straight to the broker, and the first error is raised. The others go to the outbox,
        and are sent from there, at the latest by a keeper."""
        queues, found = dict.fromkeys([job.queue for job in jobs]), list[str | None]([None] * len(jobs))
        for queue in queues:
            self.backend.check(queue)
        waits = [place for place, job in enumerate(jobs) if self._waits(job)]
        for queue in queues:
            self._send(queue, [(job.payload, job.delay) for job in jobs if job.queue == queue and not self._waits(job)])
        if waits:
            waiting = [jobs[place] for place in waits]
            self.outbox.note([job.queue for job in waiting])
            for place, holder in zip(waits, super().post(waiting), strict=True):
                found[place] = holder
            self.outbox.try_to_forward(dict.fromkeys([job.queue for job in waiting if not job.delay]))
        return found

    def _waits(self, job: Outgoing) -> bool:
        """Whether it goes through the outbox."""
        return bool(job.lock or job.key) or job.delay > self.backend.max_delay

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
        """Jobs at the broker and in the outbox. A job that has ended is not running, even if the broker still has it
        reserved."""
        here, there = super().sizes(queue), self.backend.counts(queue)
        sending, ended = self.space.call_many(
            [("LLEN", *self._keys(keys.sending(queue))), ("ZCARD", *self._keys(keys.ended(queue)))]
        )
        ages = [age for age in (here.oldest_age, there.oldest) if age is not None]
        return Sizes(
            there.ready + here.ready + sending,
            there.delayed + here.delayed,
            max(there.reserved - (ended if self.backend.counts_ended else 0), here.reserved),
            here.failed,
            max(ages, default=None),
        )

    def clear(self, queue: str) -> int:
        return super().clear(queue) + self.backend.clear(queue, self._free_lock)

    def _free_lock(self, payload: bytes) -> None:
        known = readable(payload) if b'"qd":{' in payload else None
        if known is not None and known.qd is not None and known.qd.unique is not None and known.uuid:
            self.free(known.qd.unique, known.uuid)

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        with self.space.within(seconds), self.backend.connection.within(seconds):
            yield

    # -- a worker's turn

    @cached_property
    def _fixed_args(self) -> list[bytes]:
        """The arguments that are the same for every turn."""
        (locks,) = self._keys(keys.unique(""))
        fixed = (self.owner, self.settings.retry_after, *self.keep.args, self.longest, locks)
        return [str(each).encode() for each in fixed]

    def turn(self, done: Reserved | None, queues: Sequence[str], shut: Sequence[str] = ()) -> Turn:
        acked, malformed, checks, to_ack = None, list[Unread](), 0, done is not None
        self._confirm_pending()
        slow = to_ack and self.backend.slow  # else the job is not acked if the worker is killed while it reserves
        if slow or self._paused is None or self._paused:  # refresh what is paused before anything is reserved
            acked, done = self._step(done, queues, None).acked, None
        for _ in range(TRIES):
            try:
                delivery = self._pending or self._set_pending(self._reserve(done, queues, shut))
            except (ConnectionLost, ServerRefused) as error:
                if done is not None:  # ack now: this worker may be killed before the broker is back
                    self._step(done, queues, None)
                if not to_ack:
                    raise
                raise ConnectionLost(str(error)) from None  # not an error that means "nothing was done"
            step = self._step(done, queues, delivery)
            if done is not None:
                acked, done = step.acked, None
            malformed += step.malformed
            if step.reserved is not None:
                break
            if delivery is None:  # jobs that are being sent right now: the queues are not empty
                if not self._outbox_waits or checks == CHECKS:
                    break
                checks += 1
                time.sleep(PAUSE)
        closed = {*(self._paused or ()), *shut}
        paused = tuple([queue for queue in queues if queue in closed]) if closed else ()
        return Turn(acked, step.reserved, step.next_due, paused, tuple(malformed))

    def _set_pending(self, delivery: Delivery | None) -> Delivery | None:
        self._pending, self._pending_at = delivery, time.monotonic()
        return delivery

    def _confirm_pending(self) -> None:
        """If the control connection was unreachable, a delivery may have been pending for longer than the broker reserves
        it. Another worker may have run its job since, without a trace here or at the broker."""
        delivery = self._pending
        if delivery is None or time.monotonic() - self._pending_at <= SURELY:
            return
        kept = False
        with suppress(ConnectionLost, ServerRefused):
            kept = self.backend.extend(delivery)
        self._set_pending(delivery if kept else None)

    def _reserve(self, done: Reserved | None, queues: Sequence[str], shut: Sequence[str]) -> Delivery | None:
        """The step detects a queue that is paused after this. The same call deletes the current delivery at the broker: its
        job is kept here until that step, and runs again from here if the step fails."""
        closed = {*(self._paused or ()), *shut}
        open_ = [queue for queue in queues if queue not in closed] if closed else queues
        if not open_:
            return None
        current = self._current
        if done is not None and current is not None and self._current_mark == done.mark:
            self.backend.delete(current.queue, current.id, current.handle, soon=True)
        return self.backend.reserve(open_, 0.0)

    def _step(self, done: Reserved | None, queues: Sequence[str], delivery: Delivery | None) -> Turn:
        """Run delivery_turn.lua, and do at the broker what follows from its reply. Sets `_paused`."""
        self.turns += 1
        at = tuple(queues)
        names = self._turn_names.get(at)
        if names is None:
            names = self._turn_names[at] = tuple(self._keys(*[kind(queue) for queue in queues for kind in TURN_KEYS]))
        leased = counted(delivery) if delivery is not None else b""
        gone = self.backend.deleted()
        acked_id = self._take_deleted(done, gone) if done is not None else ""
        args = self._args(done, acked_id, queues, delivery, leased, gone)
        raw: list[Any] = script("delivery_turn").call(self.space, names, *args)
        reply = TurnReply._make([*raw[:10], raw[10:]])
        if reply.acked == -2:
            raise ConnectionLost("the server executed a call this worker had already abandoned; reconnecting")
        self._paused = frozenset([queues[place - 1] for place in reply.paused]) if reply.paused else NONE_PAUSED
        if delivery is not None:
            self._pending = None
        if acked_id:
            self._current = None
        elif done is not None:
            self._end_current(done.queue, reply.answered if reply.acked == 1 else None)
        job = None
        if delivery is not None and reply.became == b"leased":
            mark = reply.mark.decode()
            job = Reserved(delivery.queue, reply.member, mark, reply.start, reply.length, reply.before)
            if leased is not delivery.body:
                job = uncounted(job)
            self._current, self._current_mark = delivery, mark
            self.backend.keep_reserved(delivery)
        else:
            self.backend.keep_reserved(None)
            if delivery is not None:
                self._refuse(delivery, reply.became)
        full = [queue for place in reply.outboxes.split() if (queue := queues[int(place) - 1]) not in self._paused]
        self._outbox_waits = bool(full)
        if full:
            self.outbox.try_to_forward(full)
        due = None if reply.next_due < 0 else max(SOON, reply.next_due / 1000)
        malformed = list[Unread]()
        if delivery is not None and reply.became == b"malformed":
            malformed.append(Unread(delivery.queue, reply.mark.decode(), reply.member.decode()))
        return Turn(None if reply.acked < 0 else reply.acked == 1, job, due, (), tuple(malformed))

    def _take_deleted(self, done: Reserved, gone: list[tuple[str, str]]) -> str:
        """The id of the delivery of `done` if the broker has deleted it, after removing it from `gone`; else ""."""
        current = self._current
        if current is None or self._current_mark != done.mark or (current.queue, current.id) not in gone:
            return ""
        gone.remove((current.queue, current.id))
        return current.id

    def _args(
        self,
        done: Reserved | None,
        acked_id: str,
        queues: Sequence[str],
        delivery: Delivery | None,
        leased: bytes,
        gone: Sequence[tuple[str, str]],
    ) -> list[Arg]:
        args: list[Arg] = [*self._fixed_args, f"{self.base}{self.turns}"]
        args += (0, "", "") if done is None else (queues.index(done.queue) + 1, done.member, acked_id)
        if delivery is None:
            args += (0, "", "", "", "")
        else:
            place = queues.index(delivery.queue) + 1
            args += (place, delivery.id, delivery.handle, leased, digest(delivery.body))
        for queue, id in gone:
            if queue in queues:
                args += (queues.index(queue) + 1, id)
        return args

    def _refuse(self, delivery: Delivery, became: bytes) -> None:
        """Give up a delivery that this worker may not run."""
        with suppress(ConnectionLost, ServerRefused):  # the next worker that receives it does the same
            if became in (b"held", b"back"):
                self.backend.release(delivery, AGAIN if became == b"held" else 0.0)
            else:
                self.backend.delete(delivery.queue, delivery.id, delivery.handle)

    def _end_current(self, queue: str, answered: bytes | None) -> None:
        """The current job is answered. answered: see _answer; None: it is released at the broker."""
        current, self._current = self._current, None
        self.backend.keep_reserved(None)
        with suppress(ConnectionLost, ServerRefused):  # a worker that is given the delivery again deletes it
            if answered is not None:
                self._delete(queue, answered)
            elif current is not None:
                self.backend.release(current, 0.0)

    def _delete(self, queue: str, answered: bytes) -> None:
        id, _, handle = answered.decode().partition(" ")
        if id:
            self.backend.delete(queue, id, handle)

    def held(self, queues: Sequence[str]) -> Reserved | None:
        """If the reply of a turn was lost, its pending delivery is the current one."""
        found = super().held(queues)
        if found is not None and self._pending is not None and self._pending.queue == found.queue:
            holding = self.space.call("HGET", *self._keys(keys.holding(found.queue)), self.owner) or b""
            if holding.decode().partition(" ")[0] == self._pending.id:
                self._current, self._current_mark, self._pending = self._pending, found.mark, None
                self.backend.keep_reserved(self._current)
        return found

    def wait(self, queues: Sequence[str], seconds: float, wake: int) -> None:
        if self._pending is None:
            self._set_pending(self.backend.reserve(queues, seconds, wake))

    # -- answers: the step of every connection, and the end of the delivery

    def _answer(self, name: str, queue: str, args: Sequence[Arg], effects: Sequence[Effect]) -> bytes | None:
        """Returns "<id> <handle>" of the delivery (b"" if it has none), or None if the lease was lost."""
        self._note(effects)
        more, options = effect_args(effects, self.settings.prefix)
        own, ours = ([kind(queue) for kind in kinds] for kinds in (ANSWER_KEYS[name], DELIVERY_KEYS))
        reply = script(f"delivery_{name}").call(self.space, self._keys(*own, *more, *ours), *args, *options)
        return reply if isinstance(reply, bytes) else None

    def _note(self, effects: Sequence[Effect]) -> None:
        self.outbox.note([effect.queue for effect in effects if isinstance(effect, Push)])

    def _forward(self, effects: Sequence[Effect]) -> None:
        """Send the jobs that they have pushed; the callbacks of a batch may be in any queue."""
        with suppress(ConnectionLost, ServerRefused):
            if any(isinstance(effect, Count) for effect in effects):
                self.outbox.forward_all(self.outbox.known(), lambda *_: None)
            else:
                self.outbox.try_to_forward([effect.queue for effect in effects if isinstance(effect, Push)])

    def ack(self, done: Reserved, effects: Sequence[Effect] = ()) -> bool:
        answered = self._answer("ack", done.queue, (self.owner, done.member), effects)
        self._end_current(done.queue, answered)
        self._forward(effects)
        return answered is not None

    def release(self, held: Reserved, back: Released, effects: Sequence[Effect] = ()) -> bool:
        answered = self._requeue(held.queue, self.owner, held.member, back, effects)
        self._end_current(held.queue, answered)
        if answered is not None and not back.delay:
            self.outbox.try_to_forward([held.queue])
        elif answered is not None and OBJECT_JOB in back.text:
            self._leave_to_php(held.queue, back.delay)
        self._forward(effects)
        return answered is not None

    def _leave_to_php(self, queue: str, delay: float) -> None:
        """When the job is due again, workers that wait here would always be faster than a PHP worker, which polls every few
        seconds. So they skip the queue around that time."""
        now = float(self.space.call("TIME")[0])
        self.space.call("SET", *self._keys(keys.elsewhere(queue)), now + delay, "EX", ceil(delay) + YIELD_SECONDS)

    def _requeue(
        self, queue: str, owner: str, member: bytes, back: Released, effects: Sequence[Effect]
    ) -> bytes | None:
        self.outbox.note([queue])
        return self._answer("release", queue, release_args(owner, member, back), effects)

    def bury(self, held: Reserved, record: bytes, raw: bytes, effects: Sequence[Effect] = ()) -> bool:
        answered = self._answer("bury", held.queue, self._bury_args(held, record, raw), effects)
        self._end_current(held.queue, answered)
        self._forward(effects)
        return answered is not None

    def beats(self, about: Callable[[float], None]) -> None:
        super().beats(about)
        self.backend.connection.on_progress(about)

    def close(self) -> None:
        """Forget what the broker has deleted; a keeper checks what is still on its way."""
        with suppress(ConnectionLost, ServerRefused):
            self._forget_deleted(wait=True)
        self._pending = self._current = None
        self.backend.close()
        self.space.close()

    def _forget_deleted(self, wait: bool) -> None:
        gone = self.backend.deleted(wait)
        if gone:
            self.space.call_many([("ZREM", *self._keys(keys.ended(queue)), id) for queue, id in gone])

    # -- the keeper

    def beat(self, queues: Sequence[str], request: BeatRequest) -> BeatReply:
        """The part in the keyspace is done and reported even if the broker is unreachable (`broke`)."""
        reply = beat(self.space, self.settings.prefix, queues, request._replace(reclaims_until=0))
        try:
            return self._beat_broker(queues, request, reply)
        except (ConnectionLost, ServerRefused) as error:
            return reply._replace(waiting=[], broke=error)

    def _beat_broker(self, queues: Sequence[str], request: BeatRequest, reply: BeatReply) -> BeatReply:
        errors = dict[str, QdError]()
        refused = errors.setdefault
        if request.renew:
            self._renew(queues, request, refused)
        reclaimed = self._reclaim(queues, request.reclaims_until) if request.reclaims_until else 0
        self.outbox.note(queues)
        more = self.outbox.forward_all(self.outbox.known(), refused)
        if time.monotonic() - self._ended_checked_at > CHECK_ENDED:
            self._ended_checked_at = time.monotonic()
            for queue in queues:
                self._check_ended(queue, reply.now)
        self._forget_deleted(wait=True)
        waiting = self._waiting(queues, refused)
        more, away = more or reply.more, [(queue, str(error)) for queue, error in errors.items()]
        return reply._replace(reclaimed=reclaimed, more=more, waiting=waiting, away=tuple(away))

    def _renew(self, queues: Sequence[str], request: BeatRequest, refused: Refused) -> None:
        fields = [f"{request.token}/{slot}" for slot in request.slots]
        if not fields:
            return
        replies = self.space.call_many([("HMGET", *self._keys(keys.holding(queue)), *fields) for queue in queues])
        for queue, reply in zip(queues, replies, strict=True):
            found = [raw.decode().split(" ", 1) for raw in (reply if isinstance(reply, list) else ()) if raw]
            try:
                self.backend.renew([(queue, id, handle) for id, handle in found])
            except ServerRefused as error:
                refused(queue, error)

    def _reclaim(self, queues: Sequence[str], until: float) -> int:
        names = self._keys(keys.CANCEL, *[kind(queue) for queue in queues for kind in RECLAIMED])
        count, *found = script("delivery_reclaim").call(self.space, names, until)
        for place, ended in zip(found[::2], found[1::2], strict=True):
            self._delete(queues[int(place) - 1], ended)
        return int(count)

    def _waiting(self, queues: Sequence[str], refused: Refused) -> list[int]:
        """Places of queues that have ready jobs, are not paused, and of which no worker has a job."""
        paused = self.space.call_many([("EXISTS", *self._keys(keys.paused(queue))) for queue in queues])
        found = list[int]()
        for place, (queue, is_paused) in enumerate(zip(queues, paused, strict=True)):
            try:
                counts = self.backend.counts(queue) if is_paused == 0 else None
            except ServerRefused as error:
                refused(queue, error)
                continue
            if counts is not None and counts.ready and not counts.reserved:
                found.append(place)
        return found

    def _check_ended(self, queue: str, now: float) -> None:
        """Forget ended deliveries that the broker no longer has: their worker was killed before it could."""
        (name,) = self._keys(keys.ended(queue))
        flat = self.space.call("ZRANGEBYSCORE", name, "-inf", now - CHECK_ENDED, "WITHSCORES", "LIMIT", 0, ENDED)
        for raw, at in zip(flat[::2], flat[1::2], strict=True):
            exists = self.backend.exists(queue, raw.decode())
            if exists is False or (exists is None and float(at) < now - LONGEST):
                self.space.call("ZREM", name, raw)

    def give_back(self, queue: str, owner: str, member: bytes, back: Released, effects: Sequence[Effect] = ()) -> bool:
        ended = self._requeue(queue, owner, member, back, effects)
        if ended is None:
            return False
        with suppress(ConnectionLost, ServerRefused):  # a worker that is given the delivery again deletes it
            self._delete(queue, ended)
            self._forget_deleted(wait=True)
        self.outbox.try_to_forward([queue])
        return True

    def missing_rights(self, queue: str) -> set[str]:
        """Of a borrowed Redis; other permissions show with each call."""
        from qd.drivers.redis import acl, connection  # a producer does not need them

        is_redis = isinstance(self._borrowed.space, connection.RedisConnection)
        return acl.missing(cast(Any, self.space), self.settings.prefix, queue) if is_redis else set()

    def user(self) -> str:
        from qd.drivers.redis import acl, connection

        space = self._borrowed.space
        return acl.name_of(space) if isinstance(space, connection.RedisConnection) else ""


def counted(delivery: Delivery) -> bytes:
    """The payload as it is leased: with the broker's counts at its end, if it has none of its own."""
    body = delivery.body
    if not (delivery.attempts or delivery.crashes) or b'"attempts"' in body or not body.rstrip().endswith(b"}"):
        return body
    close = body.rindex(b"}")
    if body[:close].strip() == b"{":
        return body
    crashes = b',"crashes":%d' % delivery.crashes if delivery.crashes else b""
    return body[:close] + b',"attempts":%d' % delivery.attempts + crashes + body[close:]


def uncounted(job: Reserved) -> Reserved:
    """For a payload that `counted` has changed: without the reservation it is again what was pushed, without counts."""
    return job._replace(start=job.start - 1, length=job.length + 1, before=b"")
