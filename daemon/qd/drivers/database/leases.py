"""Answering, renewing and reclaiming reservations.

    Leases   end one reservation: a worker its own, a keeper that of a dead worker; the caller has opened the transaction
             jobs          the row is deleted, put back unchanged (to the head) or as a new row (to the tail), or rewritten
             qd_reserved   deleted with it; its mark, and the sum of a checkpoint's text, are the fence
    beat     a keeper's: renews and reclaims leases, finds queues that wait and jobs that are cancelled

Due jobs are not moved: a turn finds them. A reservation of PHP that expired is freed as Laravel does it, so it has cost an
attempt; one of ours goes to the tail with its mark unanswered, so the next reservation counts a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sql

from qd.drivers.database.dialects import Statement
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
from qd.drivers.database.table import JobTable, ReservedRow
from qd.drivers.keyspace import keys
from qd.drivers.types import BeatReply, BeatRequest, Effect, LaneAnswer, Released, Reserved
from qd.payload.reservation import split_mark

MOST = 100  # leases a beat reclaims at most; one with more to do comes again soon
DAY = 86400

Turns = list[tuple[int, int]]  # seat and turn


class Leases:
    def __init__(self, table: JobTable) -> None:
        self.table, self.sql, self.connection = table, table.sql, table.connection

    def owner_of(self, held: Reserved) -> str:
        """By its mark; a text without one is this worker's own."""
        return held.owner if held.mark else self.table.owner

    def end(self, held: Reserved, and_then: Callable[[], None] = lambda: None) -> bool:
        """Delete the job and its reservation. Returns False if the reservation had already ended."""
        mark = base_of(held.mark)
        if self.sql.kind == "mysql":
            there = self.connection.execute(*self.end_both(held)).rowcount == 2
        elif (found := self.held_row(held.queue, self.owner_of(held), mark, held.member)) is not None:
            there = self.change_one(self.sql["delete"], found)
            self.delete_reservation(found, mark)
        else:
            return False
        if there:
            and_then()
        return there

    def end_both(self, held: Reserved) -> tuple[sql.TextClause, dict[str, Any]]:
        mark, sum = base_of(held.mark), sum_of(held.member)
        return self.sql["end_both"], {"owner": self.owner_of(held), "mark": mark, "queue": held.queue, "sum": sum}

    def give_back(
        self, queue: str, owner: str, mark: str, member: bytes, back: Released, effects: Sequence[Effect]
    ) -> bool:
        found = self.held_row(queue, owner, mark, member)
        if found is None:
            return False
        (cancel,) = self.table.names(keys.CANCEL)
        if self.table.space.call("HGET", cancel, mark) is not None:
            back = Released(dropped(back.text, mark))
            self.table.space.call("HDEL", cancel, mark)
        there = self.put_back(queue, found, back)
        self.delete_reservation(found, mark)
        if there:
            self.table.run_effects(effects)
        return there

    def put_back(self, queue: str, found: ReservedRow, back: Released) -> bool:
        """To the head as the same row, to the tail as a new one. Returns False if the job belongs to another by now."""
        row = row_after(queue, back.text, self.table.now_us(), back.delay, column_of)
        more = {"payload": row["payload"], "spent": row["attempts"]}
        if back.head:
            there = self.change_one(self.sql["put_head"], found, **more)
        elif back.delay > 0:
            there = self.change_one(self.sql["put_back"], found, **more, due=row["due"])
        elif there := self.change_one(self.sql["delete"], found):
            self.connection.execute(self.sql["insert"], row).close()
        if there and back.delay < 1:
            self.table.notify({queue})
        return there

    def checkpoint(self, held: Reserved, member: bytes) -> bool:
        mark = base_of(held.mark)
        found = self.held_row(held.queue, self.owner_of(held), mark, held.member)
        if found is None or not self.change_one(self.sql["rewrite"], found, payload=text_of(member)):
            return False
        self.connection.execute(self.sql["summed"], {"sum": sum_of(member), "id": found.id, "mark": mark}).close()
        return True

    def held_by(self, owners: Sequence[str], queues: Sequence[str]) -> list[Reserved]:
        """The jobs of these owners, by turn. It locks the reservations first, so that no other transaction changes them
        between the comparisons with jobs."""
        values = {"owners": list(owners), "queues": list(queues)}
        self.connection.execute(self.sql["of_owners"], values).close()
        rows = self.connection.execute(self.sql["owned"], values).all()
        self.connection.execute(self.sql["lost"], values).close()
        found = [reserved(row.queue, bytes_of(row.payload), row.mark, row.attempts, row.text_sum) for row in rows]
        return sorted((each for each in found if each is not None), key=lambda each: each.turn)

    # -- several at once

    def locking(self, answers: Sequence[LaneAnswer]) -> list[Statement]:
        """The statements whose results settled() needs."""
        marks = [owners_mark(each.owner, each.member) for each in answers]
        values = {"owners": [each.owner for each in answers], "marks": marks}
        return [(self.sql["lock_ours"], values), (self.sql["lock_jobs"], values)]

    def settled(
        self, answers: Sequence[LaneAnswer], ours: Sequence[Any], jobs: Sequence[Any]
    ) -> tuple[list[bool], list[Statement]]:
        """Whether each owner still has its text, and the statements that answer those."""
        rows, held, there, queues = (
            {row.mark: row for row in ours},
            {row.job_id for row in jobs},
            list[bool](),
            set[str](),
        )
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
        self.table.notify(queues)
        ways = (("delete_all", done), ("forget_all", ended))
        return there, [*heads, *[(self.sql[name], {"ids": ids}) for name, ids in ways if ids]]

    def _cancelled(self, answers: Sequence[LaneAnswer]) -> set[str]:
        """Marks of those that return but were cancelled; the requests are deleted."""
        marks = [owners_mark(each.owner, each.member) for each in answers if each.text is not None]
        (name,) = self.table.names(keys.CANCEL)
        asked = self.table.space.call("HMGET", name, *marks) if marks else ()
        found = {mark for mark, at in zip(marks, asked, strict=True) if at is not None}
        if found:
            self.table.space.call("HDEL", name, *found)
        return found

    def held_row(self, queue: str, owner: str, mark: str, member: bytes) -> ReservedRow | None:
        """The row of a reservation, locked, if the text of its job is `member`."""
        found = self.connection.execute(self.sql["fence"], {"owner": owner, "mark": mark, "queue": queue}).first()
        if found is None or (found.text_sum is not None and found.text_sum != sum_of(member)):
            return None
        return ReservedRow(found.job_id, found.attempts, found.reserved_at, found.text_sum)

    def change_one(self, statement: sql.TextClause, found: ReservedRow, **values: Any) -> bool:
        """Run it on the job's row. Returns False if the row belongs to another reservation by now."""
        fixed = {"id": found.id, "attempts": found.attempts, "reserved_at": found.reserved_at}
        return self.connection.execute(statement, {**fixed, **values}).rowcount == 1

    def delete_reservation(self, found: ReservedRow, mark: str) -> None:
        self.connection.execute(self.sql["forget"], {"id": found.id, "mark": mark}).close()


