"""What a keeper does for a broker, whose leases are kept in the borrowed keyspace.

    beat   beat.lua               renews leases, promotes due jobs in the outbox, reports cancelled jobs and stamps
           delivery_reclaim.lua   moves jobs whose lease ran out to the outbox, and ends their deliveries
           outbox                 sends every outbox that is known
           ended                  checks deliveries whose worker was killed before it had deleted them

The job of a dead worker goes to the outbox too, and its delivery is ended and deleted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
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


RECLAIMED = (keys.ready, keys.reserved, keys.notify, keys.owners, keys.taken, keys.holding, keys.ended)
Refused = Callable[[str, QdError], None]
CHECK_ENDED = 10.0  # seconds between two checks of ended deliveries; a worker deletes its own sooner
ENDED = 100  # ended deliveries that one check queries
LONGEST = 15 * 86400.0  # seconds for which a broker that cannot be queried may still deliver an ended job


class BrokerKeeperQueue(BrokerQueue):
    """A KeeperConnector."""

    space: LazyKeyspace
    _ended_checked_at = 0.0

    def beat(self, queues: Sequence[str], request: BeatRequest) -> BeatReply:
        """The part in the keyspace is done and reported even if the broker is unreachable (`broke`)."""
        reply = beat(self.space, self.settings.prefix, queues, request._replace(reclaims_until=0))
        try:
            return self._beat_broker(queues, request, reply)
        except (ConnectionLost, ServerRefused) as error:
            return reply._replace(waiting=[], broke=error)

    def _beat_broker(self, queues: Sequence[str], request: BeatRequest, reply: BeatReply) -> BeatReply:
        errors = dict[str, str]()

        def refused(queue: str, error: QdError) -> None:
            errors.setdefault(queue, str(error))

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
        more = more or reply.more
        return reply._replace(reclaimed=reclaimed, more=more, waiting=waiting, away=tuple(errors.items()))

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

        space = self.space.space
        if not isinstance(space, connection.RedisConnection):
            return set()
        with self.space.named:
            return acl.missing(space, self.settings.prefix, queue)

    def user(self) -> str:
        from qd.drivers.redis import acl, connection

        space = self.space.space
        return acl.name_of(space) if isinstance(space, connection.RedisConnection) else ""


def open_broker_queue(
    settings: Settings,
    at: ConnectionSettings,
    who: ClientIdentity,
    backend: Broker,
    kind: type[BrokerKeeperQueue] = BrokerKeeperQueue,
) -> BrokerKeeperQueue:
    """Raises ConfigError for a worker or keeper if there is no keyspace to borrow; producers can still push."""

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
