"""The fleet: maintenance mode, masters (silent, hung, other versions, old code, root), and the schedule (declaration,
schedulers, overdue or paused entries).

Its queues: what is in them (unknown job names, refused signatures, jobs for PHP, jobs of dead masters), and whether each
flows (paused, unserved, stuck, as `qd health` decides; how many jobs have failed).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from qd import __version__
from qd.app import Qd
from qd.cli import context
from qd.cli.checks import Finding, fail, ok, warn
from qd.cli.checks.project import Project
from qd.cli.diagnosis import blind, of_failed, of_queue, refused_code, way_back
from qd.cli.output import by_whom, count, duration, moving, quote
from qd.cli.schedule.entries import EntryView, by_connection, fault, overdue, read_ticks, sent
from qd.cli.state import (
    FRESH,
    QueueLine,
    State,
    display_of,
    full,
    is_object_job,
    jobs_of,
    known_queues,
    overdue_of,
    refusal,
    stale,
)
from qd.config.settings import Settings
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import strange_queue
from qd.errors import DeclarationError, Malformed, ServerRefused, SignatureRefused
from qd.jobs.versions import NEWER
from qd.log import cut
from qd.options.kinds import did_you_mean
from qd.payload.format import OF_PHP, Payload, readable
from qd.payload.format import read as read_payload
from qd.payload.signing import Signing
from qd.process import proc
from qd.process.exit_codes import Exit
from qd.schedule.builder import shown
from qd.schedule.entry import Entry, closed, meant_for, next_of
from qd.store import controls, masters, schedule
from qd.store.base import KeyspaceStore
from qd.store.failed import FailedStore
from qd.store.masters import MasterReport
from qd.worker.outcome import misfit

OBEYED = 60.0  # seconds a restart may take: running jobs finish first
NAMED = 5  # entries that a line names
HEAD = 50  # ready, and delayed, jobs of each queue that are read
WAITS = ("unserved", "stuck")  # those of health's reasons that are reported here


def read(settings: Settings) -> State:
    """The state of the fleet, by commands that a worker's user may call. Raises ConnectionLost, ServerRefused."""
    store = context.store(settings, settings.control)
    reports, now = masters.masters(store), store.now()
    down, restart = (store.space.call("GET", store.prefix + key) for key in (keys.DOWN, keys.RESTART))
    note = None if down is None else controls.read_down(down)
    refused = dict[str, str]()
    if reports and not any(now - master.seen_at <= FRESH for master in reports) and (why := refusal(store)):
        refused[settings.control] = why
    last, none = controls.read_restart(restart), list[QueueLine]()
    state = State(now, note, last, reports, none, refused=refused, control=settings.control, prefix=store.prefix)
    return replace(state, in_database=hasattr(store.space, "connection"))


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
        yield from judged(master, state)
    if not state.masters:
        yield ok("masters", "none reports")
    if rooted := [f"{master.title} (pid {master.pid})" for master in state.masters if master.root]:
        way = "run them as their own user: user= for supervisord, User= for systemd, USER in a Dockerfile"
        yield warn("root", f"these masters run as root, and so do their jobs: {', '.join(rooted)}", way, topic="root")


def judged(master: MasterReport, state: State) -> Iterator[Finding]:
    what, where = f"master {master.title}", f"pid {master.pid}"
    found, now, restart = list[Finding](), state.now, state.restart
    if stale(master, now):
        yield warn(what, f"{where} has not reported for {duration(now - master.seen_at)}", way_back(master, state))
        return
    if master.hangs:
        way = f"kill -9 {master.pid} on {master.host}: its supervisor starts it again"
        found.append(fail(what, f"{where} has not answered for {duration(master.master_silent)}: it hangs", way))
    if master.version != __version__:
        way = "install the same version everywhere, then `qd restart`"
        found.append(warn(what, f"{where} is qd {master.version or 'of old'}, this is {__version__}", way))
    if master.refused:
        fact, way = refused_code(master, now)
        found.append(warn(what, f"{where} {fact}", way))
    elif restart is not None and 0 < master.booted_at < restart.at and now - restart.at > OBEYED:
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
    if state is not None and here and not any(m.schedulers for m in state.living) and (late or not seen.ticks):
        fact = f"{count(len(here), 'entry')} declared, and no scheduler runs anywhere"
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
    text = count(len(entries), "entry")
    if len(here) < len(entries):
        text += f", {len(entries) - len(here)} for other environments"
    coming = [(at, entry.name) for entry in here if (at := next_of(entry, now)) is not None]
    return text + (f"; next {min(coming)[1]} in {duration(min(coming)[0] - now)}" if coming else "")


# -- queues


@dataclass(frozen=True)
class Sample:
    """Payloads: the first ready ones, the delayed ones that are due first, some reserved ones."""

    ready: list[bytes]
    delayed: list[bytes]
    held: list[bytes]

    def __len__(self) -> int:
        return len(self.ready) + len(self.delayed)


