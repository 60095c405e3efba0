"""One job by its id: `qd job` shows where it is, `qd why` what keeps it from running, as far as the server shows it;
`qd cancel` cancels it (also by the key it was sent with), `qd promote` makes it ready.

found -> findings, the one that has to end first at the top -> the first one is the cause
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import click

from qd.cli import context, output, waiting
from qd.cli.context import app_if_named
from qd.cli.dispatch import queue_of
from qd.cli.output import by_whom, count, duration, quote, resuming
from qd.cli.state import known_queues, stale
from qd.config.settings import Settings
from qd.dispatch.results import SentJobs, was_cancelled
from qd.dispatch.route import name_of
from qd.drivers.base import Connector
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Mistyped
from qd.drivers.types import SPOTS, Found, Kept, Push, Spot
from qd.errors import ConnectionLost, QdError, UnknownParameters
from qd.log import cut
from qd.payload.format import OF_PHP, Payload, plain_name
from qd.payload.reservation import split_mark
from qd.store import controls, fleet, masters
from qd.store.base import KeyspaceStore
from qd.store.masters import MasterReport, queues_of
from qd.worker.outcome import unknown_job

if TYPE_CHECKING:
    from qd.app import Qd

T = TypeVar("T")
SHORTEST = 6  # characters of the beginning of an id
Worker = tuple[MasterReport, masters.WorkerReport]
MOST = 10_000  # jobs ahead that are counted; names of limits and locks that are searched
Cause = Literal[
    "unknown", "done", "failed", "cancelled", "running", "orphaned", "down", "paused", "no-worker", "php", "unknown-job",
    "limited", "overlapping", "retry", "delayed", "busy", "queued", "next",
]  # fmt: skip


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
        output.note(f"unknown job '{id}': a job that succeeded is only kept if it has a result_ttl")
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


# -- why


class Finding(NamedTuple):
    cause: Cause
    text: str


UNKNOWN = Finding(
    "unknown",
    "not waiting, running or failed: it succeeded (kept only with a result_ttl), was cancelled or cleared, was never "
    "sent, as a unique job whose lock another one has, or was sent with another prefix or server",
)


@click.command("why")
@click.argument("id", metavar="ID")
@context.options
def why(id: str) -> int:
    """Show why a job does not run.

    The first line is the current cause. The others must end, too, before the job runs. Exit 1: the job is unknown.
    """
    found = context.settings()
    reports = masters_of(found)
    seen = look_up(found, id, reports)
    reasons = [UNKNOWN] if seen is None else list(findings(found, seen, reports))
    if context.given().json:
        output.document(explained(seen.id if seen else id, seen, reasons))
    else:
        for cause, text in reasons:
            output.say(f"{cause:<12}{cut(text, output.MOST_SHOWN)}")
    return int(seen is None)


def explained(id: str, seen: JobView | None, reasons: list[Finding]) -> dict[str, Any]:
    spot = seen.found if seen else None
    facts = {"schema": 1, "read_at": output.iso(seen.now if seen else None), "id": id, **reasons[0]._asdict()}
    facts |= {"status": seen.status if seen else "unknown", "connection": seen.connection if seen else None}
    facts |= {"queue": spot.queue if spot else None, "job": spot.payload.job if spot else None}
    facts["ahead"] = None if seen is None or (seen.ahead or 0) > MOST else seen.ahead
    facts["due_at"] = output.iso(spot.score) if spot and spot.spot == "delayed" else None
    return facts | {"findings": [each._asdict() for each in reasons]}


def findings(found: Settings, seen: JobView, reports: list[MasterReport]) -> Iterator[Finding]:
    spot = seen.found
    if spot is None or was_cancelled(spot):
        kept = seen.kept
        if kept is not None and kept.status is not None:
            at = output.ago(None if kept.at is None else seen.now - kept.at)
            well = kept.status == "done"
            text = f"it {'succeeded' if well else 'failed'} {at}; `qd job {quote(seen.id)}` shows more"
            yield Finding("done" if well else "failed", text)
        else:
            yield Finding("cancelled", "it was cancelled; the next worker deletes it")
    elif spot.spot == "failed":
        yield Finding("failed", where(seen, spot))
    elif spot.spot == "running":
        yield Finding("running" if seen.worker else "orphaned", where(seen, spot) + lease(seen, spot))
    else:
        store = context.store(found, seen.connection)
        due = spot.spot == "ready" or (spot.score or 0.0) <= seen.now
        down, pauses = notes(found)
        pause = pauses.get(fleet.Target("job", spot.payload.job))
        if pause is not None:
            way = f"{resuming('job', spot.payload.job)} ends it"
            yield Finding("paused", f"job {spot.payload.job} is paused{by_whom(pause, seen.now)}; {way}")
        if not due and not (pause is not None and spot.payload.held):
            yield from delayed(store, seen, spot)
        if down is not None and spot.queue not in down.allow:
            yield Finding("down", f"maintenance mode{by_whom(down, seen.now)}; `qd up` ends it")
        closing = [*closed(found, store, seen, spot, reports, pauses)]
        yield from closing
        if due and not closing and spot.spot == "delayed":
            yield Finding("queued", f"due; a worker or keeper moves it to the end of {spot.queue}")
        place = position(seen, spot, serving(seen, spot, reports)) if spot.spot == "ready" else None
        if place is not None and not (closing and place.cause in ("busy", "next")):
            yield place


def notes(found: Settings) -> tuple[controls.Down | None, Mapping[fleet.Target, controls.Pause]]:
    """Maintenance mode, and the pauses of jobs, hosts and pools."""
    try:
        store = context.store(found, found.control)
        return controls.is_down(store), fleet.read(store).pauses
    except ConnectionLost as error:
        output.note(f"qd: maintenance mode is unknown, connection {found.control} is unreachable: {error}")
        return None, {}


def lease(seen: JobView, spot: Found) -> str:
    if seen.worker is not None or spot.score is None:
        return ""
    left = spot.score - seen.now
    return f"; ready again in {duration(left)}" if left > 0 else f"; its lease ended {output.ago(-left)}"


def delayed(store: KeyspaceStore, seen: JobView, spot: Found) -> Iterator[Finding]:
    payload, due = spot.payload, f"due in {duration((spot.score or 0.0) - seen.now)}"
    if payload.held:
        newer = f" in version {payload.job_version}" if payload.job_version > 1 else ""
        what = unfit(payload)
        if not what:
            what = f"no worker that took it knew '{payload.job}'{newer} or had its key, or its parameters do not fit"
            what += ", or it was paused; see `job.released` in the worker's log"
        hint = f"; if no Python code declares it, {OF_PHP}" if "\\" in payload.job else ""
        since = output.ago(seen.now - payload.held)
        yield Finding("unknown-job", f"it was put back: {what}, since {since}; {due}{hint}")
    elif limit := limit_of(store, payload.uuid or payload.id or ""):
        yield Finding("limited", f"it is over the limit '{limit}'; {due}")
    elif payload.rsv is not None and (lock := held_lock(store, payload.job, seen.now)):
        yield Finding("overlapping", f"it was put back, and job {lock[1]} holds the lock '{lock[0]}'; {due}")
    elif payload.rsv is not None and payload.attempts:
        yield Finding("retry", f"attempt {payload.attempts} was not its last one; {due}")
    else:
        yield Finding("delayed", due)


def unfit(payload: Payload) -> str:
    """Why the app of this folder cannot run it; "" if it can, or is not known."""
    app = None
    with suppress(QdError):
        app = app_if_named(context.loaded())
    if app is None or payload.is_laravel_object:
        return ""
    declared = app._registry.get(payload.job)
    if declared is None or payload.job_version > declared.version:
        return str(unknown_job(app._registry, payload))
    if payload.job_version == declared.version and not declared.options.encrypted:
        try:
            declared.decode(bytes(payload.data))
        except UnknownParameters as error:
            return str(error)
        except QdError:
            pass  # a worker fails it, and does not put it back
    return ""


def limit_of(store: KeyspaceStore, owner: str) -> str:
    """The rate limit that has given it a later turn, "" if none has."""
    start, end = keys.turns("").split("}")
    names = [name for name in store.names(start, MOST) if name.endswith(f"}}{end}")]
    scores = store.space.call_many([("ZSCORE", store.prefix + name, owner) for name in names]) if names else []
    over = (name for name, score in zip(names, scores, strict=True) if isinstance(score, bytes))
    return next(over, "").removeprefix(start).removesuffix(f"}}{end}")


def held_lock(store: KeyspaceStore, job: str, now: float) -> tuple[str, str] | None:
    """A lock of WithoutOverlapping that has the name of this job, and the uuid of the job that holds it."""
    first = keys.lock(plain_name(job))
    for name in store.names(first, MOST):
        for owner, value in store.fields(name).items() if name[len(first) :][:1] in ("", ":") else ():
            until, _, _ = value.partition(b" ")
            if until.isdigit() and int(until) / 1000 > now:
                return name.removeprefix(keys.lock("")), owner
    return None


def closed(
    found: Settings,
    store: KeyspaceStore,
    seen: JobView,
    spot: Found,
    reports: list[MasterReport],
    pauses: Mapping[fleet.Target, controls.Pause],
) -> Iterator[Finding]:
    """What keeps every worker from taking it. pauses: of hosts and pools."""
    queue = spot.queue
    if note := controls.paused(store, [queue]).get(queue):
        yield Finding("paused", f"queue {queue} is paused{by_whom(note, seen.now)}; `qd resume {quote(queue)}` ends it")
    if spot.payload.is_laravel_object:
        yield Finding("php", "it is an object job of Laravel: only a PHP worker runs it")
    elif "\\" in spot.payload.job and not is_ours(found, seen, spot, reports):
        yield Finding("php", f"it is the job of a PHP class, and no qd worker serves {queue}: a PHP worker runs it")
    elif not serving(seen, spot, reports):
        there = masters_there(seen, spot, reports)
        names = ", ".join(f"{m.title} is {m.state}{paused_by(m, pauses, seen.now)}" for m in there)
        way = names or f"start `qd work {quote(queue)}`"
        foreign = "" if is_ours(found, seen, spot, reports) else "; if only PHP serves it, start a PHP worker instead"
        yield Finding("no-worker", f"no worker takes jobs from {queue}: {way}{foreign}")


def is_ours(found: Settings, seen: JobView, spot: Found, reports: list[MasterReport]) -> bool:
    """Whether a master serves its queue, or the configuration names it, as `ours` of a QueueLine."""
    named = context.queues_named(found, seen.connection)
    return spot.queue in named or spot.queue in queues_of(reports).get(seen.connection, [])


def paused_by(master: MasterReport, pauses: Mapping[fleet.Target, controls.Pause], now: float) -> str:
    places = fleet.Target("host", master.host), fleet.Target("pool", master.pool_title)
    there = [place for place in places if place in pauses and master.state == "paused"]
    return f"{by_whom(pauses[there[0]], now)}; {resuming(*there[0])} ends it" if there else ""


def masters_there(seen: JobView, spot: Found, reports: list[MasterReport]) -> list[MasterReport]:
    there = [m for m in reports if m.connection == seen.connection and spot.queue in m.queues]
    return [master for master in there if not master.silent(seen.now)]


def serving(seen: JobView, spot: Found, reports: list[MasterReport]) -> list[MasterReport]:
    return [m for m in masters_there(seen, spot, reports) if m.state in ("running", "down") and m.workers]


def position(seen: JobView, spot: Found, there: list[MasterReport]) -> Finding:
    ahead, queue = seen.ahead or 0, spot.queue
    workers = [worker for master in there for worker in master.workers]
    if ahead > MOST:
        return Finding("queued", f"behind more than {MOST:,} jobs of {queue}")
    if ahead:
        return Finding("queued", f"{ahead:,} {'job' if ahead == 1 else 'jobs'} of {queue} ahead of it")
    if workers and all(worker.job for worker in workers):
        return Finding("busy", f"first in {queue}, and its {count(len(workers), 'worker')} run other jobs")
    return Finding("next", f"first in {queue}")
