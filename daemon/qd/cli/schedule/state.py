"""Entries of the app by name, what each does, and what the servers know of them: for `qd schedule`, `qd config check` and
`qd doctor`.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import click
import msgspec

from qd.app import Qd
from qd.cli import context, output
from qd.config.settings import Settings
from qd.dispatch.composite import Chain
from qd.drivers.keyspace import keys
from qd.errors import ConnectionLost
from qd.options.kinds import did_you_mean
from qd.schedule.entry import CallTask, Entry, JobTask, QdTask, ShellTask, Task
from qd.schedule.timing import zone_of
from qd.store import controls, schedule
from qd.store.base import Store


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


MS = 0.001
LOOK = 100_000  # names of a server that are scanned
LIST = "`qd schedule list` shows them"


class Sent(NamedTuple):
    """Where the job of an entry is sent. lock: the unique lock against overlaps, or ""."""

    connection: str
    queue: str
    lock: str


def off(entry: Entry, found: Settings) -> bool:
    """Whether it is not meant for this environment."""
    return not entry.runs_in(found.env)


def why_off(entry: Entry, found: Settings) -> str:
    here = f"QD_ENV is {found.env}" if found.env else "QD_ENV is not set"
    return f"off here: only {', '.join(entry.environments)}, {here}"


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
        return plan.declared.name + ("" if nothing else f" {data.decode('utf-8', 'replace')}")
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
    connection, queue = job.home()
    try:
        relations = job.message().relations if entry.alone else None
    except UserCodeFailed:
        relations = None  # the scheduler reports it at the tick
    return Sent(connection, queue, (relations and relations.unique) or "")


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
