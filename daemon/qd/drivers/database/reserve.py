"""A worker's turn on the table of jobs: the previous job is deleted, the next one reserved.

    PostgreSQL     one statement
    MySQL, MariaDB one transaction, FOR UPDATE SKIP LOCKED: one round trip to lock both jobs, one to change both
    SQLite         one transaction, since there is one writer at a time; none if nothing is ready

A payload that is no job goes to the failed store. A job with a lock or a key is checked in a second step, when it is already
leased (taken.lua).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from qd.drivers.database.dialects import Statement, StatementResult
from qd.drivers.database.rows import FRESH, base_of, bytes_of, is_text, owner_of, reserved, sum_of
from qd.drivers.database.schema import SECOND, key_of
from qd.drivers.database.sql import HIGHEST
from qd.drivers.database.table import JobTable, ReservedRow
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import script
from qd.drivers.types import Reserved, Turn
from qd.errors import ConnectionLost

MOST = 100  # payloads that a turn reserves, if the first are no jobs
SHARE = 16  # a turn of several jobs takes one of so many ready jobs, and one more
ABANDONED = "the database executed a call this worker had already abandoned; reconnecting"


class Found(NamedTuple):
    """What a turn found to reserve. busy: how many jobs this owner has reserved already. due: the second in which the next
    delayed job is due. there: whether each answered job was still leased; None: the turn has changed nothing.

    For turns of several jobs: plain: they are ordinary jobs. ready: how many there are, about."""

    us: int
    paused: tuple[str, ...]
    busy: int = 0
    rows: Sequence[ReservedRow] = ()
    due: int | None = None
    there: Sequence[bool] | None = None
    plain: bool = False
    ready: int = 0

    @property
    def due_in(self) -> float | None:
        """Seconds until the next delayed job is due."""
        return None if self.due is None else max(0.0, self.due - self.us / SECOND)


class Reserver:
    def __init__(self, table: JobTable) -> None:
        self.table, self.sql, self.run = table, table.sql, table.connection.execute_together

    def turn(self, done: Reserved | None, queues: tuple[str, ...], shut: Sequence[str], base: str) -> Turn:
        attempt = self._one_statement if self.sql.kind == "postgresql" else self._attempt
        malformed, acked = 0, None
        for _ in range(MOST):
            found = attempt(done, queues, shut, base)
            if done is not None:
                acked, done = any(found.there or ()), None
            if found.busy:
                raise ConnectionLost(ABANDONED)
            if not found.rows:
                return Turn(acked, None, found.due_in, found.paused, malformed)
            held, rejected = self.checked(found.rows[0], base, f"{base}.m{malformed}")
            malformed += rejected
            if held is not None:
                return Turn(acked, held, None, found.paused, malformed)
        return Turn(acked, None, 0.0, found.paused, malformed)

    # -- the reserved row

    def checked(self, row: ReservedRow, mark: str, id: str) -> tuple[Reserved | None, bool]:
        """The job, or None; and whether its payload was no job and was moved to the failed store, as `id`."""
        table, held, why = self.table, None, "not a JSON object with a count of attempts"
        if 0 < table.longest < len(row.payload):
            why = f"{len(row.payload)} bytes, more than {table.longest} (sixteen times max_payload)"
        elif is_text(row.payload):
            held = reserved(row.queue, row.payload, mark, row.attempts, None)
        if held is None:
            table.atomic(lambda: self._reject(row, mark, id, why))
            return None, True
        if may_be_tied(row.payload):
            text = table.atomic(lambda: self._taken(row, mark))
            if text != row.payload:
                held = reserved(row.queue, text, mark, row.attempts, None) if text else None
        return held, False

    def _reject(self, row: ReservedRow, mark: str, id: str, why: str) -> None:
        """Move the payload to the failed store."""
        now = self.table.now_us() / SECOND
        record = f'{{"id":"{id}","error":"Malformed","reason":"{why}","failed_at":{now:.3f}}}'
        self.table.keep_failed(row.queue, id, record.encode(), row.payload)
        self._delete(row, mark)

    def _taken(self, row: ReservedRow, mark: str) -> bytes:
        """The payload after taken.lua; b"" if the job was cancelled or moved meanwhile, and is deleted."""
        table = self.table
        names = table.names(keys.keyed(row.queue))
        text: bytes = script("taken").call(table.space, names, row.payload, *table.names(keys.unique(""))) or b""
        if not text:
            self._delete(row, mark)
        elif text != row.payload:
            self.table.change_one(table.sql["rewrite"], row, payload=text.decode())
        return text

    def _delete(self, row: ReservedRow, mark: str) -> None:
        self.table.change_one(self.table.sql["delete"], row)
        self.table.delete_reservation(row, mark)

    # -- one attempt

    def values(self, queues: tuple[str, ...]) -> dict[str, Any]:
        values: dict[str, Any] = {"owner": self.table.owner}
        for n, queue in enumerate(queues):
            values[f"q{n}"] = queue
            values[f"p{n}"] = key_of(self._paused(queue))
        return values

    def _paused(self, queue: str) -> bytes:
        return f"{self.table.settings.prefix}{keys.paused(queue)}".encode()

    def _passed_over(self, queues: tuple[str, ...], shut: Sequence[str], found: Sequence[Any]) -> tuple[str, ...]:
        """The queues that are shut or paused. found: the names of keys of paused queues."""
        there = {bytes(name) for name in found if name is not None}
        return tuple(queue for queue in queues if queue in shut or key_of(self._paused(queue)) in there)

    def _one_statement(self, done: Reserved | None, queues: tuple[str, ...], shut: Sequence[str], mark: str) -> Found:
        values = self.values(queues)
        values |= {"mark": base_of(done.mark) if done else "", "sum": sum_of(done.member) if done else 0}
        values |= {"next": mark, "lease": round(self.table.settings.retry_after * SECOND)}
        values["shut"] = [n for n, name in enumerate(queues) if name in shut]
        (row,) = self.table.rows(self.sql.turn(len(queues)), values)
        found = Found(row.us, self._passed_over(queues, shut, row.paused or ()), row.busy, due=row.due)
        if row.id is not None:
            job = ReservedRow(row.id, row.attempts, row.us // SECOND, None, row.queue, bytes_of(row.payload))
            found = found._replace(rows=[job])
        return found._replace(there=[row.acked > 0])

    def _attempt(self, done: Reserved | None, queues: tuple[str, ...], shut: Sequence[str], mark: str) -> Found:
        answers = [] if done is None else [self.table.answer_of(done)]
        begin, commit = self.transaction()

        def step() -> Found:
            there, last = list[bool](), list[Statement]()
            head = [*begin, *(self.table.locking(answers) if answers else ())]
            found, results = self.look(queues, shut, head, 1, several=False)
            if answers:
                there, last = self.table.settled(answers, results[-2].rows, results[-1].rows)
            found = found._replace(there=there, busy=found.busy - bool(last))
            if found.rows and not found.busy:
                last += self.reserving(found, [mark])
            self.run([*last, *commit])
            return found

        if not begin and not answers and not (found := self.look(queues, shut, (), 1, several=False)[0]).rows:
            return found
        return self.table.atomic(step, explicit=bool(begin))

    def transaction(self) -> tuple[list[Statement], list[Statement]]:
        """The statements that begin and commit it; none in SQLite, where a round trip costs nothing."""
        return ([], []) if self.sql.kind == "sqlite" else ([(self.sql["begin"], {})], [(self.sql["commit"], {})])

    def look(
        self, queues: tuple[str, ...], shut: Sequence[str], head: Sequence[Statement], limit: int, *, several: bool
    ) -> tuple[Found, Sequence[StatementResult]]:
        """The first jobs of the first queue that has some, `limit` at most. several: count them, too. head:
        statements for the same round trip, whose results are returned."""
        first = next((name for name in queues if name not in shut), "") if limit else ""  # if paused, its rows are left
        seen = self.sql.seen(len(queues)), self.values(queues)
        results = self.run([*head, seen, *self._next(first, limit, several)])
        rows, before = results[len(head)].rows, results[: len(head)]
        us = int(rows[0].us)
        found = Found(us, self._passed_over(queues, shut, [row.name for row in rows]), int(rows[0].busy))
        for name in queues if limit else ():
            if name in found.paused:
                continue
            jobs, *ready = results[len(head) + 1 :] if name == first else self.run(self._next(name, limit, several))
            if jobs.rows:
                taken = [
                    ReservedRow(job.id, min(HIGHEST, job.attempts + 1), us // SECOND, None, name, bytes_of(job.payload))
                    for job in jobs.rows
                ]
                return found._replace(rows=taken, ready=ready[0].rows[0].ready if ready else 0), before
        return found._replace(due=self._next_due(queues, us // SECOND) if limit else None), before

    def _next(self, queue: str, limit: int, several: bool) -> list[Statement]:
        counts = {"first_ready": limit, "ready": 2 * SHARE * limit if several else 0}
        return [(self.sql[name], {"queue": queue, "most": most}) for name, most in counts.items() if queue and most]

    def _next_due(self, queues: tuple[str, ...], now: int) -> int | None:
        values: dict[str, Any] = {f"q{n}": queue for n, queue in enumerate(queues)}
        due = self.table.connection.execute(self.sql.next_due(len(queues)), {**values, "now": now}).scalar()
        return None if due is None else int(due)

    def reserving(self, found: Found, marks: Sequence[str]) -> list[Statement]:
        """The statements that reserve its rows under these marks."""
        if not found.rows:
            return []
        _, attempts, now, _, queue, _ = found.rows[0]
        until = found.us + round(self.table.settings.retry_after * SECOND)
        same = {"attempts": attempts, "now": now, "queue": queue, "until": until}
        each = [
            {"id": row.id, "owner": owner_of(mark), "mark": mark} for row, mark in zip(found.rows, marks, strict=False)
        ]
        take = self.sql["take"], {**same, "ids": [row.id for row in found.rows]}
        return [take, *[(self.sql["reserve"], {**same, **values}) for values in each]]


def may_be_tied(payload: bytes) -> bool:
    """As in tied.lua: relations come last before the id, which has 32 letters or is a uuid, so one byte shows them."""
    if payload.endswith(FRESH):
        return ord("}") in (payload[-68:-67] + payload[-72:-71])
    return b'"qd":{' in payload
