"""The entries of the schedule: what each does, what the servers know of it, and the commands that show and control it.

`qd schedule list`                       what runs when, how it last went, and what prevents it; reads only
`qd schedule pause`, `resume` and `clear-locks`     obeyed by every scheduler on every host
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import click
import msgspec

from qd.app import Qd
from qd.cli import context, output
from qd.cli.context import app, app_if_named
from qd.cli.output import by_whom
from qd.config.settings import Settings
from qd.dispatch.composite import Chain
from qd.drivers.keyspace import keys
from qd.errors import ConnectionLost
from qd.options.kinds import KINDS, did_you_mean
from qd.process.exit_codes import Exit
from qd.schedule.entry import CallTask, Entry, JobTask, QdTask, ShellTask, Task, next_of
from qd.schedule.timing import zone_of
from qd.store import controls, schedule
from qd.store.base import Store

MS = 0.001
LOOK = 100_000  # names of a server that are scanned
LIST = "`qd schedule list` shows them"
WIDE = 60  # characters of what an entry does, in a table
ZONE = context.Parsed(KINDS["zone"])


def fault(task: Task) -> str:
    """Why qd would refuse the command of an entry, or "". Parses the command and runs nothing; shell lines, and commands
    that begin with an option, are not checked."""
    if not isinstance(task, QdTask):
        return ""
    from qd.cli.main import command

    found: click.Command = command
    context, rest = click.Context(command, info_name="qd"), list(task.words)
    try:
        while isinstance(found, click.Group):
            if not rest or rest[0].startswith("-"):
                return ""
            name, inner, rest = found.resolve_command(context, rest)
            assert inner is not None  # else it has raised
            found, context = inner, click.Context(inner, parent=context, info_name=name)
        found.parse_args(context, rest)
    except click.UsageError as error:
        return f"{shlex.join(['qd', *task.words])}: {' '.join(error.format_message().split())}"
    except click.exceptions.Exit:  # --help
        pass
    return ""


class Sent(NamedTuple):
    """Where the job of an entry is sent. lock: the unique lock against overlaps, or ""."""

    connection: str
    lock: str


def off(entry: Entry, found: Settings) -> str:
    """Why it is not meant for this environment; "" if it is."""
    here = f"QD_ENV is {found.env}" if found.env else "QD_ENV is not set"
    return "" if entry.runs_in(found.env) else f"off here: only {', '.join(entry.environments)}, {here}"


def named(entries: Sequence[Entry], names: Sequence[str]) -> list[Entry]:
    """The entries with these names, all if none is given. Raises Refused for an unknown name."""
    known = {entry.name: entry for entry in entries}
    for name in names:
        if name not in known:
            near = did_you_mean(name, known)
            there = ", ".join(known) if len(known) <= 20 else f"{len(known)} entries, {LIST}"
            declared = f" (known: {there})" if there else ": no entry is declared"
            raise context.Refused(output.clean(f"unknown entry '{name}'{near}{declared}"))
    return [known[name] for name in dict.fromkeys(names)] if names else list(entries)


def what(entry: Entry) -> str:
    """What it does: `mail.report {"month":7}`, `shop.tidy`, `tar -czf ...`, `qd failed forget --older-than 30d`."""
    task = entry.task
    if isinstance(task, JobTask):
        if isinstance(task.call, Chain):
            return repr(task.call).strip("<>")
        _, plan, data = task.call._to_send()
        nothing = data in (b"", b"{}", b"[]", b"null")
        text = "<encrypted>" if plan.options.encrypted else data.decode("utf-8", "replace")
        return plan.declared.name + ("" if nothing else f" {text}")
    if isinstance(task, CallTask):
        function = task.function
        return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(function))}"
    return task.line if isinstance(task, ShellTask) else shlex.join(("qd", *task.words))


def sent(app: Qd, entry: Entry) -> Sent | None:
    """None if it sends no job. Raises ConfigError if its connection is not configured."""
    from qd.scheduler.entry_job import Guard, UserCodeFailed, job_of  # the command line starts without them

    job = job_of(app, entry, Guard())
    if job is None:
        return None
    connection, _ = job.home()
    try:
        relations = job.message().relations if entry.alone else None
    except UserCodeFailed:
        relations = None  # the scheduler reports it at the tick
    return Sent(connection, (relations and relations.unique) or "")


def lock_keys(store: Store, entry: Entry, sent: Sent | None) -> list[str]:
    """The keys of its overlap lock, if it has one; for an on_every_host() entry those that exist."""
    if sent is not None:
        return [keys.unique(sent.lock)] if sent.lock else []
    if not entry.alone or not entry.every_host:
        return [keys.overlap(entry.name)] if entry.alone else []
    start = keys.overlap("")
    found = store.names(start, LOOK)
    return [key for key in found if keys.entry_of_host(key.removeprefix(start)) == entry.name]


def where(found: Settings, sent: Sent | None) -> str:
    """The connection that has its ticks and its lock."""
    return found.control if sent is None else sent.connection


def moment(at: float, zone: str) -> str:
    """`2026-11-22 07:00`, with seconds if there are any."""
    found = datetime.fromtimestamp(at, zone_of(zone))
    if found.microsecond:
        return f"{found:%Y-%m-%d %H:%M:%S.%f}"[:-3]
    return f"{found:%Y-%m-%d %H:%M:%S}".removesuffix(":00")


@dataclass(frozen=True)
class Overlap:
    """The holder of an entry's overlap lock: a process on a host, or a job that waits or runs."""

    host: str = ""
    pid: int | None = None
    at: float | None = None
    job: str = ""