def beat(table: JobTable, leases: Leases, queues: Sequence[str], request: BeatRequest) -> BeatReply:
    owners = [f"{request.token}/{slot}" for slot in request.slots]
    us, lost, reclaimed = table.atomic(lambda: _renew_and_reclaim(table, leases, queues, request, owners))
    restart, down = _stamps(table, request, us)
    cancelled = _cancelled(table, queues, request.token, us)
    waiting = _waiting(table, queues, us)
    return BeatReply(us / SECOND, restart, down, -1, reclaimed >= MOST, reclaimed, waiting, cancelled, lost)


def _renew_and_reclaim(
    table: JobTable, leases: Leases, queues: Sequence[str], request: BeatRequest, owners: list[str]
) -> tuple[int, Turns, int]:
    """Renew, then reclaim. Returns the time in microseconds, the turns that lost their lease, and the number reclaimed."""
    us = table.now_us()
    lost = _renew(table, queues, owners, us, request.lease) if request.renew and owners and queues else []
    reclaimed = 0
    if queues and us / SECOND <= request.reclaims_until:
        reclaimed = _reclaim(table, leases, queues, us) + _free(table, queues, us // SECOND - int(request.lease))
    return us, lost, reclaimed


def _renew(table: JobTable, queues: Sequence[str], owners: list[str], us: int, lease: float) -> Turns:
    connection, statements = table.connection, table.sql
    rows = connection.execute(statements["of_owners"], {"owners": owners, "queues": list(queues)}).all()
    if not rows:
        return []
    ids, now = [row.job_id for row in rows], us // SECOND
    connection.execute(statements["renew_jobs"], {"ids": ids, "now": now}).close()
    jobs = {job.id: (job.attempts, job.reserved_at) for job in connection.execute(statements["these"], {"ids": ids})}
    ours = [row for row in rows if jobs.get(row.job_id) == (row.attempts, now)]
    if ours:
        values = {"ids": [row.job_id for row in ours], "now": now, "until": us + round(lease * SECOND)}
        connection.execute(statements["renew_ours"], values).close()
    return [turn_of(row.mark) for row in rows if row not in ours]


def _reclaim(table: JobTable, leases: Leases, queues: Sequence[str], us: int) -> int:
    """Put back the jobs of expired leases of ours, unless another has reserved the job since."""
    rows = table.connection.execute(table.sql["expired"], {"us": us, "queues": list(queues), "most": MOST}).all()
    cancel, count = table.names(keys.CANCEL)[0], 0
    for row in rows:
        held = ReservedRow(row.job_id, row.attempts, row.reserved_at, row.text_sum)
        job = table.connection.execute(table.sql["payload"], held._asdict()).first()
        if job is not None:
            text = member_of(bytes_of(job.payload), row.mark, row.attempts, row.text_sum)
            if table.space.call("HDEL", cancel, row.mark):
                text = dropped(text, row.mark)
            count += leases.put_back(row.queue, held, Released(text))
        leases.delete_reservation(held, row.mark)
    return count


def _free(table: JobTable, queues: Sequence[str], before: int) -> int:
    """Free reservations of PHP from that second or before."""
    values = {"queues": list(queues), "before": before, "most": MOST}
    ids = list(table.connection.execute(table.sql["foreign"], values).scalars())
    if ids:
        table.connection.execute(table.sql["free"], {"ids": ids}).close()
    return len(ids)


def _stamps(table: JobTable, request: BeatRequest, us: int) -> tuple[str, str]:
    """Write the report; return the stamps of restart and maintenance mode."""
    restart, down, masters = table.names(keys.RESTART, keys.DOWN, keys.MASTERS)
    if request.report:
        report = f'{{"seen_at":{us / SECOND:.3f},{request.report[1:]}'
        table.space.call("HSET", masters, request.token, report)
    found = table.space.call_many([("GET", restart), ("GET", down)])
    texts = [each.decode("utf-8", "replace") if isinstance(each, bytes) else "" for each in found]
    return texts[0], texts[1] or ("?" if found[1] == b"" else "")


def _cancelled(table: JobTable, queues: Sequence[str], token: str, us: int) -> Turns:
    """Cancelled running jobs of this master. Requests for jobs that have ended, or older than a day, are deleted."""
    (name,) = table.names(keys.CANCEL)
    flat = table.space.call("HGETALL", name)
    running, ended = Turns(), list[str]()
    for raw, at in zip(flat[::2], flat[1::2], strict=True):
        mark = raw.decode("utf-8", "replace")
        if mark.startswith(token + "."):
            rows = table.rows(table.sql["owned"], {"owners": [owner_of(mark)], "queues": list(queues)})
            if any(row.mark == mark for row in rows):
                running.append(turn_of(mark))
            elif queues:
                ended.append(mark)
        elif not at.isdigit() or us / SECOND - int(at) > DAY:
            ended.append(mark)
    if ended:
        table.space.call("HDEL", name, *ended)
    return running


def _waiting(table: JobTable, queues: Sequence[str], us: int) -> list[int]:
    """Places of queues that have ready jobs, are not paused, and of which no worker has a job."""
    if not queues:
        return []
    values: dict[str, Any] = {f"q{n}": each for n, each in enumerate(queues)} | {"now": us // SECOND}
    places = sorted(int(row.place) for row in table.rows(table.sql.waiting(len(queues)), values))
    paused = table.space.call_many([("EXISTS", *table.names(keys.paused(queues[place]))) for place in places])
    return [place for place, is_paused in zip(places, paused, strict=True) if not is_paused]


def turn_of(mark: str) -> tuple[int, int]:
    found = split_mark(f"{mark}.-")
    return found.seat, found.turn
