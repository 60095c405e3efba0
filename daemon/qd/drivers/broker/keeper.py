"""What a keeper does where another server keeps the jobs: leases stand in the borrowed keyspace, and are renewed there.

    beat   beat.lua             as everywhere: leases renewed, what is due in the outbox made ready, cancelled jobs, stamps
           parcel_reclaim.lua   leases that ran out: their jobs go to the outbox, and their parcels are ended
           outbox               is sent, of every queue that is known to have one
           ended                parcels whose worker was killed before it had deleted them: looked after

What a dead worker held goes the same way: to the outbox, its parcel ended and deleted.

How the manager opens a connection that borrows its keyspace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from qd.drivers.base import ClientIdentity
from qd.drivers.broker.base import Broker, LazyKeyspace
from qd.drivers.broker.queue import BrokerQueue
from qd.drivers.connections import borrowed_prefix, needs_memory, open_memory
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Keyspace, script
from qd.drivers.keyspace.queue import beat, bounds_of
from qd.drivers.types import BeatReply, BeatRequest, Effect, Released
from qd.errors import ConfigError, ConnectionLost, QdError, ServerRefused

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings, Settings
    from qd.drivers.redis.connection import RedisConnection


RECLAIMED = (keys.ready, keys.reserved, keys.notify, keys.owners, keys.taken, keys.holding, keys.ended)
Refused = Callable[[str, QdError], None]
LOOK = 10.0  # seconds between two looks at parcels that are ended, and after which a worker is not still at it
MANY = 100  # of them that a look asks about
LONGEST = 15 * 86400.0  # seconds a server that cannot be asked may still hand one out


class BorrowedKeeping(BrokerQueue):
    """A Keeping."""

    _looked_at = 0.0

    def beat(self, queues: Sequence[str], asked: BeatRequest) -> BeatReply:
        """What stands in the keyspace is done, and answered, also when the server of the jobs is away (`broke`)."""
        answer = beat(self.space, self.settings.prefix, queues, asked._replace(reclaims_until=0))
        try:
            return self._beat_there(queues, asked, answer)
        except (ConnectionLost, ServerRefused) as error:
            return answer._replace(waiting=[], broke=error)

    def _beat_there(self, queues: Sequence[str], asked: BeatRequest, answer: BeatReply) -> BeatReply:
        wrong = dict[str, str]()

        def refused(queue: str, error: QdError) -> None:
            wrong.setdefault(queue, str(error))

        if asked.renew:
            self._renewed(queues, asked, refused)
        reclaimed = self._reclaim(queues, asked.reclaims_until) if asked.reclaims_until else 0
        self.outbox.note(queues)
        more = self.outbox.forward_all(self.outbox.known(), refused)
        if time.monotonic() - self._looked_at > LOOK:
            self._looked_at = time.monotonic()
            for queue in queues:
                self._look_after(queue, answer.now)
        self._forget_gone(wait=True)
        waiting = self._waiting(queues, refused)
        more = more or answer.more
        return answer._replace(reclaimed=reclaimed, more=more, waiting=waiting, away=tuple(wrong.items()))

    def _renewed(self, queues: Sequence[str], asked: BeatRequest, refused: Refused) -> None:
        fields = [f"{asked.token}/{slot}" for slot in asked.slots]
        if not fields:
            return
        held = self.space.call_many([("HMGET", *self._keys(keys.holding(queue)), *fields) for queue in queues])
        for queue, parcels in zip(queues, held, strict=True):
            found = [raw.decode().split(" ", 1) for raw in (parcels if isinstance(parcels, list) else ()) if raw]
            try:
                self.backend.renewed([(queue, id, handle) for id, handle in found])
            except ServerRefused as error:
                refused(queue, error)

    def _reclaim(self, queues: Sequence[str], until: float) -> int:
        names = self._keys(keys.CANCEL, *[kind(queue) for queue in queues for kind in RECLAIMED])
        count, *found = script("parcel_reclaim").call(self.space, names, until)
        for place, its in zip(found[::2], found[1::2], strict=True):
            self._drop(queues[int(place) - 1], its)
        return int(count)

    def _drop(self, queue: str, its: bytes) -> None:
        id, _, handle = its.decode().partition(" ")
        if id:
            self.backend.drop(queue, id, handle)

    def _waiting(self, queues: Sequence[str], refused: Refused) -> list[int]:
        """Places of queues in which work is ready, that nobody holds back, and that nobody has any of in hand."""
        paused = self.space.call_many([("EXISTS", *self._keys(keys.paused(queue))) for queue in queues])
        found = list[int]()
        for place, (queue, held_back) in enumerate(zip(queues, paused, strict=True)):
            try:
                there = self.backend.standing(queue) if held_back == 0 else None
            except ServerRefused as error:
                refused(queue, error)
                continue
            if there is not None and there.ready and not there.reserved:
                found.append(place)
        return found

    def _look_after(self, queue: str, now: float) -> None:
        """Ended ones that are still known: their worker was killed before it had deleted them, or somebody else did."""
        (name,) = self._keys(keys.ended(queue))
        flat = self.space.call("ZRANGEBYSCORE", name, "-inf", now - LOOK, "WITHSCORES", "LIMIT", 0, MANY)
        for raw, at in zip(flat[::2], flat[1::2], strict=True):
            there = self.backend.there(queue, raw.decode())
            if there is False or (there is None and float(at) < now - LONGEST):
                self.space.call("ZREM", name, raw)

    def give_back(self, queue: str, owner: str, member: bytes, back: Released, effects: Sequence[Effect] = ()) -> bool:
        its = self._put_back(queue, owner, member, back, effects)
        if not isinstance(its, bytes):
            return False
        with suppress(ConnectionLost, ServerRefused):  # who is handed it out deletes it
            self._drop(queue, its)
            self._forget_gone(wait=True)
        self.outbox.try_to_forward([queue])
        return True

    def missing_rights(self, queue: str) -> set[str]:
        """Where a Redis is borrowed from; what else may be refused is told with each call."""
        wire = self._redis
        if wire is None:
            return set()
        from qd.drivers.redis import acl

        with self.space.named if isinstance(self.space, LazyKeyspace) else nullcontext():
            return acl.missing(wire, self.settings.prefix, queue)

    def user(self) -> str:
        wire = self._redis
        if wire is None:
            return ""
        from qd.drivers.redis import acl

        return acl.name_of(wire)

    @property
    def _redis(self) -> RedisConnection | None:
        from qd.drivers.redis.connection import RedisConnection

        space = self.space.space if isinstance(self.space, LazyKeyspace) else self.space
        return space if isinstance(space, RedisConnection) else None


def open_borrowed(
    settings: Settings,
    at: ConnectionSettings,
    who: ClientIdentity,
    backend: Broker,
    kind: type[BorrowedKeeping] = BorrowedKeeping,
) -> BorrowedKeeping:
    """Raises ConfigError for a worker or a keeper where there is no keyspace to borrow; others may still push."""

    def space() -> Keyspace:
        return open_memory(settings, at.name, title=who.title, patience=who.patience)[0]

    if who.token:
        needs_memory(settings, at.name)
        for name in settings.work.queues if at.name == settings.work.connection else ():
            try:
                backend.check(name)
            except ServerRefused as error:
                raise ConfigError(f"connection '{at.name}': {error}") from None
    queue = kind(
        at,
        backend,
        LazyKeyspace(space, settings.connection(settings.control).driver if settings.control else ""),
        borrowed_prefix(settings, at.name),
        who,
        keep=bounds_of(settings.failed),
        max_payload=settings.max_payload,
    )
    queue.patience(who.patience, who.patience)
    return queue
