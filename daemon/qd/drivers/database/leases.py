"""What becomes of the rows of a reservation when its job is answered. The caller has opened the transaction.

jobs          deleted, put back as it stands (to the head) or as a new row (to the tail), or written anew
qd_reserved   deleted with it; its mark, and the sum of a saved text, are the fence

A keeper's beat on the table of jobs: leases renewed and reclaimed, who waits, who is to end. See keeping.Keeping.

What is due needs no move: a turn sees it. A reservation of PHP's that ran out is freed as Laravel does it, so it has cost an
attempt; one of ours goes to the tail with its mark unanswered, so the next reserve counts a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sql

from qd.drivers.database.schema import SECOND
from qd.drivers.database.table import (
    Holding,
    JobTable,
    base_of,
    bytes_of,
    column_of,
    dropped,
    member_of,
    sum_of,
    text_of,
)
from qd.drivers.keyspace import keys
from qd.drivers.types import BeatReply, BeatRequest, Effect, Released, Reserved
from qd.payload.reservation import split_mark


class Leases:
    """Ends reservations: a worker its own, a keeper those of dead workers."""

    def __init__(self, table: JobTable) -> None:
        self.table, self.sql, self.link = table, table.sql, table.link

    def ended(self, held: Reserved, and_then: Callable[[], None] = lambda: None) -> bool:
        """Its rows are gone. False: it was over before."""
        mark = base_of(held.mark)
        if self.sql.kind == "mysql":
            there = self.link.execute(*self.end_both(held)).rowcount == 2
        elif (found := self.holding(held.queue, self.table.owner, mark, held.member)) is not None:
            there = self.one(self.sql.delete, found)
            self.forget(found, mark)
        else:
            return False
        if there:
            and_then()
        return there

    def end_both(self, held: Reserved) -> tuple[sql.TextClause, dict[str, Any]]:
        mark, sum = base_of(held.mark), sum_of(held.member)
        return self.sql.end_both, {"owner": self.table.owner, "mark": mark, "queue": held.queue, "sum": sum}

    def given_back(
        self, queue: str, owner: str, mark: str, member: bytes, back: Released, effects: Sequence[Effect]
    ) -> bool:
        found = self.holding(queue, owner, mark, member)
        if found is None:
            return False
        (cancel,) = self.table.names(keys.CANCEL)
        if self.table.space.call("HGET", cancel, mark) is not None:
            back = Released(dropped(back.text, mark))
            self.table.space.call("HDEL", cancel, mark)
        there = self.put_back(queue, found, back)
        self.forget(found, mark)
        if there:
            self.table.do(effects)
        return there

    def put_back(self, queue: str, found: Holding, back: Released) -> bool:
        """To the head the row goes as it stands; to the tail as a new one. False: it is somebody else's by now."""
        row = self.table.row(queue, back.text, self.table.now_us(), back.delay, column_of)
        if back.delay <= 0 and not back.head:
            if self.one(self.sql.delete, found):
                self.link.execute(self.sql.insert, row).close()
                self.table.tell({queue})
                return True
            return False
        more = {"payload": row["payload"], "spent": row["attempts"]}
        if back.head:
            there = self.one(self.sql.put_head, found, **more)
        else:
            there = self.one(self.sql.put_back, found, **more, due=row["due"])
        if there and back.delay < 1:
            self.table.tell({queue})
        return there

    def saved(self, held: Reserved, member: bytes) -> bool:
        """The job in hand stands as `member` from now on."""
        mark = base_of(held.mark)
        found = self.holding(held.queue, self.table.owner, mark, held.member)
        if found is None or not self.one(self.sql.rewrite, found, payload=text_of(member)):
            return False
        self.link.execute(self.sql.summed, {"sum": sum_of(member), "id": found.id, "mark": mark}).close()
        return True

    def holding(self, queue: str, owner: str, mark: str, member: bytes) -> Holding | None:
        """The row of a reservation, locked, if the job in hand stands as `member`."""
        found = self.link.execute(self.sql.fence, {"owner": owner, "mark": mark, "queue": queue}).first()
        if found is None or (found.text_sum is not None and found.text_sum != sum_of(member)):
            return None
        return Holding._make(found)

    def one(self, statement: sql.TextClause, found: Holding, **values: Any) -> bool:
        """Whether it met the job's row, which nobody else has taken over."""
        fixed = {"id": found.id, "attempts": found.attempts, "reserved_at": found.reserved_at}
        result = self.link.execute(statement, {**fixed, **values})
        return result.rowcount == 1

    def forget(self, found: Holding, mark: str) -> None:
        self.link.execute(self.sql.forget, {"id": found.id, "mark": mark}).close()


MOST = 100  # leases a beat reclaims at most; one with more to do comes again soon
DAY = 86400

Turns = list[tuple[int, int]]  # slot and turn


def beat(table: JobTable, leases: Leases, queues: Sequence[str], asked: BeatRequest) -> BeatReply:
    owners = [f"{asked.token}/{slot}" for slot in asked.slots]
    us, lost, reclaimed = table.atomic(lambda: _leases(table, leases, queues, asked, owners))
    restart, down = _stamps(table, asked, us)
    cancelled = _cancelled(table, queues, asked.token, us)
    waiting = _waiting(table, queues, us)
    return BeatReply(us / SECOND, restart, down, -1, reclaimed >= MOST, reclaimed, waiting, cancelled, lost)


