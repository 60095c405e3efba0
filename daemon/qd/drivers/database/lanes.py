"""Turns of a worker that may hold several jobs (LaneTurn): one transaction deletes the finished jobs and reserves the
next, in three round trips at most.

A lane is one more owner of reservations, "TOKEN/PLACE". How many jobs a turn locks follows from the turn before: a locked
row is hidden from others even if it is not taken.

A turn whose reply was lost may still be executed. So a field of the keyspace has the number of the last turn that changed
something, and a turn that does not find the number it expects does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from qd.drivers.base import ClientIdentity
from qd.drivers.database.dialects import Statement
from qd.drivers.database.leases import Leases
from qd.drivers.database.reserve import MOST, Reserver
from qd.drivers.database.rows import FRESH, as_unreserved, base_of, bytes_of, is_text, owner_of, reserved
from qd.drivers.database.schema import SECOND, key_of
from qd.drivers.database.sql import BULK, HIGHEST, SHARE
from qd.drivers.database.table import JobTable, ReservedRow
from qd.drivers.keyspace import keys
from qd.drivers.types import LaneAnswer, LaneReply, LaneTurn, Reserved
from qd.errors import ConnectionLost
from qd.process import SLOTS


class Found(NamedTuple):
    """What a turn finds to reserve. plain: these are ordinary jobs. there: whether each answered job was still leased."""

    us: int
    rows: list[ReservedRow]
    plain: bool
    ready: int
    paused: tuple[str, ...]
    there: Sequence[bool] = ()


class LaneReserver:
    """known: the last turn of which the reply has arrived. most: how many jobs the next turn may lock. fence: the hash with
    the number, "" if it is not there yet."""

    def __init__(self, table: JobTable, leases: Leases, reserver: Reserver, who: ClientIdentity) -> None:
        self.table, self.leases, self.reserver = table, leases, reserver
        self.sql, self.connection = table.sql, table.connection
        self.token, self.slot, self.known, self.most, self.fence = who.token, who.slot, who.turns, 1, ""

    def turn(self, turn: LaneTurn, first: int, last: int) -> LaneReply:
        if self.fence != self._hash(turn.queues):
            self.table.atomic(lambda: self._begin(turn.queues, self.known))
        known, malformed, lost, jobs, count = self.known, 0, list[Reserved](), list[Reserved](), len(turn.lanes)
        # a power of two, or all lanes: the database makes a plan for each number
        limit = count if count <= self.most else 1 << (self.most.bit_length() - 1)
        marks = [self._mark(turn.single, first), *[self._mark(lane, first + n) for n, lane in enumerate(turn.lanes)]]
        for _ in range(MOST):
            found = self._attempt(turn, known, last, limit, marks)
            if found.rows or turn.done or turn.back:
                known = last
            lost += [held for held, there in zip(turn.done, found.there, strict=False) if not there]
            turn = turn._replace(done=(), back=())
            if found.plain:
                jobs = [self._ordinary(row, mark) for row, mark in zip(found.rows, marks[1:], strict=False)]
            elif found.rows:
                job, rejected = self.reserver.checked(found.rows[0], marks[0], f"{marks[0]}.m{malformed}")
                malformed += rejected
                jobs = [job] if job else []
            if jobs or not found.rows:
                break
        self.known, self.most = known, max(1, min(2 * len(jobs), 1 + found.ready // SHARE))
        due = None if found.rows else self.reserver.next_due(tuple(turn.queues), found.us // SECOND)
        seconds = None if due is None else max(0.0, due - found.us / SECOND)
        return LaneReply(tuple(lost), tuple(jobs), seconds, found.paused, malformed)

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

    def _owner(self, lane: int) -> str:
        return f"{self.token}/{self.slot + SLOTS * lane}"

    def _mark(self, lane: int, turn: int) -> str:
        return f"{self.token}.{self.slot + SLOTS * lane}.{turn}"

    # -- the fence

    def _hash(self, queues: Sequence[str]) -> str:
        return self.table.names(keys.owners(min(queues)))[0]

    @property
    def _field(self) -> dict[str, Any]:
        return {"name": key_of(self.fence.encode()), "item": key_of(turn_field(self._owner(0)).encode())}

    def _begin(self, queues: Sequence[str], number: int) -> None:
        """Let all turns before this number do nothing."""
        if self.fence != self._hash(queues):
            self.leave()
            self.fence = self._hash(queues)
        found = self.connection.execute(self.sql["number"], self._field).scalar()
        if found is None or int(found) < number:
            self.table.space.call("HSET", self.fence, turn_field(self._owner(0)), number)

    # -- one attempt

    def _attempt(self, turn: LaneTurn, known: int, last: int, limit: int, marks: Sequence[str]) -> Found:
        """The jobs are reserved. A look comes first, if there is nothing to answer: it locks and writes nothing."""
        done, back = list(turn.done), list(turn.back)
        answers = [LaneAnswer(held.owner, held.member) for held in done]
        answers += [
            LaneAnswer(held.owner, held.member, as_unreserved(held.member, base_of(held.mark))) for held in back
        ]
        explicit = self.sql.kind != "sqlite"
        begin: list[Statement] = [(self.sql["begin"], {})] if explicit else []
        commit: list[Statement] = [(self.sql["commit"], {})] if explicit else []

        def step() -> Found:
            there, first = list[bool](), [*begin, (self.sql["number"], self._field)]
            if answers:
                results = self.connection.execute_together([*first, *self.leases.locking(answers)])
                self._check(results[len(begin)].rows, known)
                there, first = self.leases.settle(answers, results[-2].rows, results[-1].rows)
            found = self._look(turn, limit, first, None if answers else known)._replace(there=there)
            final = [(self.sql["numbered"], {**self._field, "last": b"%d" % last})]
            self.connection.execute_together([*final, *self._reserving(found, turn, marks), *commit])
            return found

        if not answers:
            found = self._look(turn, limit, [(self.sql["known"], self._field)], known)
            if not found.rows:
                return found
        return self.table.atomic(step, explicit=explicit)

    def _check(self, rows: Sequence[Any], known: int) -> None:
        if not rows or int(rows[0].value) != known:
            raise ConnectionLost("the database executed a call this worker had already abandoned; reconnecting")

    def _look(self, turn: LaneTurn, limit: int, first: Sequence[Statement], known: int | None) -> Found:
        """first: statements for the same round trip, of which the last returns the number if it must be `known`."""
        queues, run = tuple(turn.queues), self.connection.execute_together
        ahead = next((name for name in queues if name not in turn.shut), "") if limit else ""
        results = run([*first, (self.sql.seen(len(queues)), self.reserver.values(queues)), *self._next(ahead, limit)])
        if known is not None:
            self._check(results[len(first) - 1].rows, known)
        seen = results[len(first)].rows
        us, paused = int(seen[0].us), self.reserver.passed_over(queues, turn.shut, [row.name for row in seen])
        for name in queues if limit else ():
            if name not in paused:
                jobs, counted = results[-2:] if name == ahead else run(self._next(name, limit))
                if jobs.rows:
                    ready = counted.rows[0].ready
                    rows = self._chosen(name, jobs.rows[: 1 + ready // SHARE], us // SECOND)
                    return Found(us, rows, self._plain(jobs.rows[0]), ready, paused)
        return Found(us, [], False, 0, paused)

    def _next(self, queue: str, limit: int) -> list[Statement]:
        counts = {"first_ready": limit, "ready": 2 * SHARE * limit}
        return [(self.sql[name], {"queue": queue, "most": most}) for name, most in counts.items() if queue]

    def _chosen(self, queue: str, jobs: Sequence[Any], now: int) -> list[ReservedRow]:
        """The ordinary jobs at the head; the first job, whatever it is."""
        rows, size, plain = list[ReservedRow](), 0, True
        for job in jobs:
            payload = bytes_of(job.payload)
            plain, size = plain and self._plain(job), size + len(payload)
            if rows and not (plain and size <= BULK):
                break
            rows.append(ReservedRow(job.id, min(HIGHEST, job.attempts + 1), now, queue=queue, payload=payload))
        return rows

    def _plain(self, job: Any) -> bool:
        payload = bytes_of(job.payload)
        usual = not job.attempts and payload[:1] == b"{" and payload.endswith(FRESH) and is_text(payload)
        small = not self.table.longest or len(payload) <= self.table.longest
        return usual and small and b'rsv"' not in payload and b'"qd":{' not in payload

    def _ordinary(self, row: ReservedRow, mark: str) -> Reserved:
        job = reserved(row.queue, row.payload, mark, row.attempts, None)
        assert job is not None
        return job

    def _reserving(self, found: Found, turn: LaneTurn, marks: Sequence[str]) -> list[Statement]:
        if not found.rows:
            return []
        until = found.us + round(self.table.settings.retry_after * SECOND)
        _, attempts, now, _, queue, _ = found.rows[0]
        same = {"attempts": attempts, "now": now, "queue": queue, "until": until}
        taken: list[Statement] = [(self.sql["take_all"], {**same, "ids": [row.id for row in found.rows]})]
        for row, mark in zip(found.rows, marks[found.plain :], strict=False):
            taken.append((self.sql["reserve"], {**same, "id": row.id, "owner": owner_of(mark), "mark": mark}))
        return taken


def turn_field(owner: str) -> str:
    return f"{owner}:turn"
