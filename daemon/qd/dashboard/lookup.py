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

from qd.cli import batch, context, job, locks, output, peek, why
from qd.dashboard import pages
from qd.dashboard.pages import SHOWN, Asked, Facts, Page, columns, cut, hidden, listed, masked, payload_of
from qd.dashboard.reader import Snapshot
from qd.errors import UnknownBatch
from qd.redaction import redact
from qd.store.base import KeyspaceStore
from qd.store.failed import record_of
from qd.store.waiting import Place

BUDGET, FURTHER = 0.15, 2.0  # seconds of a search, and of one that looks further
MINUTE = 60.0  # for which a list of batches or locks is kept
MOST = 1000  # batches or locks that are read
PLACES: Sequence[Place] = get_args(Place)
JOB = ("id", "uuid", "job", "queue", "state", "connection", "tags", "attempts", "created_at")
LOCK = ("kind", "name", "holder", "waiting", "held_s", "left_s")


async def jobs(asked: Asked, now: Snapshot) -> Facts:
    q, state, name = (asked.query.get(key, "").strip() for key in ("q", "state", "queue"))
    until = time.monotonic() + (FURTHER if asked.query.get("further") else BUDGET)
    sizes = {
        (line.connection, line.name, place): size
        for line in now.state.queues
        for place in PLACES
        if (size := getattr(line.sizes, place)) and state in ("", place) and name in ("", line.name)
    }
    rows, looked = list[Facts](), 0
    for connection in dict.fromkeys(key[0] for key in sizes):
        looked += await asked.poller.ask(partial(search, connection, [*sizes], q, until, rows), connection)
    document = {"schema": 1, "total": max(looked, sum(sizes.values())), "looked": looked, "jobs": rows[:SHOWN]}
    facts = {"title": "Jobs", "q": q, "state": state, "queue": name, "more": len(rows) > SHOWN, "document": document}
    connections = dict.fromkeys(line.connection for line in now.state.queues)
    return facts | {"own": True, "table": columns(JOB, rows[:SHOWN]), "connections": connections}


def search(connection: str, wanted: Sequence[tuple[str, str, Place]], q: str, until: float, rows: list[Facts]) -> int:
    """Add the jobs that fit to `rows`, until it has more than SHOWN. Returns how many were looked at."""
    found, looked = context.settings(), 0
    for _, name, place in (each for each in wanted if each[0] == connection):
        reading = peek.Search(context.store(found, connection), name, place, None, None)
        for each in reading:
            if fits(each, q):
                facts = peek.described(each, place) | {"queue": name, "state": place, "connection": connection}
                rows.append(facts | {"arguments": hidden(facts["arguments"], found.dashboard.hide)})
            if len(rows) > SHOWN or time.monotonic() > until:
                return looked + reading.looked
        looked += reading.looked
    return looked


def fits(each: peek.Peeked, q: str) -> bool:
    """q: the beginning of an id or uuid, a part or pattern of the name, or a tag."""
    ids = (each.payload.id or "", each.payload.uuid or "") if each.payload else ()
    return q in each.name or q in each.tags or fnmatchcase(each.name, q) or any(id.startswith(q) for id in ids)


def of_one(title: str, read: Callable[[str, str, Snapshot], Facts]) -> Page:
    """The page of what `read` returns for a connection and an id; {}: it is not there."""

    async def page(asked: Asked, now: Snapshot) -> Facts:
        connection, id = asked.path["connection"], asked.path["id"]
        facts: Facts = {"title": f"{title} {id}", "id": id, "connection": connection, "row": None, "own": True}
        return facts | await asked.poller.ask(lambda: read(connection, id, now), connection)

    return page


def one_job(connection: str, id: str, now: Snapshot) -> Facts:
    found = context.settings()
    if (seen := job.view(found, connection, id, now.state.masters)) is None:
        return {}
    spot, hide = seen.found, found.dashboard.hide
    record = {"id": id} | masked(job.record(spot)) if spot and spot.spot == "failed" else {}
    payload = record_of("", id, 0.0, spot.text if record else b"\n" + spot.text) if spot else None
    document = masked(job.described(seen)) | {"failed": record or None, "timeline": timeline(seen, record)}
    document |= {"result": hidden(document["result"], hide)}
    document |= {"findings": [each._asdict() for each in why.findings(found, seen, now.state.masters)]}
    text = cut(redact(payload_of(payload))) if payload else ""
    return {"row": seen, "record": record, "payload": text, "document": document}


def timeline(seen: job.JobView, record: Facts) -> list[Facts]:
    """The oldest first. at: None for earlier attempts, whose times only the log has."""
    rows, spot, kept = list[tuple[float | None, str, object]](), seen.found, seen.kept
    if spot is not None:
        runs = spot.spot == "running"
        rows.append((spot.payload.createdAt, "Pushed", f"to {spot.queue}"))
        rows += [(None, f"Attempt {n} ended", "") for n in range(1, min(10, spot.payload.attempts + 1 - runs))]
        if runs:
            rows.append((seen.worker[1].since if seen.worker else None, "Started", job.where(seen, spot)))
        rows += [(spot.score, "Due", "")] if spot.spot == "delayed" else []
        rows += (
            [(record.get("failed_at"), "Failed", f"{record.get('error')}: {record.get('reason')}")] if record else []
        )
    rows += (
        [(kept.at, "Done" if kept.status == "done" else "Failed", "")] if kept and kept.status and not record else []
    )
    return [{"at": output.iso(at), "what": what, "note": note} for at, what, note in rows]


def one_batch(connection: str, id: str, now: Snapshot) -> Facts:
    try:
        found = batch.details(store_on(connection), id, SHOWN)
    except UnknownBatch:
        return {}
    return {"row": found, "document": found}


def found_by_scan(name: str, head: Sequence[str], read: Callable[[str, str], Facts]) -> Page:
    """The page of what `read` returns for a connection and the beginning of the names."""

    async def page(asked: Asked, now: Snapshot) -> Facts:
        start, looks, found = asked.query.get("q", ""), asked.poller.looks, list[Facts]()
        for connection in dict.fromkeys(line.connection for line in now.state.queues):
            key = name, connection, start
            if key not in looks or time.monotonic() - looks[key][0] > MINUTE:
                new = await asked.poller.ask(partial(read, connection, start), connection)
                looks.clear() if len(looks) > 100 else None
                looks[key] = time.monotonic(), new
            found.append(looks[key][1])
        rows = [row | {"connection": each["connection"]} for each in found for row in each[name]]
        shared = {"cut": any(each["cut"] for each in found), "read_at": found[0]["read_at"] if found else None}
        part = listed(asked, rows, lambda row: f"{row.get('id', '')} {row['name']}") | shared
        document = {"schema": 1, **shared, name: rows}
        table = columns((*head, "connection"), rows)
        return part | {"title": name.capitalize(), "own": True, "document": document, "table": table}

    return page


def store_on(connection: str) -> KeyspaceStore:
    return context.store(context.settings(), connection)


PAGES: Mapping[str, tuple[str, Page]] = {
    **pages.PAGES,
    "jobs": ("/jobs", jobs),
    "job": ("/jobs/{connection}/{id:path}", of_one("Job", one_job)),
    "batches": (
        "/batches",
        found_by_scan("batches", batch.FACTS, lambda at, _: batch.document(store_on(at), at, MOST)),
    ),
    "batch": ("/batches/{connection}/{id:path}", of_one("Batch", one_batch)),
    "locks": ("/locks", found_by_scan("locks", LOCK, lambda at, q: locks.document(store_on(at), at, q, MOST))),
}