@dataclass
class EntryView:
    """now: unix seconds by the server's clock, or this host's if it is unreachable. away: connection -> why it is
    unreachable. ticks: entry -> the last decided tick."""

    now: float
    paused: dict[str, controls.Pause] = field(default_factory=dict)
    down: controls.Down | None = None
    last: dict[str, schedule.Last] = field(default_factory=dict)
    skipped: dict[str, schedule.Last] = field(default_factory=dict)
    ticks: dict[str, float] = field(default_factory=dict)
    locks: dict[str, list[Overlap]] = field(default_factory=dict)
    away: dict[str, str] = field(default_factory=dict)


def read_entries(app: Qd, found: Settings, entries: Sequence[Entry]) -> EntryView:
    """Does not raise for an unreachable server."""
    seen = EntryView(time.time())
    places = {entry.name: sent(app, entry) for entry in entries}
    for name, there in by_connection(found, entries, places).items():
        try:
            store = context.store(found, name)
            if name == found.control:
                seen.now = store.now()
                seen.paused, seen.down = schedule.paused(store, seen.now), controls.is_down(store)
                seen.last, seen.skipped = schedule.last(store), schedule.skipped(store)
            read_ticks(seen, store, there)
            names = [(entry.name, key) for entry in there for key in lock_keys(store, entry, places[entry.name])]
            for (entry_name, _), raw in zip(names, store.get(*(key for _, key in names)), strict=True):
                if raw is not None:
                    lock = read_overlap(raw, job=places[entry_name] is not None)
                    seen.locks.setdefault(entry_name, []).append(lock)
        except ConnectionLost as error:
            seen.away[name] = str(error)
    return seen


def by_connection(found: Settings, entries: Sequence[Entry], places: dict[str, Sent | None]) -> dict[str, list[Entry]]:
    """The entries by the connection that has their ticks; the control connection first, even without entries."""
    there: dict[str, list[Entry]] = {found.control: []}
    for entry in entries:
        there.setdefault(where(found, places[entry.name]), []).append(entry)
    return there


