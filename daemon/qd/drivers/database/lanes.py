"""Turns of a worker that may hold several jobs (LaneTurn): one transaction deletes the finished jobs and reserves the
next, in three round trips at most.

A lane is one more owner of reservations, "TOKEN/PLACE". How many jobs a turn locks follows from the turn before: a locked
row is hidden from others even if it is not taken.

A turn whose reply was lost may still be executed. So a field of the keyspace has the number of the last turn that changed
something, and a turn that does not find the number it expects does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qd.drivers.base import ClientIdentity
from qd.drivers.database.dialects import Statement
from qd.drivers.database.reserve import ABANDONED, MOST, SHARE, Found, Reserver
from qd.drivers.database.rows import FRESH, is_text, reserved
from qd.drivers.database.schema import key_of
from qd.drivers.database.table import JobTable, ReservedRow
from qd.drivers.keyspace import keys
from qd.drivers.types import LaneAnswer, LaneReply, LaneTurn, Reserved
from qd.errors import ConnectionLost
from qd.payload.reservation import unstarted
from qd.process import SLOTS

BULK = 256 << 10  # bytes of the jobs of a turn, unless the first alone has more


class LaneReserver(Reserver):
    """known: the last turn of which the reply has arrived. most: how many jobs the next turn may lock. fence: the hash with
    the number, "" if it is not there yet."""

    def __init__(self, table: JobTable, who: ClientIdentity) -> None:
        super().__init__(table)
        self.token, self.slot, self.known, self.most, self.fence = who.token, who.slot, who.turns, 1, ""

    def turn_lanes(self, turn: LaneTurn, first: int, last: int) -> LaneReply:
        if not self.fence:
            self.table.atomic(lambda: self.begin(turn.queues, self.known))
        known, malformed, lost, jobs = self.known, 0, list[Reserved](), list[Reserved]()
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
                single, rejected = self.checked(found.rows[0], marks[0], f"{marks[0]}.m{malformed}")
                jobs, malformed = [single] if single else [], malformed + rejected
            if jobs or not found.rows:
                break
        self.known = known
        if turn.lanes:
            self.most = max(1, min(2 * len(jobs), 1 + found.ready // SHARE))
        return LaneReply(tuple(lost), tuple(jobs), found.due_in, found.paused, malformed)

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

    # -- one attempt

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
