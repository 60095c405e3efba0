"""One job by its id: `qd job` shows where it is, `qd cancel` cancels it (also by the key it was sent with), `qd promote`
makes it ready.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qd.cli import context, output, waiting
from qd.cli.context import app_if_named
from qd.cli.dispatch import queue_of
from qd.cli.output import count, duration, quote
from qd.cli.state import known_queues, stale
from qd.config.settings import Settings
from qd.dispatch.results import SentJobs, was_cancelled
from qd.dispatch.route import name_of
from qd.drivers.base import Connector
from qd.drivers.keyspace.base import Mistyped
from qd.drivers.types import SPOTS, Found, Kept, Push, Spot
from qd.errors import ConnectionLost
from qd.log import cut
from qd.payload.reservation import split_mark
from qd.store import masters
from qd.store.masters import MasterReport

if TYPE_CHECKING:
    from qd.app import Qd

T = TypeVar("T")
SHORTEST = 6  # characters of the beginning of an id
Worker = tuple[MasterReport, masters.WorkerReport]


@click.command()
@click.argument("id", metavar="[ID]", required=False)
@click.option("--job", metavar="NAME", help="The job's name; with --queue and without --key a pattern, as 'mail.*'.")
@click.option("--key", metavar="KEY", help="The key it was sent with.")
@click.option("-q", "--queue", metavar="QUEUE", help="Its queue.  [default: the job's, else the connection's]")
@waiting.filters
@context.options
def cancel(id: str | None, job: str | None, key: str | None, queue: str | None, **many: Any) -> int:
    """Cancel a job by its id, the one under a key, or many.

    A waiting job never runs; JobCancelled is raised in a running one, found by its id. Exit 1: there is nothing to cancel.

    Many: the jobs that wait in --queue with --job GLOB, or that were sent --older-than TIME.
    """
    if id is None and key is None and queue is not None and (job is not None or many["older_than"] is not None):
        waiting.cancel_many(queue, job, **many)
        return 0
    if any(many.values()):
        many_only = "--older-than, --limit, --dry-run and --yes are for many jobs"
        raise click.UsageError(f"{many_only}: give --queue, and no ID or --key")
    if id is None and job is not None and key is not None:
        return by_key(job, key, queue)
    if id is None or job is not None or key is not None:
        ways = "the ID of a job, both --job NAME and --key KEY, or for many --queue and --job GLOB"
        raise click.UsageError(f"give {ways}")
    return by_id(id, queue)


def by_id(id: str, queue: str | None) -> int:
    found = context.settings()
    connection, was = cancel_id(found, id, queue)
    if context.given().json:
        output.document({"id": id, "connection": connection, "was": was, "cancelled": was is not None})
    elif was is None:
        output.note(f"nothing to cancel: job {id} is not waiting or running (finished or unknown)")
    else:
        output.say(f"cancelled {id}" + ("; its worker ends it" if was == "running" else ""))
    return int(was is None)


def cancel_id(found: Settings, id: str, queue: str | None) -> tuple[str, str | None]:
    """Searches every connection, or that of -c; there one queue, or all that are configured, worked on or have jobs. Records
    it. Returns the connection, and where the job was; None: there was nothing to cancel."""
    reports = masters_of(found)

    def there(name: str) -> tuple[str, str] | None:
        """The connection, and where the cancelled job was; None if there was none."""
        its = context.queue(found, name)
        for each in [queue] if queue else known_queues(found, name, reports):
            if (spot := in_queue(its, each, id, ("delayed", "ready", "running"))) is not None:
                return (name, spot.spot) if SentJobs(lambda: its, each).cancel(id) else None
        return None

    connection, was = search(found, there) or (context.connection_name(found), None)
    if was is not None:
        context.record(found, "cancel", {"id": id, "connection": connection})
    return connection, was


def by_key(job: str, key: str, queue: str | None) -> int:
    complete = queue is not None and context.given().connection is not None  # then the app is not needed
    found = None if complete else app_if_named(context.loaded())
    place = place_of(found, job)
    queue = queue or (queue_of(found, job, {}) if found else context.settings().connection(place).queue)
    cancelled = context.queue(context.settings(), place).cancel_keyed(queue, name_of(job, key))
    if cancelled:
        context.record(context.settings(), "cancel", {"job": job, "key": key, "queue": queue, "connection": place})
    if context.given().json:
        output.document({"job": job, "key": key, "queue": queue, "connection": place, "cancelled": cancelled})
    elif cancelled:
        output.say(f"cancelled {job} {key} in {queue}")
    else:
        output.note(f"no {job} waits under {key} in {queue}")
    return 0 if cancelled else 1


def place_of(app: Qd | None, job: str) -> str:
    """The connection of -c, else the job's own, else the default one."""
    declared = app._registry.get(job) if app else None
    own = declared.options.connection if declared else None
    return context.place(context.settings()) if own is None or context.given().connection else own