def read_ticks(seen: EntryView, store: Store, entries: Sequence[Entry]) -> None:
    """Of an on_every_host() entry the newest tick that any host has decided."""
    ticks = schedule.ticked(store) if entries else {}
    for entry in entries:
        of_hosts = (at for name, at in ticks.items() if keys.entry_of_host(name) == entry.name)
        at = max(of_hosts, default=None) if entry.every_host else ticks.get(entry.name)
        if at is not None:
            seen.ticks[entry.name] = at


def read_overlap(raw: bytes, *, job: bool) -> Overlap:
    """A lock in another format has an unknown holder."""
    if job:
        return Overlap(job=raw.decode("utf-8", "replace"))
    try:
        return msgspec.json.decode(raw, type=Overlap)
    except (ValueError, RecursionError):
        return Overlap()


def overdue(entry: Entry, seen: EntryView, found: Settings) -> float:
    """Seconds since a tick that should have been decided and was not, or 0."""
    at = seen.ticks.get(entry.name)
    if at is None or off(entry, found) or (due := entry.timing.next_after(at)) is None:
        return 0.0
    waits = seen.now - due
    return waits if waits > found.schedule.late else 0.0


def unended(entry: Entry, seen: EntryView) -> float | None:
    """The last tick (unix seconds) of a function or command whose end is unknown: it runs, or died with its scheduler. None
    for jobs, which workers run, and for on_every_host() entries, where only the newest end is kept."""
    at = seen.ticks.get(entry.name)
    if at is None or isinstance(entry.task, JobTask) or entry.every_host or seen.away:
        return None
    known = [one.tick for one in (seen.last.get(entry.name), seen.skipped.get(entry.name)) if one is not None]
    due = entry.timing.next_after(at - MS)
    is_tick = due is not None and abs(due - at) < MS / 2  # a new entry has the time when it was first seen
    return at if is_tick and all(tick < at - MS / 2 for tick in known) else None


# -- qd schedule list


@click.command("list")
@click.option("--timezone", type=ZONE, metavar="ZONE", help="Show times in this zone.  [each entry's own]")
@context.options
def list_(timezone: str | None) -> int:
    """List entries: next and last run, and what holds them back.

    If a server is unreachable, it shows what the app declares: exit 69.
    """
    context.given().only_looks = True
    own = app()
    entries, found = own.schedule.entries(), own.settings
    seen = read_entries(own, found, entries)
    if context.given().json:
        output.document(document(entries, seen, found, timezone))
    else:
        for line in above(seen):
            output.say(line)
        head = ("name", "what", "when", "zone", "next", "last", "")
        if entries:
            output.table(head, [row(entry, seen, found, timezone) for entry in entries])
        else:
            output.note("nothing is scheduled: declare an entry with app.schedule(...) or [schedule.entries.NAME]")
    for name, why in seen.away.items():
        output.note(f"qd: the state on connection {name} is unknown: {why}")
    return Exit.UNAVAILABLE if seen.away else Exit.OK


# -- for people


def above(seen: EntryView) -> Iterator[str]:
    if seen.down is not None:
        yield f"maintenance mode{by_whom(seen.down, seen.now)}; `qd up` ends it"
    if (note := seen.paused.get(schedule.ALL)) is not None:
        yield f"all entries are paused{by_whom(note, seen.now)}; `qd schedule resume` ends it"


def row(entry: Entry, seen: EntryView, found: Settings, zone: str | None) -> tuple[str, ...]:
    shown = what(entry)
    shown = shown if len(shown) <= WIDE else shown[: WIDE - 1] + "…"
    notes = "; ".join(remarks(entry, seen, found))
    zone = zone or entry.timing.zone
    return entry.name, shown, entry.timing.text, zone, coming(entry, seen, found, zone), went(entry, seen), notes


def coming(entry: Entry, seen: EntryView, found: Settings, zone: str) -> str:
    if off(entry, found):
        return "-"
    at = next_of(entry, seen.now)
    return "not within a year" if at is None else f"{moment(at, zone)} (in {output.duration(at - seen.now)})"