def check_waiting(
    store: KeyspaceStore,
    queues: Sequence[str],
    app: Qd | None,
    reports: list[MasterReport],
    signing: Signing | None,
    place: str = "it",
) -> Iterator[Finding]:
    """signing: None if no keys are configured. place: what is read, of a queue whose jobs are kept elsewhere."""
    for queue in queues:
        if wrong := strange_queue(store.space, store.prefix, queue):
            yield mistyped(f"queue {queue}", wrong)
            continue
        try:
            sample = sample_of(store, queue)
        except ServerRefused as error:
            yield warn(f"queue {queue}", f"cannot be read: {error}", "fix what the server reports")
            continue
        found = list(contents(queue, sample, signing, app))
        found += of_dead_masters(store, queue, reports)
        parts = [f"{count(len(sample.ready), 'job')} at its head"] if sample.ready else []
        parts += [count(len(sample.delayed), "delayed job")] if sample.delayed else []
        checked = f"{' and '.join(parts)} checked" if parts else f"nothing waits in {place}"
        yield from found or [ok(f"queue {queue}", checked)]


def mistyped(what: str, wrong: str) -> Finding:
    """wrong: of keyspace.base.strange."""
    value, _, way = wrong.partition("; ")
    return fail(what, value, way)


def sample_of(store: KeyspaceStore, queue: str) -> Sample:
    """Uses only commands that a worker's user may call."""
    ready, reserved, delayed = (store.prefix + kind(queue) for kind in (keys.ready, keys.reserved, keys.delayed))
    ranges = [("ZRANGE", delayed, 0, HEAD - 1), ("ZRANGE", reserved, 0, HEAD - 1)]
    *head, later, held = store.space.call_many([*(("LINDEX", ready, at) for at in range(HEAD)), *ranges])
    for reply in (*head, later, held):
        if isinstance(reply, Exception):
            raise reply
    return Sample([raw for raw in head if raw is not None], later, held)


def contents(queue: str, sample: Sample, signing: Signing | None, app: Qd | None) -> Iterator[Finding]:
    what, of = f"queue {queue}", f"of the {len(sample)} checked"
    names = dict[tuple[str, int], tuple[str, str]]()  # job, version -> place, name for people
    malformed, refused = 0, Counter[str]()  # why -> number
    unfit = dict[str, str]()  # why its parameters do not fit -> place
    waiting = [("at its head", raw) for raw in sample.ready]
    waiting += [("among its delayed jobs", raw) for raw in sample.delayed]
    for place, raw in waiting:
        if is_object_job(raw):
            continue
        try:
            payload = read_payload(raw)
            if payload.is_laravel_object:
                continue
            if signing is not None:
                signing.check(payload)
            declared = app._registry.get(payload.job) if app is not None else None
            if declared is not None and (why := misfit(declared, payload)):
                unfit.setdefault(why, place)
            names.setdefault((payload.job, payload.job_version), (place, payload.display))
        except Malformed:
            malformed += 1
        except SignatureRefused as error:
            refused[str(error)] += 1
    if malformed:
        fact = f"{malformed} {of} {'is not a valid payload' if malformed == 1 else 'are not valid payloads'}"
        yield warn(what, fact, "they go to the failed store unchanged")
    if refused:
        why = ", ".join(f"{reason} ({number})" for reason, number in refused.most_common())
        way = "let their producer sign with one of the keys below [signing], or add its key there"
        yield warn(what, f"{refused.total()} {of} will be refused and never run: {why}", way)
    for (name, version), (place, display) in names.items():
        declared = app._registry.get(name) if app is not None else None
        if declared is not None and version > declared.version:
            fact = f"'{cut(name)}' {place} has version {version}, and this app declares version {declared.version}"
            yield fail(what, f"{fact}: it fails after {NEWER} times unroutable_ttl", "deploy the newer code")
        elif app is not None and declared is None:
            near = did_you_mean(name, app._registry.names())
            fact = f"'{cut(name)}' {place} is not a job of this app{near}: it fails after unroutable_ttl"
            way = "deploy the code that declares it, or name its module in imports = of [qd]"
            of_php = f"{OF_PHP}: {moving(queue, display)}, or cancel it"
            yield fail(what, fact, way if "\\" not in name else f"{way}; or {of_php}" if near else of_php)
    for why, place in unfit.items():
        fact = f"{why} (a job {place}): it fails after unroutable_ttl"
        yield fail(what, fact, "deploy the code that has this parameter, or correct the program that sends the job")
    yield from php(queue, sample)


