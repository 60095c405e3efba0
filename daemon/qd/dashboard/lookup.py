"""Pages that look on the servers when they are opened: jobs by id, name or tag, one job, batches, and locks.

No index is kept for them. The search reads the ends of queues, as `qd peek` does, for at most BUDGET seconds. Batches and
locks are found by SCAN, once a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import get_args

from qd.cli import batch, context, job, locks, output, waiting, why
from qd.dashboard import pages
from qd.dashboard.pages import SHOWN, Asked, Facts, Page, columns, cut, hidden, listed, masked, of_one, payload_of
from qd.dashboard.reader import Snapshot
from qd.redaction import redact
from qd.store.failed import record_of
from qd.store.waiting import Place

BUDGET, FURTHER = 0.15, 2.0  # seconds of a search, and of one that looks further
MINUTE = 60.0  # for which a list of batches or locks is kept
MOST = 1000  # batches or locks that are read
JOB = ("id", "uuid", "job", "queue", "state", "connection", "tags", "attempts", "created_at")


async def jobs(asked: Asked, now: Snapshot) -> Facts:
    q, state, name = (asked.query.get(key, "").strip() for key in ("q", "state", "queue"))
    until = time.monotonic() + (FURTHER if asked.query.get("further") else BUDGET)
    lines = [line for line in now.state.queues if name in ("", line.name)]
    rows, looked, total = list[Facts](), 0, 0
    for connection in dict.fromkeys(line.connection for line in lines):
        sizes: dict[tuple[str, Place], int] = {
            (line.name, place): getattr(line.sizes, place)
            for line in lines
            for place in get_args(Place)
            if line.connection == connection and state in ("", place) and getattr(line.sizes, place)
        }
        looked += await asked.poller.ask(partial(search, connection, [*sizes], q, until, rows), connection)
        total += sum(sizes.values())
    document = {"schema": 1, "total": max(looked, total), "looked": looked, "jobs": rows[:SHOWN]}
    facts = {"title": "Jobs", "q": q, "state": state, "queue": name, "more": len(rows) > SHOWN, "document": document}
    return facts | {"own": True, "table": columns(JOB, rows[:SHOWN])}


def search(connection: str, places: Sequence[tuple[str, Place]], q: str, until: float, rows: list[Facts]) -> int:
    """Add the jobs that fit to `rows`, until it has more than SHOWN. Returns how many were looked at."""
    found, looked = context.settings(), 0
    for name, place in places:
        reading = waiting.Search(context.store(found, connection), name, place, None, None)
        for each in reading:
            if fits(each, q):
                facts = waiting.described(each, place) | {"queue": name, "state": place, "connection": connection}
                rows.append(facts | {"arguments": hidden(facts["arguments"], found.dashboard.hide)})
            if len(rows) > SHOWN or time.monotonic() > until:
                return looked + reading.looked
        looked += reading.looked
    return looked


def fits(each: waiting.Peeked, q: str) -> bool:
    """q: the beginning of an id or uuid, a part or pattern of the name, or a tag."""
    ids = (each.payload.id or "", each.payload.uuid or "") if each.payload else ()
    return q in each.name or q in each.tags or fnmatchcase(each.name, q) or any(id.startswith(q) for id in ids)


def one_batch(id: str, now: Snapshot) -> Facts:
    found = batch.details(context.opened(looks=True)[2], id, SHOWN)
    return {"row": found, "document": found}


def one_job(id: str, now: Snapshot) -> Facts:
    found, connection, _ = context.opened(looks=True)
    if (seen := job.view(found, connection, id, now.state.masters)) is None:
        return {"row": None}
    spot, hide = seen.found, found.dashboard.hide
    record = {"id": id} | masked(job.record(spot)) if spot and spot.spot == "failed" else {}
    text = payload_of(record_of("", id, 0.0, spot.text if record else b"\n" + spot.text)) if spot else ""
    document = masked(job.described(seen)) | {"failed": record or None, "timeline": timeline(seen, record)}
    document |= {"result": hidden(document["result"], hide)}
    document |= {"findings": [each._asdict() for each in why.findings(found, seen, now.state.masters)]}
    return {"row": seen, "record": record, "payload": cut(redact(text)), "document": document}


def timeline(seen: job.JobView, record: Facts) -> list[Facts]:
    """The oldest first. at: None for earlier attempts, whose times only the log has."""
    rows, spot, kept = list[tuple[float | None, str, object]](), seen.found, seen.kept
    if spot is not None:
        ended = spot.payload.attempts - (spot.spot == "running")
        rows = [(spot.payload.createdAt, "Pushed", f"to {spot.queue}")]
        rows += [(None, f"Attempt {n} ended", "") for n in range(1, min(10, ended + 1))]
        if spot.spot == "running":
            rows.append((seen.worker[1].since if seen.worker else None, "Started", job.where(seen, spot)))
        elif spot.spot == "delayed":
            rows.append((spot.score, "Due", ""))
    if record:
        rows.append((record.get("failed_at"), "Failed", f"{record.get('error')}: {record.get('reason')}"))
    elif kept and kept.status:
        rows.append((kept.at, "Done" if kept.status == "done" else "Failed", ""))
    return [{"at": output.iso(at), "what": what, "note": note} for at, what, note in rows]


def found_by_scan(name: str, head: Sequence[str], read: Callable[[str], Facts]) -> Page:
    """The page of what `read` returns, on each connection, for the beginning of names."""

    async def page(asked: Asked, now: Snapshot) -> Facts:
        start, looks, found = asked.query.get("q", ""), asked.poller.looks, list[Facts]()
        for connection in dict.fromkeys(line.connection for line in now.state.queues):
            key = name, connection, start
            if key not in looks or time.monotonic() - looks[key][0] > MINUTE:
                looks.clear() if len(looks) > 100 else None
                looks[key] = time.monotonic(), await asked.poller.ask(partial(read, start), connection)
            found.append(looks[key][1])
        rows = [row | {"connection": each["connection"]} for each in found for row in each[name]]
        shared = {"cut": any(each["cut"] for each in found), "read_at": found[0]["read_at"] if found else None}
        part = listed(asked, rows, lambda row: f"{row.get('id', '')} {row['name']}") | shared
        document, table = {"schema": 1, **shared, name: rows}, columns((*head, "connection"), rows)
        return part | {"title": name.capitalize(), "own": True, "document": document, "table": table}

    return page


PAGES: Mapping[str, tuple[str, Page]] = {
    **pages.PAGES,
    "jobs": ("/jobs", jobs),
    "job": ("/jobs/{connection}/{id:path}", of_one("Job", one_job)),
    "batches": (
        "/batches",
        found_by_scan("batches", batch.FACTS, lambda _: batch.document(*context.opened(looks=True)[1:], MOST)),
    ),
    "batch": ("/batches/{connection}/{id:path}", of_one("Batch", one_batch)),
    "locks": (
        "/locks",
        found_by_scan("locks", locks.FACTS, lambda start: locks.document(*context.opened(looks=True)[1:], start, MOST)),
    ),
}
