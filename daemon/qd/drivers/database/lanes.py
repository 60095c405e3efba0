"""Turns of a worker that may hold several jobs (LaneTurn): it deletes finished ones and reserves the next.

    PostgreSQL     one statement
    MySQL, MariaDB one transaction of two round trips
    SQLite         one transaction; none if there is nothing to do

A lane is one more owner of reservations, "TOKEN/PLACE". How many jobs a turn locks follows from the turn before, since the
database can skip a locked row only before it has looked at it.

A turn whose reply was lost may still be executed. So a field of the keyspace has the number of the last turn that changed
something (`turn_field` of the owners of the worker's first queue), and a turn that does not find the number it expects does
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from qd.drivers.base import ClientIdentity
from qd.drivers.database.dialects import Statement
from qd.drivers.database.leases import Leases
from qd.drivers.database.reserve import MOST, Reserver
from qd.drivers.database.rows import FRESH, as_unreserved, base_of, bytes_of, is_text, owners_mark, reserved, sum_of
from qd.drivers.database.schema import SECOND, key_of
from qd.drivers.database.sql import BULK, HIGHEST, SHARE
from qd.drivers.database.table import JobTable, ReservedRow
from qd.drivers.keyspace import keys
from qd.drivers.types import LaneAnswer, LaneReply, LaneTurn, Reserved
from qd.errors import ConnectionLost
from qd.process import SLOTS

RSV, TIED = 'rsv"', '"qd":{'
ABANDONED = "the database executed a call this worker had already abandoned; reconnecting"


def turn_field(owner: str) -> str:
    return f"{owner}:turn"


class Numbers(NamedTuple):
    """The turn that the database must know, and the first and last of this one."""

    known: int
    first: int
    last: int


class Found(NamedTuple):
    """One attempt. wrote: the database now knows the last number. rows: reserved. plain: they are ordinary jobs."""

    wrote: bool
    us: int
    acked: frozenset[str]
    rows: list[ReservedRow]
    plain: bool
    ready: int
    due: int | None
    paused: tuple[str, ...]


class LaneReserver:
    """known: the last turn whose reply has arrived. most: jobs that the next turn may lock."""

    def __init__(self, table: JobTable, leases: Leases, reserver: Reserver, who: ClientIdentity) -> None:
        self.table, self.leases, self.reserver = table, leases, reserver
        self.token, self.slot, self.known, self.most = who.token, who.slot, who.turns, 1
        self.fence = ""  # the hash that has the number

    def turn(self, turn: LaneTurn, first: int, last: int) -> LaneReply:
        if self.fence != self._hash(turn.queues):
            self.table.atomic(lambda: self._begin(turn.queues, self.known))
        numbers, limit, lost, malformed = Numbers(self.known, first, last), self._limit(len(turn.lanes)), None, 0
        jobs = list[Reserved]()
        for _ in range(MOST):
            found = self._attempt(turn, numbers, limit)
            if lost is None:
                lost = tuple(held for held in turn.done if base_of(held.mark) not in found.acked)
                turn = turn._replace(done=(), back=())
            if found.wrote:
                numbers = numbers._replace(known=last)
            marks = self._marks(turn, first)
            if found.plain:
                each = zip(found.rows, marks[1:], strict=False)
                jobs = [job for row, mark in each if (job := reserved(row.queue, row.payload, mark, 1, None))]
            elif found.rows:
                job, rejected = self.reserver.checked(found.rows[0], marks[0], f"{marks[0]}.m{malformed}")
                malformed += rejected
                jobs = [job] if job else []
            if jobs or not found.rows:
                break
        self.known, self.most = numbers.known, max(1, min(2 * len(jobs), 1 + found.ready // SHARE))
        due = None if found.rows or found.due is None else max(0.0, found.due - found.us / SECOND)
        return LaneReply(lost or (), tuple(jobs), due, found.paused, malformed)

    def held(self, queues: Sequence[str], lanes: Sequence[int], number: int) -> list[Reserved]:
        def look() -> list[Reserved]:
            self._begin(queues, number)
            return self.leases.held_by([self._owner(lane) for lane in {0, *lanes}], queues)

        found = self.table.atomic(look)
        self.known = number
        return found

    def leave(self) -> None:
        if self.fence:
            self.table.space.call("HDEL", self.fence, turn_field(self._owner(0)))
            self.fence = ""

    # -- names

    def _owner(self, lane: int) -> str:
        return f"{self.token}/{self.slot + SLOTS * lane}"

    def _mark(self, lane: int, turn: int) -> str:
        return f"{self.token}.{self.slot + SLOTS * lane}.{turn}"

    def _marks(self, turn: LaneTurn, first: int) -> list[str]:
        """Of a job that is taken by itself, then of the lanes."""
        return [self._mark(turn.single, first), *[self._mark(lane, first + n) for n, lane in enumerate(turn.lanes)]]

    def _limit(self, lanes: int) -> int:
        """A power of two, or the number of lanes: each number is another statement for the database."""
        return lanes if lanes <= self.most else 1 << (self.most.bit_length() - 1)

    # -- the fence

    def _hash(self, queues: Sequence[str]) -> str:
        return self.table.names(keys.owners(min(queues)))[0]

    def _field(self) -> dict[str, Any]:
        return {"name": key_of(self.fence.encode()), "item": key_of(turn_field(self._owner(0)).encode())}

    def _begin(self, queues: Sequence[str], number: int) -> None:
        """Let all turns before this number do nothing."""
        if self.fence != self._hash(queues):
            self.leave()
        self.fence, table = self._hash(queues), self.table
        found = table.connection.execute(table.sql["number"], self._field()).scalar()
        if found is None or int(found) < number:
            table.space.call("HSET", self.fence, turn_field(self._owner(0)), number)

    # -- one attempt

    def _attempt(self, turn: LaneTurn, numbers: Numbers, limit: int) -> Found:
        table = self.table
        if table.sql.kind == "sqlite" and not turn.done and not turn.back:
            found, _ = self._look(turn, numbers, limit)
            if not found.rows:
                return found
        act = self._one_statement if table.sql.kind == "postgresql" else self._two_trips

        def step() -> Found:
            self._put_back(turn.back)
            return act(turn, numbers, limit)

        return table.atomic(step, explicit=self._explicit(turn))

    def _put_back(self, back: Sequence[Reserved]) -> None:
        for queue in dict.fromkeys(held.queue for held in back):
            of = [held for held in back if held.queue == queue]
            marks = [owners_mark(held.owner, held.member) for held in of]
            texts = [as_unreserved(held.member, mark) for held, mark in zip(of, marks, strict=True)]
            self.leases.settle(
                queue, [LaneAnswer(held.owner, held.member, text) for held, text in zip(of, texts, strict=True)]
            )

    def _one_statement(self, turn: LaneTurn, numbers: Numbers, limit: int) -> Found:
        table, queues, done = self.table, tuple(turn.queues), turn.done
        lanes = [turn.single, *turn.lanes]
        values = {
            **self.reserver.values(queues),
            **self._field(),
            "shut": [n for n, name in enumerate(queues) if name in turn.shut],
            "known": b"%d" % numbers.known,
            "last": b"%d" % numbers.last,
            "answers": bool(done),
            "owners": [held.owner for held in done],
            "marks": [base_of(held.mark) for held in done],
            "sums": [sum_of(held.member) for held in done],
            "lanes": [self._owner(lane) for lane in lanes],
            "next": self._marks(turn, numbers.first),
            "lease": round(table.settings.retry_after * SECOND),
            "fresh": FRESH.decode(),
            "rsv": RSV,
            "tied": TIED,
            "longest": table.longest,
        }
        rows = table.rows(table.sql.lanes(len(queues), limit), values)
        first = rows[0]
        expected = first.number is not None and bytes(first.number) == values["known"]
        if not expected or (not first.fenced and (done or first.seen)):
            raise ConnectionLost(ABANDONED)
        taken = [
            ReservedRow(row.id, row.attempts, row.us // SECOND, queue=row.queue, payload=bytes_of(row.payload))
            for row in rows
            if row.id is not None
        ]
        paused = self.reserver.passed_over(queues, turn.shut, first.paused or ())
        acked = frozenset(first.acked or ())
        return Found(first.fenced > 0, first.us, acked, taken, bool(first.plain), first.ready, first.due, paused)

    def _two_trips(self, turn: LaneTurn, numbers: Numbers, limit: int) -> Found:
        table, explicit = self.table, self._explicit(turn)
        found, leased = self._look(turn, numbers, limit, [(table.sql["begin"], {})] if explicit else [])
        last = list[Statement]()
        if found.rows or turn.done:
            last.append((table.sql["counted"], {**self._field(), "last": b"%d" % numbers.last}))
        if leased:
            last.append((table.sql["forget_jobs"], {"ids": [row.job_id for row in leased]}))
        if ended := [row.job_id for row in leased if row.there is not None]:
            last.append((table.sql["delete_jobs"], {"ids": ended}))
        if found.rows:
            last += self._reserving(found, turn, numbers)
        if explicit:
            last.append((table.sql["commit"], {}))
        table.connection.execute_together(last)
        acked = frozenset(row.mark for row in leased if row.there is not None)
        return found._replace(wrote=bool(found.rows or turn.done), acked=acked)

    def _explicit(self, turn: LaneTurn) -> bool:
        return self.table.sql.kind == "mysql" and not turn.back

    def _look(
        self, turn: LaneTurn, numbers: Numbers, limit: int, before: Sequence[Statement] = ()
    ) -> tuple[Found, list[Any]]:
        """What there is to reserve, and the reservations to end. before: statements of the same round trip."""
        table, queues = self.table, tuple(turn.queues)
        first = next((name for name in queues if name not in turn.shut), "") if limit else ""
        sums = {base_of(held.mark): sum_of(held.member) for held in turn.done}
        statements = [
            *before,
            (table.sql["number"], self._field()),
            (table.sql.seen(len(queues)), {"owner": "", **self.reserver.values(queues)}),
        ]
        if turn.done:
            owners = [held.owner for held in turn.done]
            statements.append((table.sql["leased"], {"owners": owners, "marks": list(sums)}))
        many = len(statements) - len(before)
        found = [each.rows for each in table.connection.execute_together([*statements, *self._next(first, limit)])]
        number, seen, *rest = found[len(before) : len(before) + many]
        if not number or bytes(number[0].value) != b"%d" % numbers.known:
            raise ConnectionLost(ABANDONED)
        leased = [row for row in rest[0] if row.text_sum in (None, sums[row.mark])] if rest else []
        us, paused = int(seen[0].us), self.reserver.passed_over(queues, turn.shut, [row.name for row in seen])
        for name in queues if limit else ():
            if name in paused:
                continue
            if name != first:
                found = [each.rows for each in table.connection.execute_together(self._next(name, limit))]
            jobs, ((ready,),) = found[-2:]
            if jobs:
                rows, plain = self._chosen(name, jobs, ready, us // SECOND)
                return Found(False, us, frozenset(), rows, plain, ready, None, paused), leased
        return Found(False, us, frozenset(), [], False, 0, self.reserver.next_due(queues, us // SECOND), paused), leased

    def _next(self, queue: str, limit: int) -> list[Statement]:
        if not queue:
            return []
        sql, counted = self.table.sql, {"queue": queue, "most": SHARE * 2 * limit}
        return [(sql["first_ready"], {"queue": queue, "most": limit}), (sql["ready"], counted)]

    def _chosen(self, queue: str, jobs: Sequence[Any], ready: int, now: int) -> tuple[list[ReservedRow], bool]:
        """The ordinary jobs at the head, or the first job, and whether it is ordinary."""
        rows, size = list[ReservedRow](), 0
        for job in jobs[: 1 + ready // SHARE]:
            payload = bytes_of(job.payload)
            plain, size = not job.attempts and self._plain(payload), size + len(payload)
            if rows and not (plain and size <= BULK):
                break
            rows.append(ReservedRow(job.id, min(HIGHEST, job.attempts + 1), now, queue=queue, payload=payload))
            if not plain:
                return rows, False
        return rows, True

    def _plain(self, payload: bytes) -> bool:
        if payload[:1] != b"{" or not payload.endswith(FRESH) or 0 < self.table.longest < len(payload):
            return False
        return RSV.encode() not in payload and TIED.encode() not in payload and is_text(payload)

    def _reserving(self, found: Found, turn: LaneTurn, numbers: Numbers) -> list[Statement]:
        sql, marks, lanes = self.table.sql, self._marks(turn, numbers.first), [turn.single, *turn.lanes]
        until = found.us + round(self.table.settings.retry_after * SECOND)
        row = found.rows[0]
        same = {"attempts": row.attempts, "now": row.reserved_at, "queue": row.queue, "until": until}
        taken: list[Statement] = [(sql["take_all"], {**same, "ids": [row.id for row in found.rows]})]
        for n, each in enumerate(found.rows, int(found.plain)):
            taken.append((sql["reserve"], {**same, "id": each.id, "owner": self._owner(lanes[n]), "mark": marks[n]}))
        return taken