def went(entry: Entry, seen: EntryView) -> str:
    """`done 3m ago on app-1, took 2.0s`."""
    one = seen.last.get(entry.name)
    if one is None:
        return "-"
    parts = [f"{one.outcome} {output.ago(max(0.0, seen.now - one.ended))}{f' on {one.host}' if one.host else ''}"]
    parts += [f"took {output.duration(one.ended - one.began)}"] if one.outcome != "sent" else []
    parts += [f"{output.duration(one.late)} late"] if one.late >= 1 else []
    return ", ".join(parts) + (f": {one.detail}" if one.outcome == "failed" and one.detail else "")


def remarks(entry: Entry, seen: EntryView, found: Settings) -> Iterator[str]:
    if why := off(entry, found):
        yield why
    if (note := seen.paused.get(entry.name)) is not None:
        yield f"paused{by_whom(note, seen.now)}"
    yield from (held(lock, seen.now) for lock in seen.locks.get(entry.name, ()))
    if (began := unended(entry, seen)) is not None and entry.name not in seen.locks:
        yield f"started {output.ago(max(0.0, seen.now - began))}, end unknown: it runs, or died with its scheduler"
    if late := overdue(entry, seen, found):
        yield f"overdue for {output.duration(late)}"
    skip, last = seen.skipped.get(entry.name), seen.last.get(entry.name)
    if skip is not None and (last is None or skip.tick > last.tick):
        yield f"skipped {output.ago(max(0.0, seen.now - skip.ended))}: {skip.detail}"
    if entry.missed != "skip":
        yield f"missed: {entry.missed}"
    if entry.every_host:
        yield "on every host"


def held(lock: Overlap, now: float) -> str:
    if lock.job:
        return f"job {lock.job} waits or runs"
    who = f" on {lock.host}" if lock.host else ""
    who += f" (pid {lock.pid})" if lock.pid is not None else ""
    return f"runs{who}" + (f" for {output.duration(max(0.0, now - lock.at))}" if lock.at is not None else "")


# -- for programs


def document(entries: tuple[Entry, ...], seen: EntryView, found: Settings, zone: str | None) -> dict[str, Any]:
    every, down = seen.paused.get(schedule.ALL), seen.down and asdict(seen.down)
    facts = {"at": seen.now, "reached": not seen.away, "environment": found.env, "down": down}
    rows = [described(entry, seen, found, zone or entry.timing.zone) for entry in entries]
    return {**facts, "paused": every and asdict(every), "entries": rows}


def described(entry: Entry, seen: EntryView, found: Settings, zone: str) -> dict[str, Any]:
    at = next_of(entry, seen.now)
    note = seen.paused.get(entry.name)
    local = None if at is None else datetime.fromtimestamp(at, zone_of(zone)).isoformat()
    facts = output.fields(entry, "name", "kind") | {"what": what(entry), "expression": entry.timing.text}
    facts |= {"timezone": zone, "next_at": at, "next": local}
    for key, runs in (("last", seen.last), ("skipped", seen.skipped)):
        facts[key] = run_document(runs[entry.name]) if entry.name in runs else None
    facts |= {"unended_at": unended(entry, seen), "overdue_s": overdue(entry, seen, found)}
    facts |= {"locks": [asdict(lock) for lock in seen.locks.get(entry.name, ())], "paused": note and asdict(note)}
    facts |= {"off": bool(off(entry, found)), "environments": list(entry.environments), "missed": entry.missed}
    facts |= {"without_overlapping": entry.alone, "on_every_host": entry.every_host, "in_background": entry.background}
    facts |= {"in_maintenance": entry.in_maintenance, "filters": [each.why for each in entry.filters]}
    return facts | {"declared_at": f"{entry.origin[0]}:{entry.origin[1]}"}


def run_document(last: schedule.Last) -> dict[str, Any]:
    facts = {"tick_at": last.tick, "began_at": last.began, "ended_at": last.ended, "outcome": last.outcome}
    return {**facts, "late_s": round(last.late, 3), "host": last.host, "detail": last.detail}


