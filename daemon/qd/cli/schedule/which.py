"""The entries of the app, those that a command means by name, and what each does in words."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from qd.bus.chain import Chain
from qd.cli import context, output
from qd.connectors.keyspace import keys
from qd.schedule import CallTask, Entry, JobTask, ShellTask
from qd.schedule.zones import zone_of
from qd.units import did_you_mean

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.config import Settings
    from qd.store.base import Store

LOOK = 100_000  # names of a server that are looked through
LIST = "`qd schedule list` shows them"


class Sent(NamedTuple):
    """Where the job of an entry goes. lock: of its overlap, "" where it has none."""

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
    """The entries of these names, all of them where none is given. Refuses one that is not there."""
    known = {entry.name: entry for entry in entries}
    for name in names:
        if name not in known:
            near = did_you_mean(name, known)
            there = ", ".join(known) if len(known) <= 20 else f"{len(known)} entries, {LIST}"
            raise context.Refused(
                output.clean(f"no entry of the schedule is called '{name}'{near} (known: {there or '-'})")
            )
    return [known[name] for name in dict.fromkeys(names)] if names else list(entries)


def what(entry: Entry) -> str:
    """What it does: `mail.report {"month":7}`, `shop.tidy`, `tar -czf ...`, `qd failed forget --older-than 30d`."""
    task = entry.task
    if isinstance(task, JobTask):
        if isinstance(task.call, Chain):
            return repr(task.call).strip("<>")
        _, plan, data = task.call._to_send()
        said = "" if data in (b"", b"{}", b"[]", b"null") else " " + data.decode("utf-8", "replace")
        return plan.declared.name + said
    if isinstance(task, CallTask):
        function = task.function
        return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(function))}"
    return task.line if isinstance(task, ShellTask) else shlex.join(("qd", *task.words))


def sent(app: Qd, entry: Entry) -> Sent | None:
    """None: it sends no job. Raises ConfigError: its connection is not configured."""
    from qd.scheduler.guard import Broke, Guard  # the command line starts without them
    from qd.scheduler.jobs import job_of

    job = job_of(app, entry, Guard())
    if job is None:
        return None
    connection, queue = job.home()
    try:
        ties = job.parcel().ties if entry.alone else None
    except Broke:
        ties = None  # the scheduler says so at its tick
    return Sent(connection, queue, (ties and ties.unique) or "")


def lock_keys(store: Store, entry: Entry, sent: Sent | None) -> list[str]:
    """The keys under which its overlap is locked, none where it may overlap; of one on every host those that are there."""
    if sent is not None:
        return [keys.unique(sent.lock)] if sent.lock else []
    if not entry.alone or not entry.every_host:
        return [keys.overlap(entry.name)] if entry.alone else []
    start = keys.overlap("")
    found = store.names(start, LOOK)
    return [key for key in found if keys.entry_of_host(key.removeprefix(start)) == entry.name]


def where(found: Settings, sent: Sent | None) -> str:
    """The connection on which its ticks are claimed and its lock is kept."""
    return found.control if sent is None else sent.connection


def moment(at: float, zone: str) -> str:
    """`2026-11-22 07:00`, with seconds where there are some."""
    found = datetime.fromtimestamp(at, zone_of(zone))
    return (
        f"{found:%Y-%m-%d %H:%M:%S}".removesuffix(":00")
        if not found.microsecond
        else f"{found:%Y-%m-%d %H:%M:%S.%f}"[:-3]
    )
