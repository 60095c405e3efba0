"""The schedule: is it declared well, does anybody run it, is something overdue or paused?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from qd.cli import context
from qd.cli.checks.finding import Finding, fail, ok, warn
from qd.cli.commands_of import fault
from qd.cli.notes import by_whom
from qd.cli.output import duration
from qd.cli.reasons import living
from qd.cli.schedule.seen import Seen, by_connection, overdue, read_ticks
from qd.cli.schedule.which import sent
from qd.errors import DeclarationError
from qd.process.exits import Exit
from qd.schedule import meant_for
from qd.schedule.coming import closed, next_of
from qd.schedule.fields import shown
from qd.store import schedule

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.cli.state import State
    from qd.config import Settings
    from qd.schedule import Entry

NAMED = 5  # entries that a line names


def check(app: Qd | None, settings: Settings, state: State | None) -> Iterator[Finding]:
    """By commands that a worker's user may call too. state: None where the reports cannot be read. Raises ConnectionLost,
    ServerRefused."""
    if app is None:
        return
    try:
        entries = app.schedule.entries()
    except DeclarationError as error:
        yield fail("schedule", error, "mend the declaration; without it nothing is scheduled", Exit.CONFIG)
        return
    if entries:
        yield from judged(app, settings, entries, state)


def judged(app: Qd, settings: Settings, entries: Sequence[Entry], state: State | None) -> Iterator[Finding]:
    here = meant_for(settings.env, entries)
    seen = read(app, settings, here)
    found = [*faults(here, seen.now), *paused(seen)]
    late = {entry.name: seconds for entry in here if (seconds := overdue(entry, seen, settings))}
    if state is not None and here and not run_by(state) and (late or not seen.ticks):
        said = f"{entries_of(here)} declared, and no scheduler runs anywhere"
        way = "start `qd work` without --no-schedule, or `qd schedule work`; or let a crontab call `qd schedule run`"
        found.append(warn("schedule", said, way))
    elif late:
        said = f"overdue: {named(late)}"
        found.append(
            warn("schedule", said, "look at the log of the schedulers (`qd status` names them) at `schedule.`")
        )
    yield from found or [ok("schedule", well(entries, here, seen))]


def read(app: Qd, settings: Settings, entries: Sequence[Entry]) -> Seen:
    store = context.store(settings, settings.control)
    seen = Seen(store.now())
    seen.paused = schedule.paused(store, seen.now)
    places = {entry.name: sent(app, entry) for entry in entries}
    for name, there in by_connection(settings, entries, places).items():
        read_ticks(seen, context.store(settings, name), there)
    return seen


def faults(entries: Sequence[Entry], now: float) -> Iterator[Finding]:
    """Commands of qd that qd would refuse, and hours that no tick meets."""
    for entry in entries:
        if why := closed(entry, now):
            said = f"{entry.name} ({shown(entry.origin)}) never comes: {entry.timing.text} is always {why}"
            yield fail("schedule", said, "mend its hours, or when it is due")
        if why := fault(entry.task):
            yield fail("schedule", f"{entry.name} ({shown(entry.origin)}): {why}", "mend the entry")


def paused(seen: Seen) -> Iterator[Finding]:
    for name, note in seen.paused.items():
        every = name == schedule.ALL
        what = "all entries" if every else f"the entry {name}"
        way = "qd schedule resume" if every else f"qd schedule resume {name}"
        yield warn("schedule", f"{what} paused{by_whom(note, seen.now)}", way)


def run_by(state: State) -> bool:
    """Whether a master that is about has a scheduler."""
    return any(master.schedulers for master in living(state))


def named(late: dict[str, float]) -> str:
    """The most overdue first."""
    first = sorted(late, key=lambda name: -late[name])[:NAMED]
    more = f" and {len(late) - len(first)} more" if len(late) > len(first) else ""
    return ", ".join(f"{name} for {duration(late[name])}" for name in first) + more


def well(entries: Sequence[Entry], here: Sequence[Entry], seen: Seen) -> str:
    said = entries_of(entries)
    if len(here) < len(entries):
        said += f", {len(entries) - len(here)} for other environments"
    coming = [(at, entry.name) for entry in here if (at := next_of(entry, seen.now)) is not None]
    return said + (f"; next {min(coming)[1]} in {duration(min(coming)[0] - seen.now)}" if coming else "")


def entries_of(entries: Sequence[Entry]) -> str:
    return f"{len(entries)} {'entry' if len(entries) == 1 else 'entries'}"
