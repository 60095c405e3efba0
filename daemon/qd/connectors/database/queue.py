"""Queues in Laravel's table of jobs, shared with PHP's database driver (Queue/DatabaseQueue.php, Laravel 8 to 13).

    jobs          reserved_at: when it was reserved, by whom PHP does not care; attempts counts that reservation, too
    qd_reserved   of qd's own: who has the job, its mark, until when. Written and deleted with the change of the job's row

The first row by available_at and id is the next. Everything else stands on the keyspace in the same database, and changes in
the same transaction. One instance belongs to one thread of one process.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sql

from qd.connectors.base import STAYS, Limits, Outgoing, Released, Reserved, Sizes, Turn
from qd.connectors.database.held import (
    bytes_of,
    member_of,
    owners_mark,
    reserved,
    row_of,
    spent,
    text_of,
)
from qd.connectors.database.leases import Leases
from qd.connectors.database.listening import Listening, channel
from qd.connectors.database.servers import Again
from qd.connectors.database.singles import SingleJobs
from qd.connectors.database.tables import SECOND
from qd.connectors.database.taking import Taking
from qd.connectors.database.turnsql import TurnSql
from qd.connectors.effects import Effect
from qd.connectors.keeping import Answer, Asked
from qd.connectors.keyspace import keys
from qd.connectors.keyspace.base import script
from qd.connectors.keyspace.effects import spoken
from qd.connectors.keyspace.queue import DEFAULT, Bounds, KeyspaceQueue
from qd.connectors.reserver import PRODUCER, Reserver
from qd.process.shield import shield

if TYPE_CHECKING:
    from qd.config import ConnectionSettings
    from qd.connectors.database.keyspace import DatabaseSpace

T = TypeVar("T")
AGAIN = 0.001, 0.02  # seconds until what met another in a deadlock is done again: nothing of it has happened
CHUNK = 1000  # rows a transaction inserts at most
LIMITS: Limits = {"delay": "a delay ends with a whole second of the database's clock, up to one later than asked"}


class DatabaseQueue(KeyspaceQueue):
    """space: the keyspace of the same database; its connection is used for everything but the wait."""

    space: DatabaseSpace

    def __init__(
        self,
        settings: ConnectionSettings,
        space: DatabaseSpace,
        who: Reserver = PRODUCER,
        *,
        keep: Bounds = DEFAULT,
        max_payload: int = 0,
    ) -> None:
        super().__init__(settings, space, who, keep=keep, max_payload=max_payload)
        self.link = space.link
        self.sql = TurnSql(self.link.server, settings.table)
        self.taking, self.leases = Taking(self), Leases(self)
        self._swept = time.monotonic()
        self.jobs = SingleJobs(self)
        self.listening = Listening(self.link, settings.table)

    def names(self, *names: str) -> list[str]:
        """Of the keyspace, as they stand there."""
        return self._keys(*names)

    @property
    def limits(self) -> Limits:
        return LIMITS

    @property
    def stays(self) -> int:
        return STAYS if self.sql.kind == "mysql" else 1

    # -- transactions

    def atomic(self, act: Callable[[], T], *, said: bool = False) -> T:
        """All that `act` executes, as one; inside of another transaction a part of that. said: see Link.transaction."""
        return self._again(partial(self.link.transaction, said=said), act)

    def _again(self, around: Callable[[], AbstractContextManager[None]], act: Callable[[], T]) -> T:
        until = time.monotonic() + self.link.timeout
        while True:
            try:
                with shield, around():
                    return act()
            except Again:
                if self.link.depth or time.monotonic() > until:
                    raise
                time.sleep(random.uniform(*AGAIN))

    def rows(self, statement: sql.TextClause, values: dict[str, Any]) -> Any:
        """What one statement gives, in a transaction of its own if there is none: a list of rows."""
        return self._again(nullcontext, lambda: self.link.execute(statement, values).all())

    def done(self, statement: sql.TextClause, values: Any) -> int:
        """How many rows one statement met."""
        return self._again(nullcontext, lambda: self.link.execute(statement, values).rowcount)

    # -- sending

    def push(self, queue: str, payload: bytes) -> None:
        self._insert(queue, payload, 0.0)

    def later(self, queue: str, payload: bytes, delay: float) -> None:
        self._insert(queue, payload, delay)

    def _insert(self, queue: str, payload: bytes, delay: float) -> None:
        values: dict[str, Any] = {"queue": queue, "payload": text_of(payload), "attempts": spent(payload)}
        values["after"] = after(delay)
        if self.sql.listens:
            values |= {"channel": channel(self.settings.table, queue), "tells": delay < 1}
        self.done(self.sql.push, values)

    def post(self, jobs: Sequence[Outgoing]) -> list[str | None]:
        """Those that need a lock or wait under a name go through steps of the keyspace, each by itself as there; of all
        others each thousand is all or nothing."""
        plain = [job for job in jobs if not job.key and not job.lock]
        for at in range(0, len(plain), CHUNK):
            if len(plain) == 1:
                self._insert(plain[0].queue, plain[0].payload, plain[0].delay)
            else:
                self._insert_many(plain[at : at + CHUNK])
        others = [place for place, job in enumerate(jobs) if job.key or job.lock]
        found: list[str | None] = [None] * len(jobs)
        for place, holder in zip(others, super().post([jobs[place] for place in others]), strict=True):
            found[place] = holder
        return found

    def _insert_many(self, jobs: Sequence[Outgoing]) -> None:
        def insert() -> None:
            us = self.now_us()
            self.link.execute(
                self.sql.insert, [self.row(job.queue, job.payload, us, job.delay) for job in jobs]
            ).close()
            self.tell({job.queue for job in jobs if job.delay < 1})

        self.atomic(insert)

    def row(
        self, queue: str, payload: bytes, us: int, delay: float, text: Callable[[bytes], str | bytes] = text_of
    ) -> dict[str, Any]:
        """What is inserted for a payload that is due `delay` seconds after `us`."""
        return row_of(queue, payload, (us + after(delay)) // SECOND, us // SECOND, text)

    def now_us(self) -> int:
        return int(self.link.execute(self.sql.now).scalar_one())

    def tell(self, queues: set[str]) -> None:
        """Wake who waits for them, once the transaction is over."""
        if self.sql.listens:
            for queue in sorted(queues):
                self.link.execute(self.sql.notify, {"channel": channel(self.settings.table, queue)}).close()

    # -- working

    def turn(self, done: Reserved | None, queues: Sequence[str], shut: Sequence[str] = ()) -> Turn:
        self.turns += 1
        turn = self.taking.turn(done, tuple(queues), shut, f"{self.base}{self.turns}")
        if turn.reserved is not None:
            self.listening.worked()
        return turn

    def wait(self, queues: Sequence[str], seconds: float, wake: int) -> None:
        self.listening.wait(set(queues), seconds, wake)

    def ack(self, done: Reserved, effects: Sequence[Effect] = ()) -> bool:
        return self.atomic(lambda: self.leases.ended(done, lambda: self.do(effects)))

    def bury(self, held: Reserved, record: bytes, raw: bytes, effects: Sequence[Effect] = ()) -> bool:
        def keep() -> None:
            self.keep_failed(held.queue, held.mark, record, raw, effects)

        return self.atomic(lambda: self.leases.ended(held, keep))

    def keep_failed(self, queue: str, id: str, record: bytes, raw: bytes, effects: Sequence[Effect] = ()) -> None:
        """Into the failed store, inside the transaction that takes the job away."""
        more, said = spoken(effects, self.settings.prefix)
        names = self._keys(keys.failed(queue), keys.failed_at(queue), *more)
        script("buried").call(self.space, names, id, record, raw, *self.keep.args, *said)

    def do(self, effects: Sequence[Effect]) -> None:
        if effects:
            more, said = spoken(effects, self.settings.prefix)
            script("ended").call(self.space, self._keys(*more), *said)

    def give_back(self, queue: str, owner: str, member: bytes, back: Released, effects: Sequence[Effect] = ()) -> bool:
        """Of a job that `owner` has, or had until it died."""
        mark = owners_mark(owner, member)
        return self.atomic(lambda: self.leases.given_back(queue, owner, mark, member, back, effects))

    def checkpoint(self, held: Reserved, member: bytes) -> bool:
        return self.atomic(lambda: self.leases.saved(held, member))

    def held(self, queues: Sequence[str]) -> Reserved | None:
        return self.atomic(lambda: self._held(queues))

    def _held(self, queues: Sequence[str]) -> Reserved | None:
        """Locks the reservations first: no other transaction changes them between the comparisons with their jobs."""
        locked = self.sql.many("of_owners")
        self.link.execute(locked, {"owners": [self.owner], "queues": list(queues)}).close()
        for queue in queues:
            row = self._owned(queue, self.owner)
            if row is not None:
                return reserved(queue, bytes_of(row.payload), row.mark, row.attempts, row.text_sum)
            self.link.execute(self.sql.lost, {"owner": self.owner, "queue": queue}).close()
        return None

    # -- the dead

    def owned(self, queue: str, owner: str) -> bytes | None:
        row = self._owned(queue, owner)
        return None if row is None else member_of(bytes_of(row.payload), row.mark, row.attempts, row.text_sum)

    def _owned(self, queue: str, owner: str) -> Any:
        found = self.rows(self.sql.owned, {"owner": owner, "queue": queue})
        return found[0] if found else None

    def owners(self, queue: str) -> list[str]:
        return [row.owner for row in self.rows(self.sql.owners, {"queue": queue})]

    def beat(self, queues: Sequence[str], asked: Asked) -> Answer:
        from qd.connectors.database.beating import beat  # of a keeper only

        return beat(self, queues, asked)

    def missing_rights(self, queue: str) -> set[str]:
        return set()

    def user(self) -> str:
        return self.link.url.username or ""

    def sweep(self, seconds: float) -> None:
        """Take some of what has expired in the keyspace away, not more often than so."""
        if time.monotonic() - self._swept > seconds:
            self._swept = 0.0 if self.space.sweep() else time.monotonic()

    # -- looking

    def sizes(self, queue: str) -> Sizes:
        (row,) = self.rows(self.sql.sizes, {"queue": queue})
        failed = self.space.call("HLEN", *self._keys(keys.failed(queue)))
        age = None if row.oldest is None else float(max(0, int(row.now_s) - int(row.oldest)))
        return Sizes(row.ready, row.delayed_, row.held, failed, age)


def after(delay: float) -> int:
    """Microseconds to add to the clock, so that whole seconds of it are never early."""
    return round(delay * SECOND) + SECOND - 1 if delay > 0 else 0
