"""What each page shows, made from one snapshot of the servers (reader.py): facts for its template, and the same as a
document for JSON and as a table for CSV.

A page that shows more than the snapshot is `own`: it reads for itself, and is never answered with 304.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeVar, cast

from qd.cli import context, health, output, status, waiting
from qd.cli.diagnosis import is_growing, warnings
from qd.cli.failed import described as described_group
from qd.cli.failed import document as document_of
from qd.cli.failed import pretty, source, value_of
from qd.cli.schedule import entries as schedule
from qd.cli.state import QueueLine, stale
from qd.dashboard.charts import Line, Mark, chart, sparkline
from qd.dashboard.reader import EVENTS, Poller, Snapshot
from qd.drivers.connections import gaps_of
from qd.errors import QdError
from qd.payload import encryption
from qd.redaction import redact
from qd.store.audit import Entry
from qd.store.failed import Record, Wanted
from qd.store.statistics import History, Name, Numbers, Point, Rate, middle_and_most
from qd.store.waiting import Place

HOURS = 3 * 3600  # seconds of the charts
SHOWN = 50  # jobs of a queue, and failed jobs of a group, on one page
ROWS = 100  # of queues, names or events on one page
MASTERS = 20  # on one page
RANGES = {"1h": 3600, "24h": 24 * 3600, "7d": 7 * 24 * 3600}  # seconds, of the page of metrics
BUSIEST = 25  # queues on the overview
LONGEST = 200_000  # characters of one text on a page
MOST_GROUPS = 200
MINUS = "\N{MINUS SIGN}"
SERIES = ("s1", "s2", "s3", "s4", "s5", "s6")
DEPLOYS = ("master started", "restart", "new code")
Facts = dict[str, Any]
T = TypeVar("T")
Table = tuple[Sequence[str], Sequence[Sequence[object]]]


@dataclass(frozen=True)
class Asked:
    """A request for a page. path: the variable parts of its address; query: what follows the question mark."""

    poller: Poller
    path: Mapping[str, str]
    query: Mapping[str, str]


Page = Callable[[Asked, Snapshot], Awaitable[Facts]]


async def overview(asked: Asked, now: Snapshot) -> Facts:
    points, deploys = points_of(now.history), marks(now.events)
    times = [point.at for point in points]
    busiest = sorted(now.state.queues, key=lambda line: -line.sizes.ready)[: len(SERIES)]
    names = sorted(line.name for line in now.state.queues)  # a queue keeps its color
    waits = [Line("p95", [p.wait_p95 for p in points], "s1"), Line("p50", [p.wait_p50 for p in points], "s2")]
    ready = [
        Line(line.name, depths(now, line, len(points)), SERIES[names.index(line.name) % len(SERIES)])
        for line in busiest
    ]
    charts = [
        chart("Done per minute", times, [Line("done", [p.done for p in points], "s1")], deploys, high=84),
        chart("Failed per minute", times, [Line("failed", [p.failed for p in points], "fail")], high=84),
        chart("Wait until start", times, waits, deploys, log=True, unit="s"),
        chart("Ready jobs", times, ready, deploys, log=True),
    ]
    facts = {"title": "Overview", "tiles": tiles(now, points), "charts": charts}
    first = sorted(now.state.queues, key=lambda line: (not line.paused, -line.sizes.ready, line.connection, line.name))
    facts["queues"] = [queue_row(now, line) for line in sorted(first[:BUSIEST], key=by_name)]
    facts["warnings"] = [*warnings(now.state, now.rates)]
    return facts | {"document": health.document(now.state, now.findings)}


async def queues(asked: Asked, now: Snapshot) -> Facts:
    lines = sorted(now.state.queues, key=by_name)
    part = listed(asked, lines, lambda line: f"{line.connection} {line.name}")
    sizes = ("connection", "name", "ready", "delayed", "reserved", "failed", "oldest_age_s", "workers")
    documents = [status.queue_of(line, now.rates.get((line.connection, line.name))) for line in lines]
    flat = [each | (each["rates"] or {}) for each in documents]
    table = columns((*sizes, "in_per_min", "out_per_min"), flat)
    facts = {"title": "Queues", "queues": [queue_row(now, line) for line in part["rows"]], "table": table}
    return part | facts | {"document": {"schema": 1, "queues": documents}}


async def queue(asked: Asked, now: Snapshot) -> Facts:
    connection, name = asked.path["connection"], asked.path["name"]
    line = next((each for each in now.state.queues if (each.connection, each.name) == (connection, name)), None)
    facts: Facts = {"title": name, "name": name, "connection": connection, "row": None, "own": True}
    if line is None:
        return facts
    state = asked.query.get("state", "ready")
    place = cast(Place, state if state in ("delayed", "reserved") else "ready")
    job, at = asked.query.get("job", ""), int_of(asked.query.get("at", ""))
    jobs = await asked.poller.ask(lambda: jobs_of(connection, name, place, job or None, at), connection)
    points, row = points_of(now.history, of_queue(line)), queue_row(now, line)
    times, deploys = [point.at for point in points], marks(now.events)
    counts = [Line("done", [p.done for p in points], "s1"), Line("failed", [p.failed for p in points], "fail")]
    waits = [Line("wait", [p.wait_p95 for p in points], "s1"), Line("run", [p.run_p95 for p in points], "s2")]
    charts = [
        chart("Jobs per minute", times, counts, deploys),
        chart("Ready jobs", times, [Line("ready", [p.depth for p in points], "s1")], deploys),
        chart("Wait and run time", times, waits, deploys, log=True, unit="s"),
    ]
    facts |= {"row": row, "charts": charts, "state": place, "job": job, "at": at, "size": SHOWN, **jobs}
    table = columns(("id", "job", "attempts", "created_at", "arguments"), jobs.get("jobs", []))
    return facts | {"table": table, "document": row["document"] | {"jobs": jobs.get("jobs", [])}}


def jobs_of(connection: str, name: str, place: Place, job: str | None, at: int) -> Facts:
    """A page of the jobs that wait, and how many there are of each name."""
    found = context.settings()
    limits = gaps_of(found, connection, context.own_drivers(found, connection))
    if why := limits.get("find") or limits.get("memory"):
        return {"refused": f"The jobs of this queue cannot be listed: {why}."}
    store = context.store(found, connection)
    jobs = [*islice(waiting.Search(store, name, place, job, None), at, at + SHOWN + 1)]
    every = waiting.Search(store, name, place, None, None)
    mix = Counter(each.name for each in every).most_common(12)
    shown = [waiting.described(each, place) for each in jobs[:SHOWN]]
    for facts in shown:
        facts["arguments"] = hidden(facts["arguments"], found.dashboard.hide)
    return {
        "jobs": shown,
        "more": len(jobs) > SHOWN,
        "mix": mix,
        "looked": every.looked,
        "of": max(every.total, every.looked),
    }


async def failed(asked: Asked, now: Snapshot) -> Facts:
    job, error = asked.query.get("job"), asked.query.get("error")
    groups, jobs, looked, total = list[Facts](), list[Facts](), 0, 0
    for connection in dict.fromkeys(line.connection for line in now.state.queues):
        found = await asked.poller.failed(connection)
        looked, total = looked + len(found.seen), total + found.total
        for group in found.ranked()[:MOST_GROUPS]:
            until = output.iso(
                group.last + 0.001
            )  # its last digits are cut off; what fails later is not retried unseen
            groups.append(described_group(group) | {"connection": connection, "until": until})
        if job is not None:
            jobs += await asked.poller.ask(lambda: failed_rows(job or None, error or None), connection)
    if job is not None:
        groups = [group for group in groups if (group["job"] or "", group["error"]) == (job, error or group["error"])]
    groups.sort(key=lambda group: -group["count"])
    table = columns(("count", "job", "error", "queues", "first_failed_at", "last_failed_at"), groups)
    facts = {"title": "Failed", "groups": groups, "looked": looked, "total": total, "own": True, "table": table}
    document = {"schema": 1, "total": total, "looked": looked, "groups": groups}
    return facts | {"jobs": jobs, "job": job, "error": error, "document": document}


def failed_rows(job: str | None, error: str | None) -> list[Facts]:
    """The newest ones with this name and exception, of the connection of this context."""
    connection, at = context.given().connection, source((), changes=False)
    wanted = Wanted(job, error, None, None, at.now)
    return [
        {
            "id": record.job_id,
            "record": record.id,
            "connection": connection,
            "reason": record.reason.partition("\n")[0][:300],
        }
        | output.fields(record, "queue", "attempts", "failed_at", "death")
        for record in islice(at.store.records(at.queues, wanted), SHOWN)
    ]


def of_one(title: str, read: Callable[[str, Snapshot], Facts]) -> Page:
    """The page of what `read` returns for an id, on the connection of its address."""

    async def page(asked: Asked, now: Snapshot) -> Facts:
        connection, id = asked.path["connection"], asked.path["id"]
        facts: Facts = {"title": f"{title} {id}", "id": id, "connection": connection, "own": True}
        return facts | await asked.poller.ask(partial(read, id, now), connection)

    return page


def one_failure(id: str, now: Snapshot) -> Facts:
    at = source((), changes=False)
    if not (found := at.store.find(at.queues, [id])[id]):
        return {"record": None}
    record = found[0]
    count, first = record.failures
    death = {key: value for key, value in (record.death or {}).items() if value}
    stack, text = str(death.pop("stack", "")), redact(payload_of(record))
    return {
        "record": record,
        "failures": count,
        "first_failed_at": first,
        "payload": cut(text),
        "trace": cut(redact(record.trace or "")),
        "stack": cut(redact(stack)),
        "death": {("peak memory" if key == "peak" else key): value_of(key, value) for key, value in death.items()},
        "document": masked(document_of(record)) | {"payload": text, "death": masked(record.death or {})},
    }


async def workers(asked: Asked, now: Snapshot) -> Facts:
    state, masters, rows = now.state, list[Facts](), list[Sequence[object]]()
    for master in sorted(state.masters, key=lambda each: (each.host, each.pool, each.pid)):
        children = list[Facts]()
        for worker in sorted(master.workers, key=lambda each: each.slot):
            doing, seconds = status.doing(master, worker), status.age(worker.since, master)
            children.append({"report": worker, "doing": doing, "seconds": seconds})
            own = worker.slot, worker.pid, doing, worker.job, worker.queue, seconds, worker.done
            rows.append((master.pool_title, master.host, *own))
        up = state.now - master.booted_at if master.booted_at else None
        facts = {"stale": stale(master, state.now), "state": status.state_of(master, state.now), "up": up}
        masters.append({"report": master, "workers": children} | facts)
    head = ("pool", "host", "worker", "pid", "state", "job", "queue", "seconds", "done")
    document = {"schema": 1, "masters": [status.master_document(master, state.now) for master in state.masters]}
    part = listed(asked, masters, lambda each: f"{each['report'].host} {each['report'].pool_title}", MASTERS)
    return part | {"title": "Workers", "table": (head, rows), "document": document}


async def schedule_page(asked: Asked, now: Snapshot) -> Facts:
    try:
        facts = await asked.poller.ask(entries_of)
    except QdError as error:
        facts = {"entries": [], "above": [], "refused": str(error)}
    return {"title": "Schedule", "own": True} | facts


def entries_of() -> Facts:
    """Needs the app, which declares the schedule. Raises ConfigError if none is named."""
    own = context.app()
    entries = own.schedule.entries()
    seen = schedule.read_entries(own, own.settings, entries)
    document = schedule.document(entries, seen, own.settings, None)
    rows = [
        {"row": schedule.row(entry, seen, own.settings, None), "document": each}
        for entry, each in zip(entries, document["entries"], strict=True)
    ]
    return {"entries": rows, "above": [*schedule.above(seen)], "document": document}


async def metrics(asked: Asked, now: Snapshot) -> Facts:
    wanted = asked.query.get("range", "")
    seconds = RANGES.get(wanted, 3600)
    history = await asked.poller.hours(min(2 * seconds, RANGES["7d"])) if seconds > 3600 else now.history
    since = history.now - seconds
    before = history.by_name(since - seconds, since) if history.seconds >= 2 * seconds else {}
    done = done_by_name(history, HOURS if seconds == 3600 else seconds)
    hour = sorted(history.by_name(since).items(), key=lambda pair: -pair[1].started)
    part = listed(asked, hour, lambda pair: f"{pair[0].job} {pair[0].queue}")
    for n, (name, numbers) in enumerate(part["rows"]):
        ended = max(1, numbers.done + numbers.failed)
        times = {
            "wait": shown_times(numbers.wait),
            "run": shown_times(numbers.run),
            "failed_part": numbers.failed / ended,
            "change": change(before.get(name), numbers),
        }
        part["rows"][n] = {"name": name, "numbers": numbers, "spark": sparkline(done.get(name, [])), **times}
    counts = ("started", "done", "failed", "released", "timed_out", "crashed", "cancelled", "lease_lost", "handed_back")
    flat = [name._asdict() | output.fields(numbers, *counts) for name, numbers in hour]
    table = columns(("connection", "queue", "job", *counts), flat)
    part |= {"range": wanted if wanted in RANGES else "1h", "ranges": [*RANGES], "own": part["own"] or seconds > 3600}
    return part | {"title": "Metrics", "table": table, "document": {"schema": 1, "jobs": flat}}


async def events(asked: Asked, now: Snapshot) -> Facts:
    text = "{0.what} {0.actor} {0.reason} {0.object}"
    part = listed(asked, now.events[::-1], text.format, EVENTS)
    flat = [
        output.fields(each, "actor", "what", "object", "reason", "count") | {"at": output.iso(each.at)}
        for each in part["rows"]
    ]
    table = columns(("at", "actor", "what", "object", "reason", "count"), flat)
    return part | {"title": "Events", "table": table, "document": {"schema": 1, "events": flat}}


PAGES: Mapping[str, tuple[str, Page]] = {
    "overview": ("/", overview),
    "queues": ("/queues", queues),
    "queue": ("/queues/{connection}/{name:path}", queue),
    "failed": ("/failed", failed),
    "failure": ("/failed/{connection}/{id:path}", of_one("Failed job", one_failure)),
    "workers": ("/workers", workers),
    "schedule": ("/schedule", schedule_page),
    "metrics": ("/metrics", metrics),
    "events": ("/events", events),
}


# -- parts of pages


def tiles(now: Snapshot, points: Sequence[Point]) -> list[Facts]:
    state, rates = now.state, [*now.rates.values()]
    alive = [master for master in state.masters if not stale(master, state.now)]
    children = [worker for master in alive for worker in master.workers]
    configured = sum(master.configured or len(master.workers) for master in alive)
    hour = now.history.total(now.history.now - 3600)
    last = points[-5:]
    idle, running = sum(not each.job for each in children), sum(each.running or bool(each.job) for each in children)
    ready, kept = (sum(getattr(line.sizes, word) for line in state.queues) for word in ("ready", "failed"))
    leaves, failing = pace(sum(rate.leaves for rate in rates)), pace(sum(rate.failed for rate in rates))
    wait, run = (output.duration(worst(getattr(point, word) for point in last)) for word in ("wait_p95", "run_p95"))
    return [
        tile("Ready", f"{ready:,}", growth(rates), "queues", [p.depth for p in points]),
        tile("Running", f"{running:,}", f"{output.count(idle, 'worker')} idle", "workers"),
        tile("Failed and kept", f"{kept:,}", f"{failing}/min now", "failed", [p.failed for p in points]),
        tile("Jobs per minute", leaves, f"{hour.done + hour.failed:,} in 1h", "metrics", [p.done for p in points]),
        tile("Wait p95", wait, "at most, last 5 min", "metrics", [p.wait_p95 for p in points]),
        tile("Run time p95", run, "at most, last 5 min", "metrics", [p.run_p95 for p in points]),
        tile("Workers up", f"{len(children)}", f"of {configured} configured", "workers"),
        tile("Server", f"{now.latency * 1000:.1f}ms", memory(now), "events"),
    ]


def tile(label: str, value: str, note: str, page: str, values: Sequence[float | None] = ()) -> Facts:
    spark = sparkline(values, "fail" if page == "failed" else "s1", bars=page == "failed") if values else ""
    return {"label": label, "value": value, "note": note, "spark": spark, "page": page}


def by_name(line: QueueLine) -> tuple[str, str]:
    return line.connection, line.name


def queue_row(now: Snapshot, line: QueueLine) -> Facts:
    rate = now.rates.get((line.connection, line.name))
    kind, text = trend(line, rate, is_growing(line, now.rates))
    facts = {"line": line, "document": status.queue_of(line, rate), "trend": text, "kind": kind}
    return facts | {"spark": sparkline(depths(now, line, HOURS // 60))}


def trend(line: QueueLine, rate: Rate | None, growing: bool) -> tuple[str, str]:
    """A class, and a text."""
    if rate is None or line.paused or not (line.sizes.ready or rate.leaves):
        return "", ""
    if growing:
        return "warn", f"▲ growing by {pace(rate.growth)}/min"
    if line.sizes.ready and (seconds := rate.empty_in(line.sizes)) is not None:
        return "", f"empty in {output.duration(seconds)}"
    return "", "steady"


def of_queue(line: QueueLine) -> Callable[[Name], bool]:
    return lambda name: (name.connection, name.queue) == (line.connection, line.name)


def points_of(history: History, wanted: Callable[[Name], bool] | None = None) -> list[Point]:
    """Of the last hours, or since statistics began, but not less than 20 minutes."""
    points = history.points(history.now - HOURS, wanted)
    first = next((n for n, point in enumerate(points) if point.done or point.failed or point.depth), 0)
    return points[max(0, min(first, len(points) - 20)) :]


def depths(now: Snapshot, line: QueueLine, count: int) -> list[float | None]:
    """The ready jobs of a queue in each of the last `count` minutes that are over."""
    name, last = Name(line.connection, line.name, ""), int(now.history.now // 60)
    held = [now.history.minutes.get(minute, ({}, {}))[1].get(name) for minute in range(last - count, last)]
    return [None if depth is None else depth.ready for depth in held]


def change(before: Numbers | None, now: Numbers) -> str:
    """How many more jobs were done than in the same time before."""
    return f"{(now.done - before.done) / before.done:+.0%}" if before and before.done else ""


def done_by_name(history: History, seconds: float) -> dict[Name, list[float | None]]:
    """How many jobs of each name were done in each of the last minutes or hours."""
    first, last = int((history.now - seconds) // history.step) + 1, int(history.now // history.step)
    found = dict[Name, list[float | None]]()
    for minute, (added, _) in history.minutes.items():
        if first <= minute < last:
            for name, numbers in added.items():
                found.setdefault(name, [0.0] * (last - first))[minute - first] = numbers.done
    return found


def marks(entries: Iterable[Entry]) -> list[Mark]:
    """New code and pauses. Equal ones within five minutes are one."""
    found = list[Mark]()
    for entry in entries:
        kind = "pause" if entry.what in ("pause", "down") else "deploy" if entry.what in DEPLOYS else ""
        if not kind:
            continue
        title = output.clean(f"{entry.what} {words_of(entry.object)} by {entry.actor} {entry.reason}")
        text = output.clean(str(entry.object.get("version", "restart") if kind == "deploy" else "pause"))[:8]
        if found and entry.at - found[-1].at < 300 and kind == found[-1].kind:
            found[-1] = found[-1]._replace(text=f"{kind}s", title=f"{found[-1].title}; {title}"[:500])
        else:
            found.append(Mark(entry.at, text, kind, title))
    return found


def growth(rates: Iterable[Rate]) -> str:
    change = sum(rate.growth for rate in rates)
    return f"{'+' if change >= 0 else MINUS}{pace(abs(change))}/min"


def pace(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def shown_times(buckets: Sequence[int]) -> tuple[str, str]:
    p50, p95 = middle_and_most(buckets)
    return output.duration(p50), output.duration(p95)


def memory(now: Snapshot) -> str:
    if now.memory is None:
        return "latency"
    used, most = now.memory
    return f"{used >> 20:,} MB" + (f" of {most >> 20:,} MB" if most else " used")


def payload_of(record: Record) -> str:
    """Indented, and without the values of arguments that are hidden; as it is if it is no JSON."""
    try:
        whole = json.loads(encryption.hidden(record.text() or ""))
        return json.dumps(hidden(whole, context.settings().dashboard.hide), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return pretty(record)


def hidden(value: Any, names: Sequence[str]) -> Any:
    if isinstance(value, dict):
        secret = [key for key in value if any(name.lower() in key.lower() for name in names)]
        return {key: "redacted" if key in secret else hidden(each, names) for key, each in value.items()}
    return [hidden(each, names) for each in value] if isinstance(value, list) else value


def words_of(what: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in what.items())


def columns(head: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Table:
    return head, [[row.get(key) for key in head] for row in rows]


def listed(asked: Asked, rows: Iterable[T], text_of: Callable[[T], str], size: int = ROWS) -> dict[str, Any]:
    """One page of the rows in which the words of the filter occur, and what the pager needs."""
    word, at = asked.query.get("q", ""), int_of(asked.query.get("at", ""))
    found = [row for row in rows if word.lower() in text_of(row).lower()]
    own = bool(word or at)
    return {"rows": found[at : at + size], "q": word, "at": at, "size": size, "matches": len(found), "own": own}


def masked(document: Mapping[str, Any]) -> Facts:
    return {key: redact(value) if isinstance(value, str) else value for key, value in document.items()}


def int_of(text: str) -> int:
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 9 else 0


def cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}\n... {len(text) - LONGEST:,} more characters"
