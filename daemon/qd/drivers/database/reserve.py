"""A worker's turn on the table of jobs: the previous job is deleted, the next one reserved. One transaction, FOR UPDATE SKIP
LOCKED: one round trip to lock both, one to change both. In SQLite, which has one writer at a time, none if nothing is ready.

A payload that is no job goes to the failed store. A job with a lock or a key is checked in a second step, when it is already
leased (taken.lua).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from qd.drivers.database.dialects import Statement, StatementResult
from qd.drivers.database.rows import FRESH, bytes_of, is_text, reserved
from qd.drivers.database.schema import SECOND, key_of
from qd.drivers.database.sql import HIGHEST
from qd.drivers.database.table import JobTable, ReservedRow
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import script
from qd.drivers.types import Reserved, Turn
from qd.errors import ConnectionLost

MOST = 100  # payloads that a turn reserves, if the first are no jobs


class TurnResult(NamedTuple):
    """One attempt to reserve. busy: this worker holds another job. us: the time. due: the second in which the next delayed
    job is due."""

    acked: bool
    busy: bool
    us: int
    row: ReservedRow | None
    due: int | None
    paused: tuple[str, ...]


class Reserver:
    def __init__(self, table: JobTable) -> None:
        self.table = table

    def turn(self, done: Reserved | None, queues: tuple[str, ...], shut: Sequence[str], base: str) -> Turn:
        malformed, acked = 0, None
        for _ in range(MOST):
            found = self._attempt(done, queues, shut, base)
            if done is not None:
                acked, done = found.acked, None
            if found.busy:
                raise ConnectionLost("the database executed a call this worker had already abandoned; reconnecting")
            if found.row is None:
                due = None if found.due is None else max(0.0, found.due - found.us / SECOND)
                return Turn(acked, None, due, found.paused, malformed)
            held, rejected = self.checked(found.row, base, f"{base}.m{malformed}")
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

    def passed_over(self, queues: tuple[str, ...], shut: Sequence[str], found: Sequence[Any]) -> tuple[str, ...]:
        """The queues that are shut or paused. found: the names of keys of paused queues."""
        there = {bytes(name) for name in found if name is not None}
        return tuple(queue for queue in queues if queue in shut or key_of(self._paused(queue)) in there)

    def _attempt(self, done: Reserved | None, queues: tuple[str, ...], shut: Sequence[str], mark: str) -> TurnResult:
        table, run = self.table, self.table.connection.execute_together
        explicit = table.sql.kind != "sqlite"
        begin, commit = ([(table.sql[word], dict[str, Any]())] if explicit else [] for word in ("begin", "commit"))
        first = next((name for name in queues if name not in shut), None)  # if it is paused, its row is left
        look = [(table.sql.seen(len(queues)), self.values(queues)), *([] if first is None else [self._next(first)])]
        answers = [] if done is None else [table.answer_of(done)]

        def step() -> TurnResult:
            there, last = list[bool](), list[Statement]()
            head = [*begin, *(table.locking(answers) if answers else ())]
            results = run([*head, *look])
            if answers:
                there, last = table.settled(answers, results[len(head) - 2].rows, results[len(head) - 1].rows)
            result = self._found(queues, shut, first, results[len(head) :], own=bool(last))
            if result.row is not None:
                last += self._reserving(result.row, mark, result.us)
            run([*last, *commit])
            return result._replace(acked=any(there))

        if not explicit and done is None and (found := self._found(queues, shut, first, run(look))).row is None:
            return found
        return table.atomic(step, explicit=explicit)

    def _found(
        self,
        queues: tuple[str, ...],
        shut: Sequence[str],
        first: str | None,
        results: Sequence[StatementResult],
        own: bool = False,
    ) -> TurnResult:
        """results: of `seen`, and of the next job of the queue `first`. own: the previous job is still there, and ends."""
        seen = results[0].rows
        us, paused = int(seen[0].us), self.passed_over(queues, shut, [row.name for row in seen])
        if seen[0].busy > own:
            return TurnResult(False, True, us, None, None, paused)
        now = us // SECOND
        for name in queues:
            if name in paused:
                continue
            rows = results[1].rows if name == first else self.table.connection.execute(*self._next(name)).all()
            if rows:
                (job,) = rows
                attempts = min(HIGHEST, job.attempts + 1)
                row = ReservedRow(job.id, attempts, now, queue=name, payload=bytes_of(job.payload))
                return TurnResult(False, False, us, row, None, paused)
        return TurnResult(False, False, us, None, self.next_due(queues, now), paused)

    def next_due(self, queues: tuple[str, ...], now: int) -> int | None:
        values: dict[str, Any] = {f"q{n}": queue for n, queue in enumerate(queues)}
        due = self.table.connection.execute(self.table.sql.next_due(len(queues)), {**values, "now": now}).scalar()
        return None if due is None else int(due)

    def _next(self, queue: str) -> Statement:
        return self.table.sql["first_ready"], {"queue": queue, "most": 1}

    def _reserving(self, row: ReservedRow, mark: str, us: int) -> list[Statement]:
        table = self.table
        values = {"id": row.id, "attempts": row.attempts, "now": row.reserved_at}
        until = us + round(table.settings.retry_after * SECOND)
        more = {"queue": row.queue, "owner": table.owner, "mark": mark, "until": until}
        return [(table.sql["take"], {**values, "ids": [row.id]}), (table.sql["reserve"], {**values, **more})]


def may_be_tied(payload: bytes) -> bool:
    """As in tied.lua: relations come last before the id, which has 32 letters or is a uuid, so one byte shows them."""
    if payload.endswith(FRESH):
        return ord("}") in (payload[-68:-67] + payload[-72:-71])
    return b'"qd":{' in payload
