"""`qd status`: masters and what they do, queues, and what is paused by whom. `qd queues`: the queues alone. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import click
from msgspec import Struct, structs

from qd.cli import context, output
from qd.cli.diagnosis import hung, nodes_away, of_line, of_refused_code, refusals
from qd.cli.output import by_whom, fields
from qd.cli.state import QueueLine, State, name_jobs, read_state, stale, unknown_queue
from qd.config.settings import Settings
from qd.errors import ConnectionLost, ServerRefused
from qd.process.exit_codes import Exit
from qd.store import masters, schedule
from qd.store.statistics import WINDOW, History, Place, Rate

INTERNAL = ("boot", "ns", "start", "root")  # fields of reports that the document does not have
MOST_CRASHES = 8  # that a report has room for


@click.command()
@context.watched
@context.options
def status() -> int:
    """Show masters, workers, queues, and what is paused.

    A master reports once a second; one that has not for 5 s is shown as silent. If a connection other than the control
    connection is unreachable, its queues are missing: exit 69. If a node of a cluster is unreachable, a warning names it
    and what is missing: exit 0.
    """
    context.given().only_looks = True
    found = context.settings()
    state = read_state(found)
    with suppress(ConnectionLost, ServerRefused):
        name_jobs(found, state.masters)
    if context.given().json:
        output.document(document(state))
    else:
        say(state)
    for name, why in state.away.items():
        output.note(f"qd: the queues of connection {name} are unknown: {why}")
    return Exit.UNAVAILABLE if state.away else Exit.OK


@click.command()
@click.argument("name", required=False)
@context.watched
@context.options
def queues(name: str | None) -> int:
    """Show queue sizes, rates, and who paused a queue.

    in/min and out/min are those of the last five minutes; "empty in" is when the queue is empty at this pace.

    With NAME: this queue, on each connection that has it. Exit 1: no job is in it, no master works on it and the
    configuration does not name it.
    """
    context.given().only_looks = True
    found = context.settings()
    state = read_state(found, also=() if name is None else (name,))
    # `also` adds a queue that only its name makes known: on a broker that lists none it may have jobs.
    shown = [line for line in state.queues if name is None or (name == line.name and known(found, line))]
    rates = recent(found)
    if context.given().json:
        facts = {"away": state.away, "nodes_away": state.nodes, "unknown": list(state.unknown)}
        rows = [queue_of(line, rates.get((line.connection, line.name))) for line in shown]
        output.document({"schema": 1, "read_at": output.iso(state.now), "queues": rows, **facts})
    elif shown:
        say_queues(replace(state, queues=shown), rates)
    for place, why in state.away.items():
        output.note(f"qd: the queues of connection {place} are unknown: {why}")
    if state.away:
        return Exit.UNAVAILABLE
    if name is not None and not shown:
        output.note(unknown_queue(name, [line.name for line in state.queues if line.name != name]))
    return int(name is not None and not shown)


def known(found: Settings, line: QueueLine) -> bool:
    sizes = line.sizes
    used = sizes.ready or sizes.delayed or sizes.reserved or sizes.failed or line.workers or line.paused or line.error
    configured = [*context.queues_named(found, line.connection), found.connection(line.connection).queue]
    return bool(used) or line.name in configured


def recent(found: Settings) -> Mapping[Place, Rate]:
    """The rates of all queues; empty if their node of a cluster is unreachable."""
    try:
        return History(context.store(found, found.control), (WINDOW + 1) * 60).refresh().rates()
    except (ConnectionLost, ServerRefused):
        return {}


def queue_of(line: QueueLine, rate: Rate | None) -> dict[str, Any]:
    paused = rates = None
    if line.paused is not None:
        times = {"paused_at": output.iso(line.paused.at), "until_at": output.iso(line.paused.until)}
        paused = fields(line.paused, "by", "reason") | times
    if rate is not None:
        paces = {"in": rate.enters, "out": rate.leaves, "failed": rate.failed, "growth": rate.growth}
        empty_in = rate.empty_in(line.sizes)
        seconds = {"empty_in_s": empty_in and round(empty_in), "wait_p95_s": rate.wait_p95, "run_p95_s": rate.run_p95}
        rates = {f"{name}_per_min": round(pace, 1) for name, pace in paces.items()} | seconds
    dropped = output.iso(line.failed.dropped_at)
    return {**queue_document(line), "rates": rates, "paused": paused, "dropped_at": dropped}


# -- for people


def say(state: State) -> None:
    say_down(state)
    for name, note in state.paused_entries.items():
        every = name == schedule.ALL
        what, way = ("all entries", "") if every else (f"the entry {name}", f" {output.quote(name)}")
        paused = f"{'are' if every else 'is'} paused{by_whom(note, state.now)}"
        output.say(f"{what} of the schedule {paused}; `qd schedule resume{way}` ends it")
    for target, note in state.fleet.pauses.items():
        output.say(f"{target} is paused{by_whom(note, state.now)}; {output.resuming(*target)} ends it")
    if state.paused_entries or state.fleet.pauses:
        output.say()
    say_masters(state)
    say_workers(state)
    say_schedulers(state)
    output.say()
    say_queues(state)
    for line in warnings(state):
        output.say(f"warn: {line}")


def say_down(state: State) -> None:
    if state.down is not None:
        output.say(f"maintenance mode{by_whom(state.down, state.now)}; `qd up` ends it")
    heard = [master for master in state.masters if not master.silent(state.now)]
    theirs = sorted({f"{master.host}: {master.laravel_down}" for master in heard if master.laravel_down})
    for what in theirs:
        output.say(f"Laravel's maintenance mode on {what}; `php artisan up` ends it")
    if state.down is not None or theirs:
        output.say()


def say_masters(state: State) -> None:
    if not state.masters:
        unknown = "masters: unknown, the cluster node with their reports is unreachable"
        return output.say("no master reports" if state.knows_masters else unknown)
    head = ("pool", "host", "pid", "up", "workers", "busy", "state", "version")
    rows = [
        (
            *(m.pool_title, m.host, m.pid, output.duration(age(m.booted_at or None, m))),  # 0: in its first report
            *(workers_of(m), sum(bool(w.job) for w in m.workers), state_of(m, state.now), m.version or "-"),
        )
        for m in state.masters
    ]
    output.table(head, rows, right=("pid", "workers", "busy"))


def workers_of(master: masters.MasterReport) -> str:
    """`12 (8 configured)` after `qd scale`, TTIN or TTOU."""
    resized = master.wanted not in (0, master.configured)
    return f"{len(master.workers)}" + (f" ({master.configured} configured)" if resized else "")


def state_of(master: masters.MasterReport, now: float) -> str:
    if stale(master, now):
        return f"silent for {output.duration(now - master.seen_at)}"
    return f"hangs for {output.duration(master.master_silent)}" if master.hangs else master.state


def say_workers(state: State) -> None:
    rows = [
        (
            *(m.pool_title, m.host, w.slot, w.pid, doing(m, w), others(w.job, w.running)),
            *((w.queue or "-") if w.job else "-", output.duration(age(w.since, m)), w.done, w.job_id or "-"),
        )
        for m in state.masters
        for w in m.workers
    ]
    if rows:
        output.say()
        head = ("pool", "host", "worker", "pid", "state", "job", "queue", "for", "done", "id")
        output.table(head, rows, right=("worker", "pid", "done"))


def others(what: str | None, count: int) -> str:
    """The job or entry that has been running longest, and how many others there are."""
    return (what or "-") + (f" and {count - 1} more" if count > 1 else "")


def doing(master: masters.MasterReport, child: masters.WorkerReport | masters.SchedulerReport) -> str:
    return "silent" if child.slot in master.silent_workers else child.state or "-"


def say_schedulers(state: State) -> None:
    rows = [
        (m.pool_title, m.host, s.pid, doing(m, s), s.entries, others(s.run, s.runs), output.duration(age(s.since, m)))
        for m in state.masters
        for s in m.schedulers
    ]
    if rows:
        output.say()
        head = ("pool", "host", "scheduler", "state", "entries", "runs", "for")
        output.table(head, rows, right=("scheduler", "entries"))


def age(since: float | None, master: masters.MasterReport) -> float | None:
    """Seconds until its report was written; what happened since then is unknown."""
    return None if since is None else max(0.0, master.seen_at - since)


def say_queues(state: State, rates: Mapping[Place, Rate] | None = None) -> None:
    """rates: shows them."""
    several = len({line.connection for line in state.queues}) > 1
    head = ["queue", "ready", "delayed", "reserved", "failed", "oldest", "workers", ""]
    head[6:6] = () if rates is None else ("in/min", "out/min", "empty in")
    rows = [
        (
            f"{line.connection}:{line.name}" if several else line.name,
            *(line.sizes.ready, line.sizes.delayed, line.sizes.reserved, line.sizes.failed),
            output.duration(line.sizes.oldest_age),
            *(() if rates is None else paces(line, rates.get((line.connection, line.name)))),
            line.workers,
            line.error or (f"paused{by_whom(line.paused, state.now)}" if line.paused else ""),
        )
        for line in state.queues
    ]
    output.table(head, rows, right=("ready", "delayed", "reserved", "failed", "in/min", "out/min", "workers"))


def paces(line: QueueLine, rate: Rate | None) -> tuple[str, str, str]:
    if rate is None:
        return "-", "-", "-"
    return pace(rate.enters), pace(rate.leaves), output.duration(rate.empty_in(line.sizes))


def pace(jobs: float) -> str:
    """Jobs per minute; few of them with a decimal, so that 2 in five minutes are not 0."""
    return f"{jobs:,.1f}" if 0.05 <= jobs < 9.95 else f"{jobs:,.0f}"


def warnings(state: State) -> Iterable[str]:
    for reason in (*nodes_away(state), *refusals(state)):
        yield reason.text
    for master in state.masters:
        if master.silent(state.now):
            value = output.duration(state.now - master.seen_at)
            yield f"the master with pid {master.pid} on {master.host} has not reported for {value}"
            continue
        if master.hangs:
            yield f"{master.title} (pid {master.pid}): {hung(master)}"
        if number := len(master.crashes):  # within the last minute, as far as a report has room for them
            crashed = f"{MOST_CRASHES} or more workers" if number >= MOST_CRASHES else output.count(number, "worker")
            yield f"{crashed} of {master.title} (pid {master.pid}) crashed within the last minute"
    for fact, way in of_refused_code(state):
        yield f"{fact}; {way}"
    for line in state.queues:
        if line.error:
            yield f"queue {line.name}: {line.error}"
        waits = (line.sizes.ready or line.overdue) and not line.paused and state.knows_masters
        if waits and not (line.workers or line.php or (line.theirs and not line.ours)):
            foreign = "" if line.ours else "; if only PHP serves it, none is needed"
            yield f"no qd worker serves {line.name}, where {waiting(line)}{foreign}"
        for value, way in of_line(line, state):
            yield f"{value}; {way}"
        if line.php:
            way = f"; move it: {output.moving(line.name, line.php)}" if line.ours else ""
            yield f"the next job of {line.name} is a PHP job, which only a PHP worker takes{way}"


def waiting(line: QueueLine) -> str:
    if not line.sizes.ready:
        what = "a delayed job was due" if line.sizes.delayed else "the lease of a job ended"
        return f"{what} {output.ago(line.overdue)}"
    return f"{output.count(line.sizes.ready, 'job')} {'waits' if line.sizes.ready == 1 else 'wait'}"


# -- for programs


def document(state: State) -> dict[str, Any]:
    restart = state.restart and {"at": state.restart.at, "rolling": state.restart.rolling}
    facts: dict[str, Any] = {"at": state.now, "down": state.down and asdict(state.down), "restart": restart}
    facts["masters"] = [master_document(master, state.now) for master in state.masters]
    facts["queues"] = [queue_document(line) for line in state.queues]
    facts["paused"] = [{kind: name, **asdict(note)} for (kind, name), note in state.fleet.pauses.items()]
    facts["schedule"] = {"paused": {name: asdict(note) for name, note in state.paused_entries.items()}}
    away = {"away": state.away, "nodes_away": state.nodes, "unknown": list(state.unknown), "refused": state.refused}
    return facts | away


def master_document(master: masters.MasterReport, now: float) -> dict[str, Any]:
    workers, schedulers = ([public(each) for each in those] for those in (master.workers, master.schedulers))
    return {**public(master), "silent": master.silent(now), "workers": workers, "schedulers": schedulers}


def public(report: Struct) -> dict[str, Any]:
    return {name: value for name, value in structs.asdict(report).items() if name not in INTERNAL}


def queue_document(line: QueueLine) -> dict[str, Any]:
    facts = fields(line, "connection", "name") | fields(line.sizes, "ready", "delayed", "reserved", "failed")
    facts |= {"oldest_age_s": line.sizes.oldest_age, "workers": line.workers}
    facts |= {"paused": line.paused and asdict(line.paused), "php": bool(line.php), "failed_bytes": line.failed.bytes}
    return facts | fields(line.failed, "dropped", "dropped_at") | {"error": line.error or None}