@click.command()
@click.argument("id", metavar="ID")
@click.option("-q", "--queue", metavar="QUEUE", help="Its queue.  [default: all are searched]")
@context.options
def promote(id: str, queue: str | None) -> int:
    """Make a delayed job ready now.

    Exit 1: no job with this id is delayed.
    """
    found = context.settings()
    reports = masters_of(found)

    def there(name: str) -> tuple[str, str] | None:
        """Connection and queue of the promoted job, None if there was none."""
        jobs = context.queue(found, name)
        if "find" in jobs.limits:  # a broker: what waits for it in the keyspace is not made ready by a push there
            return None
        for each in [queue] if queue else known_queues(found, name, reports):
            if (spot := in_queue(jobs, each, id, ("delayed",))) is not None:
                return (name, each) if made_ready(jobs, spot) else None
        return None

    name, its_queue = search(found, there) or (context.connection_name(found), None)
    if its_queue is not None:
        context.record(found, "promote", {"id": id, "queue": its_queue, "connection": name})
    if context.given().json:
        facts = {"id": id, "connection": name, "queue": its_queue, "promoted": its_queue is not None}
        output.document({"schema": 1, **facts})
    elif its_queue is None:
        way = f"`qd job {quote(id)}` shows where it is"
        output.note(f"nothing to promote: no delayed job has the id {id} ({way})")
    else:
        output.say(f"{id} is ready in {its_queue}")
    return int(its_queue is None)


def made_ready(jobs: Connector, found: Found) -> bool:
    key = found.payload.qd.key if found.payload.qd is not None else None
    if key is not None:
        return jobs.move_keyed(found.queue, key.partition(" ")[2], 0.0)
    return jobs.jobs.drop(found, [Push(found.queue, found.text)])


@dataclass(frozen=True)
class JobView:
    """A job as it was found. found: None if only its record is left. now: the server's clock."""

    id: str
    connection: str
    found: Found | None
    kept: Kept | None
    ahead: int | None
    worker: Worker | None
    now: float

    @property
    def status(self) -> str:
        if self.found is not None and not was_cancelled(self.found):
            return self.found.spot
        return (self.kept.status if self.kept else None) or ("failed" if self.found else "unknown")


@click.command()
@click.argument("id", metavar="ID")
@context.watched
@context.options
def job(id: str) -> int:
    """Show where a job is, by its id or uuid.

    Six or more characters of the beginning of an id are enough, if no other job has them.

    Searches every connection (-c: that one), in every queue that is configured, worked on or has jobs: the longer they are,
    the longer it takes.
    """
    found = context.settings()
    seen = look_up(found, id, masters_of(found))
    seen = seen or JobView(id, context.connection_name(found), None, None, None, None, 0.0)
    if context.given().json:
        output.document(described(seen))
    elif seen.status == "unknown":
        output.note(f"unknown job '{id}': of a job that has ended or was cancelled, only its result_ttl keeps a trace")
    else:
        for name, value in lines_of(seen):
            whole = name in ("result", "error")
            output.say(f"{name:<10}{value if whole else cut(str(value), output.MOST_SHOWN)}")
    return int(seen.status == "unknown")


def look_up(found: Settings, id: str, reports: list[MasterReport]) -> JobView | None:
    """The job with this id or uuid; else the only one whose id begins so. Raises Refused if there are several."""
    seen = search(found, lambda place: view(found, place, id, reports))
    if seen is not None or not id:
        return seen
    if len(id) < SHORTEST:
        output.note(f"qd: '{id}' is no whole id; of one that is cut off give at least {SHORTEST} characters")
        return None
    queues = [(place, queue) for place in places(found) for queue in known_queues(found, place, reports)]
    known = set[str]()
    for place, queue in queues:
        with suppress(Mistyped):  # search() has said so
            known |= context.queue(found, place).jobs.ids(queue, id)
    ids = sorted(known)
    if len(ids) > 1:
        more = ", ..." if len(ids) > 3 else ""
        raise context.Refused(f"the ids of {len(ids)} jobs begin with '{id}': {', '.join(ids[:3])}{more}")
    return search(found, lambda place: view(found, place, ids[0], reports)) if ids else None


def search(found: Settings, look: Callable[[str], T | None]) -> T | None:
    """The first result of `look` on the connections: that of -c, or all configured ones, the default one first. Notes
    unreachable connections and, if nothing was found, those that cannot search. Raises ConnectionLost if nothing was found
    and a connection was unreachable."""
    names, away = places(found), dict[str, ConnectionLost]()
    for name in names:
        # Do not start an embedded server for a search, unless it is the first connection.
        context.given().only_looks = name != names[0]
        try:
            result = look(name)
        except ConnectionLost as error:
            away[name] = error
            continue
        if result is not None:
            for other, lost in away.items():
                output.note(f"qd: connection {other} was not searched: {lost}")
            return result
    if away and len(names) == 1:
        raise away[names[0]]
    if away:
        raise ConnectionLost("; ".join(f"connection {name} was not searched: {lost}" for name, lost in away.items()))
    for name in names:
        if why := context.queue(found, name).limits.get("find"):
            output.note(f"qd: connection {name}: {why}")
    return None


def places(found: Settings) -> list[str]:
    others = () if context.given().connection else found.connections
    with_url = [name for name in others if found.connections[name].url is not None]
    return list(dict.fromkeys([*context.places(found), *with_url]))


