"""The fleet: maintenance mode, masters (silent, hung, other versions, old code, root), and the schedule (declaration,
schedulers, overdue or paused entries).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qd import __version__
from qd.app import Qd
from qd.cli import context
from qd.cli.checks import Finding, fail, ok, warn
from qd.cli.diagnosis import blind
from qd.cli.output import by_whom, count, duration, quote
from qd.cli.schedule.entries import EntryView, by_connection, fault, overdue, read_ticks, sent
from qd.cli.state import FRESH, State, living, refusal, stale
from qd.config.settings import Settings
from qd.drivers.keyspace import keys
from qd.errors import DeclarationError
from qd.process.exit_codes import Exit
from qd.schedule.entry import Entry, closed, meant_for, next_of
from qd.schedule.frequencies import shown
from qd.store import controls, masters, schedule
from qd.store.controls import Restart
from qd.store.masters import MasterReport

OBEYED = 60.0  # seconds a restart may take: running jobs finish first
NAMED = 5  # entries that a line names


def read(settings: Settings) -> State:
    """The state of the fleet, by commands that a worker's user may call. Raises ConnectionLost, ServerRefused."""
    store = context.store(settings, settings.control)
    reports, now = masters.masters(store), store.now()
    down, restart = (store.space.call("GET", store.prefix + key) for key in (keys.DOWN, keys.RESTART))
    note = None if down is None else controls.read_down(down)
    refused = dict[str, str]()
    if reports and not any(now - master.seen_at <= FRESH for master in reports) and (why := refusal(store)):
        refused[settings.control] = why
    return State(now, note, controls.read_restart(restart), reports, [], refused=refused, control=settings.control)


def check_masters(state: State) -> Iterator[Finding]:
    if state.down is not None:
        what = "any other queue" if state.down.allow else "any queue"
        fact = f"switched on{by_whom(state.down, state.now)}; nothing is taken from {what}"
        yield warn("maintenance mode", fact, "qd up")
    for master in state.masters:
        if master.laravel_down and not stale(master, state.now):
            fact = f"Laravel's own ({master.laravel_down}) holds all queues of {master.title}"
            yield warn("maintenance mode", fact, "php artisan up")
    for master in [] if blind(state) else state.masters:
        yield from judged(master, state.restart, state.now)
    if not state.masters:
        yield ok("masters", "none reports")
    if rooted := [f"{master.title} (pid {master.pid})" for master in state.masters if master.root]:
        way = "run them as their own user: user= for supervisord, User= for systemd, USER in a Dockerfile"
        yield warn("root", f"these masters run as root, and so do their jobs: {', '.join(rooted)}", way, topic="root")


def judged(master: MasterReport, restart: Restart | None, now: float) -> Iterator[Finding]:
    what, where = f"master {master.title}", f"pid {master.pid}"
    found = list[Finding]()
    if stale(master, now):
        way = f"check whether it runs there; if that host is gone: HDEL qd:masters {master.token}"
        yield warn(what, f"{where} has not reported for {duration(now - master.seen_at)}", way)
        return
    if master.hangs:
        way = f"kill -9 {master.pid} on {master.host}: its supervisor starts it again"
        found.append(fail(what, f"{where} has not answered for {duration(master.master_silent)}: it hangs", way))
    if master.version != __version__:
        way = "install the same version everywhere, then `qd restart`"
        found.append(warn(what, f"{where} is qd {master.version or 'of old'}, this is {__version__}", way))
    if restart is not None and 0 < master.booted_at < restart.at and now - restart.at > OBEYED:
        fact = f"{where} runs code from before the `qd restart` of {duration(now - restart.at)} ago"
        way = "a long job may delay it (`qd status`); else restart it by its supervisor"
        found.append(warn(what, fact, way))
    yield from found or [ok(what, f"{where}, {count(len(master.workers), 'worker')}, qd {master.version}")]


def check_schedule(app: Qd | None, settings: Settings, state: State | None) -> Iterator[Finding]:
    """By commands that a worker's user may call. state: None if the reports cannot be read. Raises ConnectionLost,
    ServerRefused."""
    if app is None:
        return
    try:
        entries = app.schedule.entries()
    except DeclarationError as error:
        yield fail("schedule", error, "fix the declaration; until then nothing is scheduled", Exit.CONFIG)
        return
    if entries:
        yield from check_entries(app, settings, entries, state)


def check_entries(app: Qd, settings: Settings, entries: Sequence[Entry], state: State | None) -> Iterator[Finding]:
    here = meant_for(settings.env, entries)
    store = context.store(settings, settings.control)
    seen = EntryView(store.now())
    seen.paused = schedule.paused(store, seen.now)
    for name, there in by_connection(settings, here, {entry.name: sent(app, entry) for entry in here}).items():
        read_ticks(seen, context.store(settings, name), there)
    found = list(faults(here, seen.now))
    for name, note in seen.paused.items():
        what, of = ("all entries", "") if name == schedule.ALL else (f"the entry {name}", f" {quote(name)}")
        found.append(warn("schedule", f"{what} paused{by_whom(note, seen.now)}", f"qd schedule resume{of}"))
    late = {entry.name: seconds for entry in here if (seconds := overdue(entry, seen, settings))}
    if state is not None and here and not any(m.schedulers for m in living(state)) and (late or not seen.ticks):
        fact = f"{entries_of(here)} declared, and no scheduler runs anywhere"
        way = "start `qd work` without --no-schedule, or `qd schedule work`; or let a crontab call `qd schedule run`"
        found.append(warn("schedule", fact, way))
    elif late:
        way = "see the `schedule.` lines in the logs of the schedulers (`qd status` names them)"
        names = sorted(late, key=late.__getitem__)[-NAMED:][::-1]
        longest = ", ".join(f"{name} for {duration(late[name])}" for name in names)
        more = f" and {len(late) - NAMED} more" if len(late) > NAMED else ""
        found.append(warn("schedule", f"overdue: {longest}{more}", way))
    yield from found or [ok("schedule", well(entries, here, seen.now))]


def faults(entries: Sequence[Entry], now: float) -> Iterator[Finding]:
    """qd commands that would be refused, and entries whose hours exclude all their ticks."""
    for entry in entries:
        if why := closed(entry, now):
            fact = f"{entry.name} ({shown(entry.origin)}) never comes: {entry.timing.text} is always {why}"
            yield fail("schedule", fact, "change its hours, or when it is due")
        if why := fault(entry.task):
            yield fail("schedule", f"{entry.name} ({shown(entry.origin)}): {why}", "fix the entry")


def well(entries: Sequence[Entry], here: Sequence[Entry], now: float) -> str:
    text = entries_of(entries)
    if len(here) < len(entries):
        text += f", {len(entries) - len(here)} for other environments"
    coming = [(at, entry.name) for entry in here if (at := next_of(entry, now)) is not None]
    return text + (f"; next {min(coming)[1]} in {duration(min(coming)[0] - now)}" if coming else "")


def entries_of(entries: Sequence[Entry]) -> str:
    return f"{len(entries)} {'entry' if len(entries) == 1 else 'entries'}"
