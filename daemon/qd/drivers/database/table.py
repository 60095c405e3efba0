"""JobTable: transactions on the table of jobs and on the keyspace in the same database, and answers to reservations.

An answer is given by a worker to its own reservation, by a keeper to that of a dead worker:

    jobs          the row is deleted, put back unchanged (to the head) or as a new row (to the tail), or rewritten
    qd_reserved   deleted with it; its mark, and the sum of a checkpoint's text, are the fence

A keeper's beat renews and reclaims leases. Due jobs are not moved: a turn finds them. A reservation of PHP that expired is
freed as Laravel does it, so it has cost an attempt; one of ours goes to the tail with its mark unanswered, so the next
reservation counts a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import sqlalchemy as sql

from qd.drivers.database.connection import again, channel
from qd.drivers.database.dialects import Statement
from qd.drivers.database.keyspace import DatabaseKeyspace
from qd.drivers.database.rows import (
    base_of,
    bytes_of,
    column_of,
    dropped,
    member_of,
    owner_of,
    owners_mark,
    reserved,
    row_after,
    spent,
    sum_of,
    text_of,
)
from qd.drivers.database.schema import SECOND
from qd.drivers.database.sql import statements
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import script
from qd.drivers.keyspace.queue import Bounds
from qd.drivers.keyspace.sending import effect_args
from qd.drivers.types import BeatReply, BeatRequest, Effect, LaneAnswer, Released, Reserved
from qd.payload.reservation import split_mark
from qd.process.shield import shield

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings


T = TypeVar("T")
MOST = 100  # leases a beat reclaims at most; one with more to do comes again soon
DAY = 86400
Turns = list[tuple[int, int]]  # seat and turn


class ReservedRow(NamedTuple):
    """A reserved job. text_sum: of the text of its last checkpoint, or None. queue, payload: of a job that a turn has just
    reserved."""

    id: int
    attempts: int
    reserved_at: int
    text_sum: int | None = None
    queue: str = ""
    payload: bytes = b""


class JobTable:
    """The table, and the keyspace in the same database, over one connection. owner: of reservations here. longest: bytes of
    a payload that a worker accepts, 0 for no bound."""

    def __init__(
        self, settings: ConnectionSettings, space: DatabaseKeyspace, owner: str, keep: Bounds, longest: int
    ) -> None:
        self.settings, self.space, self.connection = settings, space, space.connection
        self.owner, self.keep, self.longest = owner, keep, longest
        self.sql = statements(self.connection.kind, self.connection.server.clock, settings.table)

    def names(self, *names: str) -> list[str]:
        """The names of these keys in the keyspace."""
        return [self.settings.prefix + name for name in names]

    def atomic(self, act: Callable[[], T], *, explicit: bool = False) -> T:
        """Run all that `act` executes as one transaction, or as part of the current one. explicit: see
        DatabaseConnection.transaction."""
        return self._again(partial(self.connection.transaction, explicit=explicit), act)

    def _again(self, around: Callable[[], AbstractContextManager[None]], act: Callable[[], T]) -> T:
        def attempt() -> T:
            with shield, around():
                return act()

        return again(self.connection, attempt)

    def rows(self, statement: sql.TextClause, values: dict[str, Any]) -> Any:
        """Execute one statement, in a transaction of its own if there is none. Returns its rows, if it has any."""

        def execute() -> Any:
            result = self.connection.execute(statement, values)
            return result.all() if result.returns_rows else ()

        return self._again(nullcontext, execute)

    def run(self, name: str, /, **values: Any) -> sql.CursorResult[Any]:
        """Execute a statement of sql.py, inside a transaction."""
        return self.connection.execute(self.sql[name], values)

    def now_us(self) -> int:
        """The clock of the database, in microseconds."""
        return int(self.run("now").scalar_one())

    def notify(self, queues: set[str]) -> None:
        """Wake the workers that wait for these queues, when the transaction commits."""
        if self.sql.listens:
            for queue in sorted(queues):
                self.run("notify", channel=channel(self.settings.table, queue)).close()

    def keep_failed(self, queue: str, id: str, record: bytes, raw: bytes, effects: Sequence[Effect] = ()) -> None:
        """Write a record into the failed store, inside the transaction that deletes the job."""
        more, options = effect_args(effects, self.settings.prefix)
        names = self.names(keys.failed(queue), keys.failed_at(queue), *more)
        script("buried").call(self.space, names, id, record, raw, *self.keep.args, *options)

    def run_effects(self, effects: Sequence[Effect]) -> None:
        """Run the effects of an answer, inside its transaction."""
        if effects:
            more, options = effect_args(effects, self.settings.prefix)
            script("ended").call(self.space, self.names(*more), *options)

    # -- answers; the caller has opened the transaction

    def owner_of(self, held: Reserved) -> str:
        """By its mark; a text without one is this worker's own."""
        return held.owner if held.mark else self.owner

    def answer_of(self, done: Reserved) -> LaneAnswer:
        return LaneAnswer(self.owner_of(done), done.member)

    def end(self, held: Reserved, and_then: Callable[[], None] = lambda: None) -> bool:
        """Delete the job and its reservation. Returns False if the reservation had already ended."""
        (there,) = self.settle([self.answer_of(held)])
        if there:
            and_then()
        return there

    def give_back(
        self, queue: str, owner: str, mark: str, member: bytes, back: Released, effects: Sequence[Effect]
    ) -> bool:
        found = self.held_row(queue, owner, mark, member)
        if found is None:
            return False
        (cancel,) = self.names(keys.CANCEL)
        if self.space.call("HGET", cancel, mark) is not None:
            back = Released(dropped(back.text, mark))
            self.space.call("HDEL", cancel, mark)
        there = self.put_back(queue, found, back)
        self.delete_reservation(found, mark)
        if there:
            self.run_effects(effects)
        return there

    def put_back(self, queue: str, found: ReservedRow, back: Released) -> bool:
        """To the head as the same row, to the tail as a new one. Returns False if the job belongs to another by now."""
        row = row_after(queue, back.text, self.now_us(), back.delay, column_of)
        more = {"payload": row["payload"], "spent": row["attempts"]}
        if back.head:
            there = self.change_one("put_head", found, **more)
        elif back.delay > 0:
            there = self.change_one("put_back", found, **more, due=row["due"])
        elif there := self.change_one("delete", found):
            self.run("insert", **row)
        if there and back.delay < 1:
            self.notify({queue})
        return there

    def checkpoint(self, held: Reserved, member: bytes) -> bool:
        mark = base_of(held.mark)
        found = self.held_row(held.queue, self.owner_of(held), mark, held.member)
        if found is None or not self.change_one("rewrite", found, payload=text_of(member)):
            return False
        self.run("summed", sum=sum_of(member), id=found.id, mark=mark)
        return True

    def held_by(self, owners: Sequence[str], queues: Sequence[str]) -> list[Reserved]:
        """The jobs of these owners, by turn. It locks the reservations first, so that no other transaction changes them
        between the comparisons with jobs."""
        values = {"owners": list(owners), "queues": list(queues)}
        self.run("of_owners", **values).close()
        rows = self.run("owned", **values).all()
        self.run("lost", **values)
        found = [reserved(row.queue, bytes_of(row.payload), row.mark, row.attempts, row.text_sum) for row in rows]
        return sorted((each for each in found if each is not None), key=lambda each: each.turn)

    # -- several at once

    def settle(self, answers: Sequence[LaneAnswer]) -> list[bool]:
        ours, jobs = self.connection.execute_together(self.locking(answers))
        there, last = self.settled(answers, ours.rows, jobs.rows)
        if last:
            self.connection.execute_together(last)
        return there

    def locking(self, answers: Sequence[LaneAnswer]) -> list[Statement]:
        """The statements whose results settled() needs."""
        marks = [owners_mark(each.owner, each.member) for each in answers]
        values = {"owners": [each.owner for each in answers], "marks": marks}
        return [(self.sql["lock_ours"], values), (self.sql["lock_jobs"], values)]

    def settled(
        self, answers: Sequence[LaneAnswer], ours: Sequence[Any], jobs: Sequence[Any]
    ) -> tuple[list[bool], list[Statement]]:
        """Whether each owner still has its text, and the statements that answer those."""
        rows, held = {row.mark: row for row in ours}, {row.job_id for row in jobs}
        there, queues = list[bool](), set[str]()
        ended, done, heads, cancelled = list[int](), list[int](), list[Statement](), self._cancelled(answers)
        for owner, member, text, _ in answers:
            mark = owners_mark(owner, member)
            row = rows.get(mark)
            if row is None or row.text_sum not in (None, sum_of(member)):
                there.append(False)
                continue
            there.append(row.job_id in held)
            ended.append(row.job_id)
            if there[-1] and text is None:
                done.append(row.job_id)
            elif there[-1] and text is not None:
                new = dropped(member, mark) if mark in cancelled else text
                kept = {"id": row.job_id, "attempts": row.attempts, "reserved_at": row.reserved_at}
                heads.append((self.sql["put_head"], {**kept, "payload": column_of(new), "spent": spent(new)}))
                queues.add(row.queue)
        self.notify(queues)
        ways = (("delete_all", done), ("forget_all", ended))
        return there, [*heads, *[(self.sql[name], {"ids": ids}) for name, ids in ways if ids]]

    def _cancelled(self, answers: Sequence[LaneAnswer]) -> set[str]:
        """Marks of those that return but were cancelled; the requests are deleted."""
        marks = [owners_mark(each.owner, each.member) for each in answers if each.text is not None]
        (name,) = self.names(keys.CANCEL)
        asked = self.space.call("HMGET", name, *marks) if marks else ()
        found = {mark for mark, at in zip(marks, asked, strict=True) if at is not None}
        if found:
            self.space.call("HDEL", name, *found)
        return found

    def held_row(self, queue: str, owner: str, mark: str, member: bytes) -> ReservedRow | None:
        """The row of a reservation, locked, if the text of its job is `member`."""
        found = self.run("fence", owner=owner, mark=mark, queue=queue).first()
        if found is None or (found.text_sum is not None and found.text_sum != sum_of(member)):
            return None
        return ReservedRow(found.job_id, found.attempts, found.reserved_at, found.text_sum)

    def change_one(self, name: str, found: ReservedRow, /, **values: Any) -> bool:
        """Run this statement on the job's row. Returns False if the row belongs to another reservation by now."""
        fixed = {"id": found.id, "attempts": found.attempts, "reserved_at": found.reserved_at}
        return self.run(name, **fixed, **values).rowcount == 1

    def delete_reservation(self, found: ReservedRow, mark: str) -> None:
        self.run("forget", id=found.id, mark=mark)

    # -- leases, for keepers

    def beat(self, queues: Sequence[str], request: BeatRequest) -> BeatReply:
        us, lost, reclaimed = self.atomic(lambda: self._renew_and_reclaim(list(queues), request))
        restart, down = self._stamps(request, us)
        cancelled = self._cancelled_running(queues, request.token, us)
        waiting = self._waiting(queues, us)
        return BeatReply(us / SECOND, restart, down, -1, reclaimed >= MOST, reclaimed, waiting, cancelled, lost)

    def _renew_and_reclaim(self, queues: list[str], request: BeatRequest) -> tuple[int, Turns, int]:
        """Returns the time in microseconds, the turns that lost their lease, and the number reclaimed."""
        us, lost, reclaimed = self.now_us(), Turns(), 0
        if request.renew and request.slots and queues:
            lost = self._renew(queues, [f"{request.token}/{slot}" for slot in request.slots], us, request.lease)
        if queues and us / SECOND <= request.reclaims_until:
            reclaimed = self._reclaim(queues, us) + self._free(queues, us // SECOND - int(request.lease))
        return us, lost, reclaimed

    def _renew(self, queues: list[str], owners: list[str], us: int, lease: float) -> Turns:
        rows, now = self.run("of_owners", owners=owners, queues=queues).all(), us // SECOND
        if not rows:
            return []
        ids = [row.job_id for row in rows]
        self.run("renew_jobs", ids=ids, now=now)
        jobs = {job.id: (job.attempts, job.reserved_at) for job in self.run("these", ids=ids)}
        ours = [row for row in rows if jobs.get(row.job_id) == (row.attempts, now)]
        if ours:
            self.run("renew_ours", ids=[row.job_id for row in ours], now=now, until=us + round(lease * SECOND))
        return [turn_of(row.mark) for row in rows if row not in ours]

    def _reclaim(self, queues: list[str], us: int) -> int:
        """Put back the jobs of expired leases of ours, unless another has reserved the job since."""
        cancel, count = self.names(keys.CANCEL)[0], 0
        for row in self.run("expired", us=us, queues=queues, most=MOST).all():
            held = ReservedRow(row.job_id, row.attempts, row.reserved_at, row.text_sum)
            job = self.run("payload", id=held.id, attempts=held.attempts, reserved_at=held.reserved_at).first()
            if job is not None:
                text = member_of(bytes_of(job.payload), row.mark, row.attempts, row.text_sum)
                if self.space.call("HDEL", cancel, row.mark):
                    text = dropped(text, row.mark)
                count += self.put_back(row.queue, held, Released(text))
            self.delete_reservation(held, row.mark)
        return count

    def _free(self, queues: list[str], before: int) -> int:
        """Free reservations of PHP from that second or before."""
        ids = list(self.run("foreign", queues=queues, before=before, most=MOST).scalars())
        if ids:
            self.run("free", ids=ids)
        return len(ids)

    def _stamps(self, request: BeatRequest, us: int) -> tuple[str, str]:
        """Write the report; return the stamps of restart and maintenance mode."""
        restart, down, masters = self.names(keys.RESTART, keys.DOWN, keys.MASTERS)
        if request.report:
            report = f'{{"seen_at":{us / SECOND:.3f},{request.report[1:]}'
            self.space.call("HSET", masters, request.token, report)
        found = self.space.call_many([("GET", restart), ("GET", down)])
        texts = [each.decode("utf-8", "replace") if isinstance(each, bytes) else "" for each in found]
        return texts[0], texts[1] or ("?" if found[1] == b"" else "")

    def _cancelled_running(self, queues: Sequence[str], token: str, us: int) -> Turns:
        """Cancelled running jobs of this master. Requests for jobs that have ended, or older than a day, are deleted."""
        (name,) = self.names(keys.CANCEL)
        flat = self.space.call("HGETALL", name)
        running, ended = Turns(), list[str]()
        for raw, at in zip(flat[::2], flat[1::2], strict=True):
            mark = raw.decode("utf-8", "replace")
            if mark.startswith(token + "."):
                rows = self.rows(self.sql["owned"], {"owners": [owner_of(mark)], "queues": list(queues)})
                if any(row.mark == mark for row in rows):
                    running.append(turn_of(mark))
                elif queues:
                    ended.append(mark)
            elif not at.isdigit() or us / SECOND - int(at) > DAY:
                ended.append(mark)
        if ended:
            self.space.call("HDEL", name, *ended)
        return running

    def _waiting(self, queues: Sequence[str], us: int) -> list[int]:
        """Places of queues that have ready jobs, are not paused, and of which no worker has a job."""
        if not queues:
            return []
        values: dict[str, Any] = {f"q{n}": each for n, each in enumerate(queues)} | {"now": us // SECOND}
        places = sorted(int(row.place) for row in self.rows(self.sql.waiting(len(queues)), values))
        paused = self.space.call_many([("EXISTS", *self.names(keys.paused(queues[place]))) for place in places])
        return [place for place, is_paused in zip(places, paused, strict=True) if not is_paused]


def turn_of(mark: str) -> tuple[int, int]:
    found = split_mark(f"{mark}.-")
    return found.seat, found.turn