def masters_of(found: Settings) -> list[MasterReport]:
    """The masters that report; [] if that cannot be read, since jobs are found without."""
    try:
        return masters.masters(context.store(found, found.control))
    except ConnectionLost as error:
        if found.control not in places(found):  # else it is reported there
            output.note(f"qd: workers are unknown, connection {found.control} is unreachable: {error}")
        return []


def view(found: Settings, connection: str, id: str, reports: list[MasterReport]) -> JobView | None:
    """The job on this connection, None if it is unknown there."""
    store, queue = context.store(found, connection), context.queue(found, connection)
    spots = (in_queue(queue, name, id) for name in known_queues(found, connection, reports))
    spot = next((spot for spot in spots if spot), None)
    ahead = None
    if spot and spot.spot == "ready":
        ahead = max(0, queue.sizes(spot.queue).ready - 1 - (spot.behind or 0))
    worker = holder(reports, spot) if spot else None
    seen = JobView(id, connection, spot, queue.jobs.kept(id), ahead, worker, store.now())
    return None if seen.status == "unknown" else seen


def in_queue(its: Connector, queue: str, id: str, spots: Sequence[Spot] = SPOTS) -> Found | None:
    """The job in this queue. Notes a queue that cannot be searched, so that the others are."""
    try:
        return its.jobs.find(queue, id, spots)
    except Mistyped as error:
        output.note(f"qd: queue {queue} was not searched: {error}")
        return None


def holder(reports: list[MasterReport], spot: Found) -> Worker | None:
    """The worker that runs it, as its master reports it."""
    try:
        mark = split_mark(spot.payload.rsv or "")
    except ValueError:
        return None
    there = ((m, w) for m in reports for w in m.workers if (m.token, w.slot) == (mark.token, mark.slot))
    return next(there, None) if spot.spot == "running" else None


def lines_of(seen: JobView) -> list[tuple[str, object]]:
    spot, kept = seen.found, seen.kept
    lines: list[tuple[str, object]] = [("id", seen.id), ("status", seen.status)]
    if spot is not None:
        lines += [("job", spot.payload.display), ("queue", spot.queue), ("where", where(seen, spot))]
        lines.append(("attempts", spot.payload.attempts))
        if spot.payload.crashes:
            lines.append(("crashes", spot.payload.crashes))
    if kept is not None and kept.percent is not None:
        lines.append(("progress", f"{kept.percent:g} % {kept.details.get('message') or ''}".rstrip()))
    if kept is not None and kept.status is not None:
        lines.append(("ended", output.ago(None if kept.at is None else seen.now - kept.at)))
        lines.append(("result" if kept.status == "done" else "error", kept.value.decode("utf-8", "replace")))
    return lines


def where(seen: JobView, spot: Found) -> str:
    if spot.spot == "ready":
        return f"ready, {count(seen.ahead or 0, 'job')} ahead of it"
    if spot.spot == "delayed":
        return f"due in {duration(max(0.0, (spot.score or 0) - seen.now))}"
    if spot.spot == "failed":
        facts = record(spot)
        why = f"{facts.get('error')}: {facts.get('reason')}"
        return f"in the failed store: {why} (qd failed show {quote(seen.id)})"
    if seen.worker is None:
        return "reserved by a worker that does not report: of another program, or of a master that is gone"
    master, worker = seen.worker
    since = "" if worker.since is None else f" for {duration(max(0.0, master.seen_at - worker.since))}"
    quiet = f", which has not reported for {duration(seen.now - master.seen_at)}" if stale(master, seen.now) else ""
    return f"runs on {master.title}, pid {worker.pid}{since}{quiet}"


def record(spot: Found) -> dict[str, Any]:
    with suppress(ValueError):
        found = json.loads(spot.text.partition(b"\n")[0])
        return found if isinstance(found, dict) else {}
    return {}


def described(seen: JobView) -> dict[str, Any]:
    """For programs; null for what does not apply."""
    spot, kept, found = seen.found, seen.kept, seen.found.payload if seen.found else None
    worker = failed = None
    if seen.worker is not None:
        master, of_it = seen.worker
        worker = {**output.fields(master, "host", "pool"), **output.fields(of_it, "pid", "slot", "since")}
    if spot and spot.spot == "failed":  # with the id of the job
        facts = record(spot)
        failed = facts | {"id": seen.id, "record": facts.get("id")}
    facts = output.fields(seen, "id", "status", "connection") | {"queue": spot.queue if spot else None}
    facts |= {name: getattr(found, name, None) for name in ("job", "attempts", "crashes")} | {"ahead": seen.ahead}
    due_at = spot.score if spot and spot.spot == "delayed" else None
    facts |= {"due_at": due_at, "worker": worker, "failed": failed}
    facts |= {"progress": kept.percent if kept else None, "ended_at": kept.at if kept else None}
    return facts | {"result": value_of(kept, "done"), "error": value_of(kept, "failed")}


def value_of(kept: Kept | None, status: str) -> Any:
    with suppress(ValueError):  # not representable in JSON
        return json.loads(kept.value) if kept is not None and kept.status == status else None
    return None