# -- qd schedule pause, resume, clear-locks


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option("--for", "seconds", type=context.SPAN, metavar="TIME", help="Resume automatically after this long.")
@click.option("--reason", default="", metavar="TEXT", help="Reason, shown by `qd schedule list`.")
@context.options
def pause(names: tuple[str, ...], seconds: float | None, reason: str) -> None:
    """Skip the ticks of these entries, on every host.

    Without NAME: of all entries, also those declared later.

    Runs continue. Skipped ticks are gone: a resumed entry runs at its next one.
    """
    if seconds == 0:
        raise click.UsageError("--for 0 would end at once; leave it out to pause until `qd schedule resume`")
    found = checked(names)
    store = context.store(found, found.control)
    note = schedule.pause(store, names or [schedule.ALL], by=context.operator(), reason=reason, seconds=seconds)
    context.record(found, "schedule pause", *[{"entry": name} for name in names or (schedule.ALL,)], reason=reason)
    if context.given().json:
        return output.document({"paused": [{"entry": name, **asdict(note)} for name in names or (schedule.ALL,)]})
    for name in names or ("",):
        ends = f"`qd schedule resume{name and f' {output.quote(name)}'}`"
        until = f"until {ends}" if seconds is None else f"for {output.duration(seconds)}"
        output.say(f"{name or 'all entries'}: paused {until}")


def checked(names: Sequence[str]) -> Settings:
    """The configuration. Raises Refused for a name that the app does not declare, if there is an app."""
    if not names:
        return context.settings()
    found = context.loaded()
    own = app_if_named(found)
    if own is None:
        output.note("qd: no app is named, so it is unknown whether such entries exist")
        return found
    named(own.schedule.entries(), names)
    return own.settings


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME...]")
@context.options
def resume(names: tuple[str, ...]) -> None:
    """Let entries run again, from their next tick.

    Without NAME: all that are paused.
    """
    found = context.settings()
    store = context.store(found, found.control)
    there = {schedule.ALL, *schedule.paused(store)}
    checked([name for name in names if name not in there])  # a paused entry may no longer be declared
    were = schedule.resume(store, names or list(schedule.paused(store)))
    context.record(found, "schedule resume", *[{"entry": name} for name in were])
    every = bool(names) and schedule.ALL in schedule.paused(store)
    if context.given().json:
        listed = [{"entry": name, "was_paused": name in were} for name in names or were]
        return output.document({"resumed": listed, "all_paused": every})
    for name in names or were:
        result = "resumed" if name in were else "was not paused"
        output.say(f"{'all entries' if name == schedule.ALL else name}: {result}")
    if not names and not were:
        output.say("nothing was paused")
    if every:
        output.note("all entries are still paused: `qd schedule resume` without a name resumes them")


@click.command("clear-locks")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@context.options
def clear_locks(names: tuple[str, ...]) -> None:
    """Free the locks of entries without overlapping.

    Without NAME: of all entries, regardless of the holder.

    A running entry continues, and may then run twice at once. Locks also end automatically: with the run or the job, and
    within `lease` of [schedule] after the host has died.
    """
    own = app()
    found, entries = own.settings, named(own.schedule.entries(), names)
    freed = [(entry.name, lock) for entry in entries for lock in free(own, entry)]
    if context.given().json:
        return output.document({"freed": [{"entry": name, **asdict(lock)} for name, lock in freed]})
    now = context.store(found, found.control).now()
    for name, lock in freed:
        output.say(f"{name}: freed; {held(lock, now)}")
    if not freed:
        output.say("no lock was taken")


def free(own: Qd, entry: Entry) -> Iterator[Overlap]:
    """Free its locks. Yields their holders."""
    place = sent(own, entry)
    store = context.store(own.settings, where(own.settings, place))
    for key in lock_keys(store, entry, place):
        if (raw := store.take(key)) is not None:
            yield read_overlap(raw, job=place is not None)
