"""A keeper's beat on the table of jobs: leases renewed and reclaimed, who waits, who is to end. See keeping.Keeping.

What is due needs no move: a turn sees it. A reservation of PHP's that ran out is freed as Laravel does it, so it has cost an
attempt; one of ours goes to the tail with its mark unanswered, so the next reserve counts a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qd.connectors.base import Released
from qd.connectors.database.leases import Leases
from qd.connectors.database.table import Holding, JobTable, bytes_of, dropped, member_of
from qd.connectors.database.tables import SECOND
from qd.connectors.keeping import Answer, Asked
from qd.connectors.keyspace import keys
from qd.unit import split_mark

MOST = 100  # leases a beat reclaims at most; one with more to do comes again soon
DAY = 86400

Turns = list[tuple[int, int]]  # slot and turn


def beat(table: JobTable, leases: Leases, queues: Sequence[str], asked: Asked) -> Answer:
    owners = [f"{asked.token}/{slot}" for slot in asked.slots]
    us, lost, reclaimed = table.atomic(lambda: _leases(table, leases, queues, asked, owners))
    restart, down = _stamps(table, asked, us)
    cancelled = _cancelled(table, queues, asked.token, us)
    waiting = _waiting(table, queues, us)
    return Answer(us / SECOND, restart, down, -1, reclaimed >= MOST, reclaimed, waiting, cancelled, lost)


def _leases(
    table: JobTable, leases: Leases, queues: Sequence[str], asked: Asked, owners: list[str]
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


def _stamps(table: JobTable, asked: Asked, us: int) -> tuple[str, str]:
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
