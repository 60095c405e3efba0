"""DatabaseQueue: queues in Laravel's table of jobs, shared with its database driver (Queue/DatabaseQueue.php, Laravel 8-13).

    jobs          reserved_at: when a worker of any language reserved it; attempts includes that reservation
    qd_reserved   qd's own: the owner, mark and lease of a reservation; written and deleted with the change of the job's row

The next job is the first row by available_at and id. Everything else is in the keyspace in the same database, and changes in
the same transaction. One instance belongs to one thread of one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from qd.drivers import types
from qd.drivers.base import PRODUCER, STAYS, ClientIdentity
from qd.drivers.database.connection import DatabaseConnection, Listening, channel
from qd.drivers.database.keyspace import SWEEP, DatabaseKeyspace
from qd.drivers.database.reserve import Reserver
from qd.drivers.database.rows import after, base_of, bytes_of, member_of, owners_mark, row_after, spent, text_of
from qd.drivers.database.schema import check, check_rights
from qd.drivers.database.table import JobTable
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import chunked
from qd.drivers.keyspace.queue import DEFAULT, Bounds, KeyspaceQueue, bounds_of
from qd.drivers.keyspace.records import KeptJobs
from qd.errors import ConfigError, ConnectionLost, NeedsMending, ServerRefused
from qd.payload.reservation import unanswered
from qd.process import SLOTS

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings, Settings


CHUNK = 1000  # rows a transaction inserts at most
SETTLED = 100  # jobs of dead workers that a transaction answers at most
START = 5.0  # seconds to connect and for each answer, before the first worker
LIMITS: types.Gaps = {"delay": "delays end on a whole second of the database's clock, up to one second late"}


class DatabaseQueue(KeyspaceQueue):
    """space: the keyspace of the same database; the table of jobs uses its connection."""

    space: DatabaseKeyspace
    limits = LIMITS
    keeps_suspects, fetches_ahead = False, True

    def __init__(
        self,
        settings: ConnectionSettings,
        space: DatabaseKeyspace,
        who: ClientIdentity = PRODUCER,
        *,
        keep: Bounds = DEFAULT,
        max_payload: int = 0,
    ) -> None:
        super().__init__(settings, space, who, keep=keep, max_payload=max_payload)
        self.table = JobTable(settings, space, self.owner, keep, self.longest)
        self.connection, self.sql = self.table.connection, self.table.sql
        self.reserver = Reserver(self.table, who)
        self.jobs = SingleJobs(self.table)
        self.listening = Listening(self.connection)

    @property
    def stays(self) -> int:
        return STAYS if self.sql.kind == "mysql" else 1

    # -- sending

    def push(self, queue: str, payload: bytes) -> None:
        self.later(queue, payload, 0.0)

    def later(self, queue: str, payload: bytes, delay: float) -> None:
        values: dict[str, Any] = {"queue": queue, "payload": text_of(payload), "attempts": spent(payload)}
        values["after"] = after(delay)
        if self.sql.listens:
            values |= {"channel": channel(self.settings.table, queue), "notifies": delay < 1}
        self.table.rows(self.sql.push, values)

    def post(self, jobs: Sequence[types.Outgoing]) -> list[str | None]:
        """Keyed and unique jobs go through steps of the keyspace, one by one. The others are inserted by the thousand, each
        thousand all or nothing."""
        plain = [job for job in jobs if not job.key and not job.lock]
        if len(plain) == 1:
            self.later(plain[0].queue, plain[0].payload, plain[0].delay)
        else:
            for chunk in chunked(plain, CHUNK):
                self._insert_many(chunk)
        others = [place for place, job in enumerate(jobs) if job.key or job.lock]
        found: list[str | None] = [None] * len(jobs)
        for place, holder in zip(others, super().post([jobs[place] for place in others]), strict=True):
            found[place] = holder
        return found

    def _insert_many(self, jobs: Sequence[types.Outgoing]) -> None:
        def insert() -> None:
            us = self.table.now_us()
            rows = [row_after(job.queue, job.payload, us, job.delay) for job in jobs]
            self.connection.execute(self.sql["insert"], rows)
            self.table.notify({job.queue for job in jobs if job.delay < 1})

        self.table.atomic(insert)

    # -- working

    def turn(self, done: types.Reserved | None, queues: Sequence[str], shut: Sequence[str] = ()) -> types.Turn:
        self.turns += 1
        turn = self.reserver.turn(done, tuple(queues), shut, f"{self.base}{self.turns}")
        if turn.reserved is not None:
            self.listening.worked()
        return turn

    def wait(self, queues: Sequence[str], seconds: float, wake: int) -> None:
        self.listening.wait({channel(self.settings.table, queue) for queue in queues}, seconds, wake)

    def ack(self, done: types.Reserved, effects: Sequence[types.Effect] = ()) -> bool:
        return self.table.atomic(lambda: self.table.end(done, lambda: self.table.run_effects(effects)))

    def bury(self, held: types.Reserved, record: bytes, raw: bytes, effects: Sequence[types.Effect] = ()) -> bool:
        keep = partial(self.table.keep_failed, held.queue, held.mark, record, raw, effects)
        return self.table.atomic(lambda: self.table.end(held, keep))

    def give_back(
        self, queue: str, owner: str, member: bytes, back: types.Released, effects: Sequence[types.Effect] = ()
    ) -> bool:
        """The job of `owner`, which has it or had it until it died."""
        mark = owners_mark(owner, member)
        return self.table.atomic(lambda: self.table.give_back(queue, owner, mark, member, back, effects))

    def checkpoint(self, held: types.Reserved, member: bytes) -> bool:
        return self.table.atomic(lambda: self.table.checkpoint(held, member))

    def held(self, queues: Sequence[str]) -> types.Reserved | None:
        found = self.table.atomic(lambda: self.table.held_by([self.owner], queues))
        return found[0] if found else None

    # -- lanes

    def turn_lanes(self, turn: types.LaneTurn) -> types.LaneReply:
        first, self.calls = self.turns + 1, self.calls + 1
        self.turns += max(1, len(turn.lanes))
        reply = self.reserver.turn_lanes(turn, first, self.calls)
        self.turns = first + max(1, len(reply.jobs)) - 1  # the reply is here: other numbers are not in use
        if reply.jobs:
            self.listening.worked()
        return reply

    def held_lanes(self, queues: Sequence[str], lanes: Sequence[int]) -> list[types.Reserved]:
        token, slot = self.owner.split("/")
        owners = [f"{token}/{int(slot) + SLOTS * lane}" for lane in {0, *lanes}]
        self.calls += 1

        def look() -> list[types.Reserved]:
            self.reserver.begin(queues, self.calls)
            return self.table.held_by(owners, queues)

        return self.table.atomic(look)

    def leave_lanes(self) -> None:
        self.reserver.leave()

    def settle_lanes(self, queue: str, answers: Sequence[types.LaneAnswer]) -> list[bool]:
        return [
            each for some in chunked(answers, SETTLED) for each in self.table.atomic(partial(self.table.settle, some))
        ]

    # -- the dead

    def owned(self, queue: str, owner: str) -> bytes | None:
        return self.owned_by(queue, [owner]).get(owner)

    def owned_by(self, queue: str, owners: Sequence[str]) -> dict[str, bytes]:
        rows = self.table.rows(self.sql["owned"], {"owners": list(owners), "queues": [queue]}) if owners else ()
        return {row.owner: member_of(bytes_of(row.payload), row.mark, row.attempts, row.text_sum) for row in rows}

    def owners(self, queue: str) -> list[str]:
        return [row.owner for row in self.table.rows(self.sql["owners"], {"queue": queue})]

    def beat(self, queues: Sequence[str], request: types.BeatRequest) -> types.BeatReply:
        reply = self.table.beat(queues, request)
        self.space.sweep_after(SWEEP)
        return reply

    def missing_rights(self, queue: str) -> set[str]:
        return set()

    def user(self) -> str:
        return self.connection.url.username or ""

    # -- looking

    def sizes(self, queue: str) -> types.Sizes:
        (row,) = self.table.rows(self.sql["sizes"], {"queue": queue})
        failed = self.space.call("HLEN", *self._keys(keys.failed(queue)))
        age = None if row.oldest is None else float(max(0, int(row.now_s) - int(row.oldest)))
        return types.Sizes(row.ready, row.delayed_, row.held, failed, age)


class SingleJobs(KeptJobs):
    """KeptJobs, but the owners of running jobs are in the table of reservations."""

    def __init__(self, table: JobTable) -> None:
        super().__init__(table.space, table.settings.prefix)
        self.table = table

    def stop(self, found: types.Found) -> bool:
        unit = unanswered(found.text)
        return unit is not None and self.table.atomic(lambda: self.table.cancel(base_of(unit.mark), found.queue))


def open_queue(settings: Settings, at: ConnectionSettings, who: ClientIdentity) -> DatabaseQueue:
    space = open_space(at, who.title, who.patience)
    return DatabaseQueue(at, space, who, keep=bounds_of(settings.failed), max_payload=settings.max_payload)


def start_warnings(at: ConnectionSettings, queues: Sequence[str], tries: int) -> list[str]:
    """Check the tables and the rights on them. Raises ConfigError; workers wait for a server that is unreachable or busy. It
    loads what workers need before they are forked."""
    connection = DatabaseConnection(at.url or "", title="qd:start", connect_timeout=START, timeout=START)
    try:
        check(connection, at.table)
        check_rights(connection, at.table)
    except NeedsMending as error:
        raise ConfigError(str(error)) from None
    except (ConnectionLost, ServerRefused):
        pass
    finally:
        connection.close()
    return []


def open_space(at: ConnectionSettings, title: str, patience: float) -> DatabaseKeyspace:
    connection = DatabaseConnection(at.url or "", title=title, connect_timeout=patience, timeout=patience)
    return DatabaseKeyspace(connection, at.table, at.prefix)
