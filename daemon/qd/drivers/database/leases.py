"""Renewing and reclaiming the leases of a table of jobs, for keepers; queues that wait, and jobs that are cancelled.

Due jobs are not moved: a turn finds them. A reservation of PHP that expired is freed as Laravel does it, so it has cost an
attempt; one of ours goes to the tail with its mark unanswered, so the next reservation counts a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qd.drivers.database.rows import bytes_of, dropped, member_of, owner_of
from qd.drivers.database.schema import SECOND
from qd.drivers.database.table import JobTable, ReservedRow
from qd.drivers.keyspace import keys
from qd.drivers.types import BeatReply, BeatRequest, Released
from qd.payload.reservation import split_mark

MOST = 100  # leases a beat reclaims at most; one with more to do comes again soon
DAY = 86400

Turns = list[tuple[int, int]]  # seat and turn


def beat(table: JobTable, queues: Sequence[str], request: BeatRequest) -> BeatReply:
    owners = [f"{request.token}/{slot}" for slot in request.slots]
    us, lost, reclaimed = table.atomic(lambda: _renew_and_reclaim(table, queues, request, owners))
    restart, down = _stamps(table, request, us)
    cancelled = _cancelled(table, queues, request.token, us)
    waiting = _waiting(table, queues, us)
    return BeatReply(us / SECOND, restart, down, -1, reclaimed >= MOST, reclaimed, waiting, cancelled, lost)


def _renew_and_reclaim(
    table: JobTable, queues: Sequence[str], request: BeatRequest, owners: list[str]
) -> tuple[int, Turns, int]:
    """Renew, then reclaim. Returns the time in microseconds, the turns that lost their lease, and the number reclaimed."""
    us = table.now_us()
    lost = _renew(table, queues, owners, us, request.lease) if request.renew and owners and queues else []
    reclaimed = 0
    if queues and us / SECOND <= request.reclaims_until:
        reclaimed = _reclaim(table, queues, us) + _free(table, queues, us // SECOND - int(request.lease))
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


def _reclaim(table: JobTable, queues: Sequence[str], us: int) -> int:
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
            count += table.put_back(row.queue, held, Released(text))
        table.delete_reservation(held, row.mark)
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
