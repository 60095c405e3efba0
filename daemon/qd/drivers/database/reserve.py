"""A worker's turn on the table of jobs: the previous job is deleted, the next one reserved.

    PostgreSQL     one statement
    MySQL, MariaDB one transaction, FOR UPDATE SKIP LOCKED: one round trip to lock both jobs, one to change both
    SQLite         one transaction, since there is one writer at a time; none if nothing is ready

A payload that is no job goes to the failed store. A job with a lock or a key is checked in a second step, when it is already
leased (taken.lua).

A worker that may hold several jobs takes other turns (LaneTurn): one transaction deletes the finished jobs and reserves the
next, in three round trips at most. A lane is one more owner of reservations, "TOKEN/PLACE". How many jobs such a turn locks
follows from the turn before: a locked row is hidden from others even if it is not taken. If its reply was lost, a turn may
still be executed. So a field of the keyspace has the number of the last turn that changed something, and a turn that does
not find the number it expects does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from qd.drivers.base import ClientIdentity
from qd.drivers.database.dialects import Statement, StatementResult
from qd.drivers.database.rows import FRESH, base_of, bytes_of, is_text, owner_of, reserved, sum_of
from qd.drivers.database.schema import SECOND, key_of
from qd.drivers.database.sql import HIGHEST
from qd.drivers.database.table import JobTable, ReservedRow
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import script
from qd.drivers.types import NO_JOB, LaneAnswer, LaneReply, LaneTurn, Reserved, Turn, Unread
from qd.errors import ConnectionLost
from qd.payload.reservation import unstarted
from qd.process import SLOTS

MOST = 100  # payloads that a turn reserves, if the first are no jobs
SHARE = 16  # a turn of several jobs takes one of so many ready jobs, and one more
BULK = 256 << 10  # bytes of the jobs of a turn, unless the first alone has more
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
    """known: the last turn of lanes of which the reply has arrived. most: how many jobs the next may lock. fence: the hash
    with the number, "" if it is not there yet."""

    def __init__(self, table: JobTable, who: ClientIdentity) -> None:
        self.table, self.sql, self.run = table, table.sql, table.connection.execute_together
        self.token, self.slot, self.known, self.most, self.fence = who.token, who.slot, who.turns, 1, ""

    def turn(self, done: Reserved | None, queues: tuple[str, ...], shut: Sequence[str], base: str) -> Turn:
        attempt = self._one_statement if self.sql.kind == "postgresql" else self._attempt
        malformed, acked = list[Unread](), None
        for _ in range(MOST):
            found = attempt(done, queues, shut, base)
            if done is not None:
                acked, done = any(found.there or ()), None
            if found.busy:
                raise ConnectionLost(ABANDONED)
            if not found.rows:
                return Turn(acked, None, found.due_in, found.paused, tuple(malformed))
            held = self.checked(found.rows[0], base, malformed)
            if held is not None:
                return Turn(acked, held, None, found.paused, tuple(malformed))
        return Turn(acked, None, 0.0, found.paused, tuple(malformed))

    # -- the reserved row

    def checked(self, row: ReservedRow, mark: str, malformed: list[Unread]) -> Reserved | None:
        """The job, or None. If its payload is no job, it is moved to the failed store and noted in `malformed`."""
        table, held, why = self.table, None, NO_JOB
        if 0 < table.longest < len(row.payload):
            why = f"{len(row.payload)} bytes, more than {table.longest} (sixteen times max_payload)"
        elif is_text(row.payload):
            held = reserved(row.queue, row.payload, mark, row.attempts, None)
        if held is None:
            malformed.append(unread := Unread(row.queue, f"{mark}.m{len(malformed)}", why))
            table.atomic(lambda: self._reject(row, mark, unread))
            return None
        if may_be_tied(row.payload):
            text = table.atomic(lambda: self._taken(row, mark))
            if text != row.payload:
                held = reserved(row.queue, text, mark, row.attempts, None) if text else None
        return held

    def _reject(self, row: ReservedRow, mark: str, unread: Unread) -> None:
        """Move the payload to the failed store."""
        now = self.table.now_us() / SECOND
        record = f'{{"id":"{unread.id}","error":"Malformed","reason":"{unread.reason}","failed_at":{now:.3f}}}'
        self.table.keep_failed(row.queue, unread.id, record.encode(), row.payload)
        self._delete(row, mark)

    def _taken(self, row: ReservedRow, mark: str) -> bytes:
        """The payload after taken.lua; b"" if the job was cancelled or moved meanwhile, and is deleted."""
        table = self.table
        names = table.names(keys.keyed(row.queue))
        text: bytes = script("taken").call(table.space, names, row.payload, *table.names(keys.unique(""))) or b""
        if not text:
            self._delete(row, mark)
        elif text != row.payload:
            self.table.change_one("rewrite", row, payload=text.decode())
        return text

    def _delete(self, row: ReservedRow, mark: str) -> None:
        self.table.change_one("delete", row)
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

    # -- lanes

    def turn_lanes(self, turn: LaneTurn, first: int, last: int) -> LaneReply:
        if not self.fence:
            self.table.atomic(lambda: self.begin(turn.queues, self.known))
        known, malformed, lost, jobs = self.known, list[Unread](), list[Reserved](), list[Reserved]()
        seats = [self.slot + SLOTS * lane for lane in (turn.single, *turn.lanes)]
        marks = [f"{self.token}.{seat}.{first + max(0, n - 1)}" for n, seat in enumerate(seats)]
        for _ in range(MOST):
            found = self._attempt_lanes(turn, marks, known, last)
            if found.there is not None:
                known = last
                lost += [held for held, there in zip(turn.done, found.there, strict=False) if not there]
            turn = turn._replace(done=(), back=())
            if found.plain:
                each = [(row.payload, mark) for row, mark in zip(found.rows, marks[1:], strict=False)]
                jobs = [job for text, mark in each if (job := reserved(found.rows[0].queue, text, mark, 1, None))]
            elif found.rows:
                single = self.checked(found.rows[0], marks[0], malformed)
                jobs = [single] if single else []
            if jobs or not found.rows:
                break
        self.known = known
        if turn.lanes:
            self.most = max(1, min(2 * len(jobs), 1 + found.ready // SHARE))
        return LaneReply(tuple(lost), tuple(jobs), found.due_in, found.paused, tuple(malformed))

    # -- the fence

    @property
    def _field(self) -> str:
        return f"{self.token}/{self.slot}{keys.FENCE}"

    def begin(self, queues: Sequence[str], number: int) -> None:
        """Let all turns before this number do nothing, inside a transaction."""
        (self.fence,) = self.table.names(keys.owners(min(queues)))
        (found,) = self.run([self._number("number")])
        if not found.rows or int(found.rows[0].value) < number:
            self.table.space.call("HSET", self.fence, self._field, number)
        self.known = number

    def leave(self) -> None:
        if self.fence:
            self.table.space.call("HDEL", self.fence, self._field)
            self.fence = ""

    def _number(self, name: str, **more: Any) -> Statement:
        return self.sql[name], {"name": key_of(self.fence.encode()), "item": key_of(self._field.encode()), **more}

    # -- one attempt of a turn of lanes

    def _attempt_lanes(self, turn: LaneTurn, marks: Sequence[str], known: int, last: int) -> Found:
        """A look comes first if there is nothing to answer: it locks and writes nothing if nothing is ready."""
        answers = [LaneAnswer(job.owner, job.member) for job in turn.done]
        answers += [LaneAnswer(job.owner, job.member, unstarted(job.member, job.mark)) for job in turn.back]
        begin, commit = self.transaction()

        def step() -> Found:
            there, head = list[bool](), list[Statement]([*begin, self._number("number")])
            if answers:
                results = self.run([*head, *self.table.locking(answers)])
                self._check(results[len(begin)].rows, known)
                there, head = self.table.settled(answers, results[-2].rows, results[-1].rows)
            found = self._look(turn, head, None if answers else known)._replace(there=there)
            numbered = self._number("numbered", last=b"%d" % last)
            self.run([numbered, *self.reserving(found, marks if not found.plain else marks[1:]), *commit])
            return found

        if answers or (found := self._look(turn, [self._number("known")], known)).rows:
            return self.table.atomic(step, explicit=bool(begin))
        return found

    def _check(self, rows: Sequence[Any], known: int) -> None:
        if not rows or int(rows[0].value) != known:
            raise ConnectionLost(ABANDONED)

    def _look(self, turn: LaneTurn, head: Sequence[Statement], known: int | None) -> Found:
        """head: statements for the same round trip, of which the last returns the number if it must be `known`."""
        limit = min(len(turn.lanes), self.most)
        found, results = self.look(tuple(turn.queues), turn.shut, head, limit, several=True)
        if known is not None:
            self._check(results[-1].rows, known)
        return self._chosen(found) if found.rows else found

    def _chosen(self, found: Found) -> Found:
        """The ordinary jobs at the head, or the first job, whatever it is."""
        rows, size = found.rows[: 1 + found.ready // SHARE], 0
        for n, row in enumerate(rows):
            size += len(row.payload)
            if not self._plain(row) or size > BULK:
                return found._replace(rows=rows[: max(1, n)], plain=n > 0 or self._plain(row))
        return found._replace(rows=rows, plain=True)

    def _plain(self, row: ReservedRow) -> bool:
        payload = row.payload
        usual = row.attempts == 1 and payload[:1] == b"{" and payload.endswith(FRESH) and is_text(payload)
        fits = not self.table.longest or len(payload) <= self.table.longest
        return usual and fits and b'rsv"' not in payload and b'"qd":{' not in payload


def may_be_tied(payload: bytes) -> bool:
    """As in tied.lua: relations come last before the id, which has 32 letters or is a uuid, so one byte shows them."""
    if payload.endswith(FRESH):
        return ord("}") in (payload[-68:-67] + payload[-72:-71])
    return b'"qd":{' in payload