def _leases(
    table: JobTable, leases: Leases, queues: Sequence[str], asked: BeatRequest, owners: list[str]
) -> tuple[int, Turns, int]:
    """Renewed before any is reclaimed. Returns the moment, whose leases are lost, and how many were reclaimed."""
    us = table.now_us()
    lost = _renewed(table, queues, owners, us, asked.lease) if asked.renew and owners and queues else []
    reclaimed = 0
    if queues and us / SECOND <= asked.reclaims_until:
        reclaimed = _reclaimed(table, leases, queues, us) + _freed(table, queues, us // SECOND - int(asked.lease))
    return us, lost, reclaimed


def _renewed(table: JobTable, queues: Sequence[str], owners: list[str], us: int, lease: float) -> Turns:
    many = table.sql.many
    rows = table.link.execute(many("of_owners"), {"owners": owners, "queues": list(queues)}).all()
    if not rows:
        return []
    ids, now = [row.job_id for row in rows], us // SECOND
    table.link.execute(many("renew_jobs"), {"ids": ids, "now": now}).close()
    found = {row.id: row for row in table.link.execute(many("these"), {"ids": ids})}
    ours = [
        row for row in rows if (job := found.get(row.job_id)) and (job.attempts, job.reserved_at) == (row.attempts, now)
    ]
    if ours:
        until = us + round(lease * SECOND)
        table.link.execute(
            many("renew_ours"), {"ids": [row.job_id for row in ours], "now": now, "until": until}
        ).close()
    return [turn_of(row.mark) for row in rows if row not in ours]


def _reclaimed(table: JobTable, leases: Leases, queues: Sequence[str], us: int) -> int:
    """Leases of ours that ran out. A job that somebody else has taken over since is his."""
    rows = table.link.execute(table.sql.many("expired"), {"us": us, "queues": list(queues), "most": MOST}).all()
    cancel, count = table.names(keys.CANCEL)[0], 0
    for row in rows:
        held = Holding(row.job_id, row.attempts, row.reserved_at, row.text_sum)
        job = table.link.execute(table.sql.payload, held._asdict()).first()
        if job is not None:
            text = member_of(bytes_of(job.payload), row.mark, row.attempts, row.text_sum)
            if table.space.call("HDEL", cancel, row.mark):
                text = dropped(text, row.mark)
            count += leases.put_back(row.queue, held, Released(text))
        leases.forget(held, row.mark)
    return count


def _freed(table: JobTable, queues: Sequence[str], before: int) -> int:
    """Reservations of PHP's from that second or before."""
    asked = {"queues": list(queues), "before": before, "most": MOST}
    ids = list(table.link.execute(table.sql.many("foreign"), asked).scalars())
    if ids:
        table.link.execute(table.sql.many("free"), {"ids": ids}).close()
    return len(ids)


def _stamps(table: JobTable, asked: BeatRequest, us: int) -> tuple[str, str]:
    """What stands there of restarts and maintenance; the report is written."""
    restart, down, masters = table.names(keys.RESTART, keys.DOWN, keys.MASTERS)
    if asked.report:
        report = f'{{"seen_at":{us / SECOND:.3f},{asked.report[1:]}'
        table.space.call("HSET", masters, asked.token, report)
    found = table.space.call_many([("GET", restart), ("GET", down)])
    texts = [each.decode("utf-8", "replace") if isinstance(each, bytes) else "" for each in found]
    return texts[0], texts[1] or ("?" if found[1] == b"" else "")


def _cancelled(table: JobTable, queues: Sequence[str], token: str, us: int) -> Turns:
    """Of this master's. What is over is forgotten, and what nobody has asked for in a day."""
    (name,) = table.names(keys.CANCEL)
    flat = table.space.call("HGETALL", name)
    asked = {flat[n].decode("utf-8", "replace"): flat[n + 1] for n in range(0, len(flat), 2)}
    if not asked:
        return []
    running, over = Turns(), list[str]()
    for mark, at in asked.items():
        owner = mark.rpartition(".")[0].replace(".", "/")
        if mark.startswith(token + "."):
            rows = [row for each in queues for row in table.rows(table.sql.owned, {"owner": owner, "queue": each})]
            if any(row.mark == mark for row in rows):
                running.append(turn_of(mark))
            elif queues:
                over.append(mark)
        elif not at.isdigit() or us / SECOND - int(at) > DAY:
            over.append(mark)
    if over:
        table.space.call("HDEL", name, *over)
    return running


def _waiting(table: JobTable, queues: Sequence[str], us: int) -> list[int]:
    """Work is there, nobody holds it back, and nobody has any of it in hand."""
    if not queues:
        return []
    given: dict[str, Any] = {f"q{n}": each for n, each in enumerate(queues)} | {"now": us // SECOND}
    found = {int(row.place) for row in table.rows(table.sql.waiting(len(queues)), given)}
    paused = table.space.call_many([("EXISTS", *table.names(keys.paused(queues[place]))) for place in sorted(found)])
    return [place for place, held in zip(sorted(found), paused, strict=True) if not held]


def turn_of(mark: str) -> tuple[int, int]:
    found = split_mark(f"{mark}.-")
    return found.slot, found.turn