def php(queue: str, sample: Sample) -> Iterator[Finding]:
    what, each = f"queue {queue}", "give each language its own queue"
    objects = list(filter(is_object_job, sample.ready))
    if any(b'"rsv":"' not in member for member in sample.held):  # reserved by a PHP worker
        value = "a PHP worker works on it too: it fails and deletes string jobs that it does not know"
        yield warn(what, value, each)
    elif objects:
        are = "is an object job" if len(objects) == 1 else "are object jobs"
        value = f"{len(objects)} of the first {len(sample.ready)} {are} of Laravel, which only a PHP worker takes"
        yield warn(what, value, f"{each}; to move these: {moving(queue, display_of(objects[0]))}")
    elif back := [payload for raw in sample.delayed if (payload := held_object(raw)) is not None]:
        number = f"{count(len(back), 'object job')} of Laravel {'was' if len(back) == 1 else 'were'} put back"
        fact = f"{number}: qd never runs or fails such a job, only a PHP worker takes it"
        way = f"{each}; to move these: {moving(queue, back[0].display)}"
        yield warn(what, fact, way)


def held_object(raw: bytes) -> Payload | None:
    """An object job that a worker of qd has put back. PHP's own delayed ones are no problem."""
    payload = readable(raw) if b'"held":' in raw else None
    return payload if payload is not None and payload.is_laravel_object and payload.held else None


def of_dead_masters(store: KeyspaceStore, queue: str, reports: list[MasterReport]) -> list[Finding]:
    (owners,) = store.space.call_many([("HKEYS", store.prefix + keys.owners(queue))])
    names = [name.decode("utf-8", "replace") for name in owners] if isinstance(owners, list) else []
    tokens = [name.partition("/")[0] for name in names if not name.endswith(keys.FENCE)]
    alive = {master.token for master in reports if not is_dead(master)}
    if not (gone := sum(token not in alive for token in tokens)):
        return []
    way = "start `qd work` on their host, which requeues them at once; else they return when their leases end"
    return [warn(f"queue {queue}", f"{count(gone, 'job')} reserved by masters that are gone", way)]


def is_dead(master: MasterReport) -> bool:
    """Whether its process was on this host and in this container, and no longer exists."""
    here = bool(master.boot) and (master.boot, master.ns) == (proc.boot_id(), proc.pid_namespace())
    return here and proc.alive(master.pid, master.start) is False


def unworked(connection: str, project: Project, reports: list[MasterReport]) -> Iterator[Finding]:
    """Jobs sent to a queue of this connection that no pool of the file and no master works on."""
    if project.app is None:
        return
    worked = {(found.work.connection, queue) for found in project.pools.values() for queue in found.work.queues}
    worked |= {(master.connection, queue) for master in reports for queue in master.queues}
    for declared in project.app._registry:
        place = project.app.settings.connections.get(declared.options.connection or project.app.settings.default)
        queue = declared.options.queue or (place.queue if place else "")
        if place is not None and place.name == connection and (connection, queue) not in worked:
            way = f'name it in [worker] or in a pool: queues = [..., "{queue}"], or start `qd work {quote(queue)}`'
            yield warn(
                f"job {declared.name}", f"goes to the queue '{queue}' of {connection}, which no worker here serves", way
            )


def check_flow(settings: Settings, place: str, worked: Sequence[str], state: State | None) -> Iterator[Finding]:
    """place: name of the connection. worked: the queues that workers serve; others may have jobs, for example because of a
    wrong name. state: None if reports cannot be read, so that workers are unknown."""
    store, others = context.store(settings, place), list[str]()
    with suppress(ServerRefused):  # this user may not search for keys
        others = [name for name in known_queues(settings, place, ()) if name not in worked] if state is not None else []
    for name in (*worked, *others):
        now = store.now()
        try:
            line = line_of(store, settings, place, name, now, ours=name in worked)
        except ServerRefused:
            continue  # check_waiting has reported it
        if line.paused is not None:
            value = f"paused{by_whom(line.paused, now)}; {count(line.sizes.ready, 'job')} ready"
            yield warn(f"work on {name}", value, f"qd resume {quote(name)}")
        for reason in of_queue(line, state) if state is not None else ():
            if reason.kind in WAITS:
                value, _, way = reason.text.removeprefix(f"queue '{name}': ").partition("; ")
                yield warn(f"work on {name}", value, way)
        dropped = [warn(f"failed {name}", value, way) for value, way in of_failed(line, now)]
        if line.sizes.failed and not dropped:
            kept = count(line.sizes.failed, "failed job")
            yield ok(f"failed {name}", f"{kept} kept; qd failed list -q {quote(name)}")
        yield from dropped


def line_of(store: KeyspaceStore, settings: Settings, place: str, name: str, now: float, *, ours: bool) -> QueueLine:
    """Uses only commands that a worker's user may call."""
    sizes = context.queue(settings, place).sizes(name)
    raw = store.space.call("GET", store.prefix + keys.paused(name))
    paused = None if raw is None else controls.read_pause(raw)
    (fill,) = FailedStore(store).fills([name])
    overdue = overdue_of(store, name, now)
    jobs = jobs_of(store, name, now, ours=ours, waits=bool(sizes.ready or overdue))
    used = full(settings.failed, sizes.failed, fill)
    return QueueLine(place, name, sizes, paused, 0, *jobs, fill, used, overdue, ours)
