"""`qd why`: what keeps a job from running, as far as the server shows it.

found -> findings, the one that has to end first at the top -> the first one is the cause
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import click

from qd.cli import context, output
from qd.cli.context import app_if_named
from qd.cli.job import JobView, look_up, masters_of, places, where
from qd.cli.output import by_whom, duration, moving, quote, resuming
from qd.cli.state import known_queues, our_queues
from qd.config.settings import Settings
from qd.dispatch.results import CANCELLED, was_cancelled
from qd.drivers.keyspace import keys
from qd.drivers.types import Found
from qd.errors import ConnectionLost, QdError, ServerRefused
from qd.log import cut
from qd.payload.format import OF_PHP, Payload, plain_name
from qd.store import controls, fleet
from qd.store.base import KeyspaceStore
from qd.store.failed import FailedStore
from qd.store.masters import MasterReport
from qd.worker.outcome import misfit, unknown_job

MOST = 10_000  # jobs ahead that are counted; names of limits and locks that are searched
Cause = Literal[
    "unknown", "done", "failed", "cancelled", "running", "orphaned", "down", "paused", "no-worker", "php", "unknown-job",
    "limited", "overlapping", "retry", "delayed", "busy", "queued", "next",
]  # fmt: skip


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
    reasons = [unread(found, id, reports) or UNKNOWN] if seen is None else list(findings(found, seen, reports))
    if context.given().json:
        output.document(explained(seen.id if seen else id, seen, reasons))
    else:
        for cause, text in reasons:
            output.say(f"{cause:<12}{cut(text, output.MOST_SHOWN)}")
    return int(reasons[0] is UNKNOWN)


def unread(found: Settings, id: str, reports: list[MasterReport]) -> Finding | None:
    """Of a failed payload that is no job: it has no id but that of its record."""
    for place in places(found):
        with suppress(ConnectionLost, ServerRefused):
            store = FailedStore(context.store(found, place))
            for queue in known_queues(found, place, reports):
                for record in store.of_ids(queue, [id]):
                    shown = f"(qd failed show {quote(id)})"
                    return Finding("failed", f"in the failed store: {record.error}: {record.reason} {shown}")
    return None


def explained(id: str, seen: JobView | None, reasons: list[Finding]) -> dict[str, Any]:
    spot = seen.found if seen else None
    facts = {"schema": 1, "read_at": output.iso(seen.now if seen else None), "id": id, **reasons[0]._asdict()}
    facts |= {"status": seen.status if seen else reasons[0].cause, "connection": seen.connection if seen else None}
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
            cause: Cause = "done" if kept.status == "done" else "cancelled" if kept.value == CANCELLED else "failed"
            what = {"done": "succeeded", "cancelled": "was cancelled"}.get(cause, "failed")
            yield Finding(cause, f"it {what} {at}; `qd job {quote(seen.id)}` shows more")
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
            yield from delayed(store, seen, spot, ours=spot.queue in our_queues(found, seen.connection, reports))
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


def delayed(store: KeyspaceStore, seen: JobView, spot: Found, *, ours: bool) -> Iterator[Finding]:
    payload, due = spot.payload, f"due in {duration((spot.score or 0.0) - seen.now)}"
    if payload.held and payload.is_laravel_object:
        return  # see closed()
    of_php = "\\" in payload.job
    if payload.held and (ours or not of_php):  # else it was moved to a queue of PHP
        newer = f" in version {payload.job_version}" if payload.job_version > 1 else ""
        what = unfit(payload)
        if not what:
            what = f"no worker that took it knew '{payload.job}'{newer} or had its key, or its parameters do not fit"
            what += ", or it was paused; see `job.released` in the worker's log"
        fact = "" if OF_PHP in what else f"if no Python code declares it, {OF_PHP}: "
        hint = f"; {fact}{moving(spot.queue, payload.display)}" if of_php else ""
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
    return misfit(declared, payload)


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
    ours = queue in our_queues(found, seen.connection, reports)
    if note := controls.paused(store, [queue]).get(queue):
        yield Finding("paused", f"queue {queue} is paused{by_whom(note, seen.now)}; `qd resume {quote(queue)}` ends it")
    if spot.payload.is_laravel_object:
        way = f"; move it: {moving(queue, spot.payload.display)}" if ours else ""
        yield Finding("php", f"it is an object job of Laravel: only a PHP worker runs it{way}")
    elif "\\" in spot.payload.job and not ours:
        yield Finding("php", f"it is the job of a PHP class, and no qd worker serves {queue}: a PHP worker runs it")
    elif not serving(seen, spot, reports):
        there = masters_there(seen, spot, reports)
        names = ", ".join(f"{m.title} is {m.state}{paused_by(m, pauses, seen.now)}" for m in there)
        way = names or f"start `qd work {quote(queue)}`"
        foreign = "" if ours else "; if only PHP serves it, start a PHP worker instead"
        yield Finding("no-worker", f"no worker takes jobs from {queue}: {way}{foreign}")


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
        others = "only worker runs another job" if len(workers) == 1 else f"{len(workers)} workers run other jobs"
        return Finding("busy", f"first in {queue}, and its {others}")
    return Finding("next", f"first in {queue}")
