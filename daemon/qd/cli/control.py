"""`qd restart`, `pause`, `resume`, `scale`, `down` and `up`: notes in the store that all workers and schedulers obey, on
every host; of a queue, of a part of the fleet (--job, --host, --pool), or of all.

With [laravel] configured, restart, pause and resume apply to Laravel's workers too. Laravel's own maintenance mode is never
written: it would take a web site offline.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import click

from qd.cli import context, output
from qd.cli.output import LONGEST, but, by_whom, local_time
from qd.config.settings import Settings
from qd.errors import ConnectionLost, ServerRefused
from qd.options import kinds
from qd.options.kinds import did_you_mean, queue_name
from qd.process.scoreboard import MAX_OPEN_QUEUES
from qd.store import controls, fleet, masters
from qd.store.base import KeyspaceStore, Store
from qd.store.controls import Restart
from qd.store.fleet import Kind, Target
from qd.store.masters import MasterReport

POLL = 0.1  # seconds between two checks of --wait
FETCHED = 0.1  # seconds after a pause; after 10 ms no worker starts a job that it fetched before (worker/prefetch.py)
OF_DAY = re.compile(r"[0-2]?\d:\d\d(:\d\d)?")
MAX_WORKERS = 200  # as in master/state.py, which needs the whole master
TARGETS = {
    "job": "This job; repeat for several.",
    "host": "The masters on this host.",
    "pool": "The masters of this pool.",
}


# -- parts of the fleet


def part_options(*kinds: Kind) -> Callable[[Any], Any]:
    """Decorator: an option for each kind of target."""
    added = [click.option(f"--{kind}", f"{kind}s", multiple=True, metavar="NAME", help=TARGETS[kind]) for kind in kinds]
    return lambda function: context.decorated(function, *added)


def targets(queues: Sequence[str], **named: Sequence[str]) -> list[Target]:
    """named: jobs, hosts, pools. Raises UsageError."""
    found = [Target(kind, name) for kind in fleet.KINDS for name in dict.fromkeys(named.get(f"{kind}s", ()))]
    if found and queues:
        raise click.UsageError(f"'{queues[0]}' and --{found[0].kind}: name queues, or jobs, hosts and pools")
    return found


def is_of(master: MasterReport, these: Sequence[Target]) -> bool:
    """Whether it runs on one of the hosts, or is of one of the pools."""
    return any(each in these for each in (Target("host", master.host), Target("pool", master.pool_title)))


def note_unknown_parts(store: KeyspaceStore, these: Sequence[Target]) -> None:
    """Hosts and pools without a running master are obeyed by the masters that start there."""
    running = [master for master in masters.masters(store) if not master.silent(store.now())]
    known = {"host": {master.host for master in running}, "pool": {master.pool_title for master in running}}
    for kind, name in these:
        if kind != "job" and name not in known[kind]:
            output.note(f"no running master is of {kind} '{name}'{did_you_mean(name, known[kind])}")


def pause_parts(found: Settings, these: list[Target], reason: str, seconds: float | None) -> list[dict[str, Any]]:
    store = context.store(found, found.control)
    paused = fleet.read(store).pauses.keys() | these
    if sum(target.kind == "job" for target in paused) > fleet.MOST:
        raise context.Refused(f"at most {fleet.MOST} jobs can be paused: `qd pause` the queues instead")
    note_unknown_parts(store, these)
    notes = [fleet.pause(store, each, by=context.operator(), reason=reason, seconds=seconds) for each in these]
    context.record(found, "pause", *[{kind: name} | for_(seconds) for kind, name in these], reason=reason)
    return [{str(kind): name} | asdict(note) for (kind, name), note in zip(these, notes, strict=True)]


def resume_parts(found: Settings, these: list[Target]) -> list[dict[str, Any]]:
    store = context.store(found, found.control)
    were = {target: fleet.resume(store, target) is not None for target in these}
    context.record(found, "resume", *[{str(kind): name} for (kind, name), was in were.items() if was])
    return [{str(kind): name, "was_paused": was} for (kind, name), was in were.items()]


@click.command()
@click.argument("pool", metavar="POOL")
@click.argument("number", type=click.IntRange(1, MAX_WORKERS), metavar="N")
@context.options
def scale(pool: str, number: int) -> None:
    """Give each master of a pool N workers, until it restarts.

    As TTIN and TTOU do. A start or reload (HUP, `qd restart`) returns to the configured number. The pool without a name is
    `default`.
    """
    found = context.settings()
    store = context.store(found, found.control)
    there = [m for m in masters.masters(store) if m.pool_title == pool and not m.silent(store.now())]
    if not there:
        known = {master.pool_title for master in masters.masters(store)}
        raise context.Refused(f"no master of pool '{pool}' runs{did_you_mean(pool, known)}")
    fleet.scale(store, pool, number)
    context.record(found, "scale", {"pool": pool, "workers": number})
    if context.given().json:
        names = [output.fields(master, "host", "pool", "pid", "configured") for master in there]
        return output.document({"schema": 1, "pool": pool, "workers": number, "masters": names})
    for master in there:
        output.say(f"{master.title}: {output.count(number, 'worker')}, {master.configured} configured")


# -- restart


class ControlReply(NamedTuple):
    """What happened to a master: `back` is the one that booted in its place after the stamp; or it refused the new code."""

    was: MasterReport
    back: MasterReport | None
    after: float | None  # seconds
    refused: str = ""


@click.command()
@click.option("--rolling", is_flag=True, help="Replace the workers one by one; their masters stay.")
@click.option("--wait", "seconds", type=context.SPAN, metavar="TIME", help="Wait up to this long for all masters.")
@part_options("host", "pool")
@context.options
def restart(rolling: bool, seconds: float | None, **parts: tuple[str, ...]) -> int:
    """Restart every worker with new code, after its job.

    A whole `qd work` drains and exits with 0, and its supervisor (supervisord, systemd) starts it again. Without a
    supervisor use --rolling. Without --host and --pool: all.

    --wait: exit 0 once every master is back (same host and pool, started after this command), or with --rolling once its
    workers are replaced; else exit 1 and name the others. It does
    not wait for a master that refuses the new code.
    """
    found = context.settings()
    store = context.store(found, found.control)
    these, how = targets((), **parts), {"rolling": "yes"} if rolling else {}
    reports, now = masters.masters(store), store.now()
    if these:
        note_unknown_parts(store, these)
        reports = [master for master in reports if is_of(master, these)]
    before = [master for master in reports if not master.silent(now)]
    silent = [] if before else reports
    if these:
        stamp, *_ = [fleet.restart(store, target, rolling=rolling) for target in these]
    else:
        stamp = stamp_both(found, store, rolling) if has_laravel(found) else controls.restart(store, rolling=rolling)
    context.record(found, "restart", *[how | {kind: name} for kind, name in these] or [how])
    answers = wait_for(store, before, stamp, seconds) if seconds is not None else []
    if context.given().json:
        facts = {"masters": described(before, answers), "silent": described(silent, [])}
        output.document({"at": stamp.at, "rolling": stamp.rolling, **facts})
    elif seconds is None:
        output.say(f"restart requested: {', '.join(master.title for master in before) or 'no master reports'}")
        if not reports:
            output.say("a `qd work` that starts later has the new code, and does not restart")
        if before and not rolling:
            output.say("each `qd work` exits with 0, and its supervisor must start it again; without one use --rolling")
    else:
        say_answers(answers, seconds, rolling)
    for master in () if context.given().json else silent:
        last = f"{master.title}, pid {master.pid}, has not reported for {output.duration(now - master.seen_at)}"
        way = f"to restart it now, send it {'HUP' if rolling else 'TERM'} on its host"
        output.say(f"{last}: if it runs, it restarts once it reaches this server; {way}")
    return 0 if all(answer.back for answer in answers) else 1


def stamp_both(found: Settings, store: Store, rolling: bool) -> Restart:
    """Writes Laravel's restart key, and qd's stamp that names its value. If Laravel's cache does not answer, qd's masters
    restart anyway, and the error is raised."""
    try:
        there = cache(found)
        value = controls.next_restart(there)
    except (ConnectionLost, ServerRefused):
        controls.restart(store, rolling=rolling)
        raise
    stamp = controls.restart(store, rolling=rolling, laravel=value)
    there.put(controls.RESTART, b"%d" % value)
    return stamp


def wait_for(store: Store, before: list[MasterReport], stamp: Restart, seconds: float) -> list[ControlReply]:
    """Poll until every master is back, for at most `seconds`. The server may be unreachable meanwhile."""
    begun = time.monotonic()
    answers = [ControlReply(master, None, None) for master in before]
    while True:
        passed = time.monotonic() - begun
        try:
            answers = matched(answers, masters.masters(store), stamp, passed)
            if all(answer.back or answer.refused for answer in answers) or passed >= seconds:
                return answers
        except ConnectionLost:
            if passed >= seconds:
                raise
        time.sleep(min(POLL, max(0.0, seconds - passed)))


def matched(answers: list[ControlReply], now: list[MasterReport], stamp: Restart, passed: float) -> list[ControlReply]:
    """The answers after one more poll: each new master replaces one of the same host and pool."""
    taken = {answer.back.token for answer in answers if answer.back}
    free = [m for m in now if m.booted_at > stamp.at and m.state != "stopping" and m.token not in taken]
    found = []
    for answer in answers:
        back = next((master for master in free if master.place == answer.was.place), None)
        if answer.back:
            found.append(answer)
        elif back is None:
            since = (m for m in now if m.token == answer.was.token and (m.refused_at or 0.0) > stamp.at)
            found.append(answer._replace(refused=next((m.refused for m in since), "")))
        else:
            free.remove(back)
            found.append(ControlReply(answer.was, back, passed))
    return found


def say_answers(answers: list[ControlReply], seconds: float, rolling: bool) -> None:
    if not answers:
        output.say("no master reports, so there is none to wait for")
    within = output.duration(seconds)
    for was, back, after, refused in answers:
        if back is not None:
            text = replaced(was, back, output.duration(after))
        elif refused:
            text = f"refused the new code, pid {was.pid} runs the old: {refused}"
        elif rolling:
            text = f"not replaced within {within}, pid {was.pid}; see `master.reload_refused` in its log"
        else:
            way = "see its log; only a supervisor starts it again (else use --rolling)"
            text = f"not back within {within}, pid was {was.pid}; {way}"
        output.say(f"{was.title}: {text}")


def replaced(was: MasterReport, back: MasterReport, after: str) -> str:
    """For a new master, or new workers of one that stays."""
    if was.pid != back.pid:
        return f"back after {after}, pid {was.pid} -> {back.pid}"
    gone = workers_gone(was, back)
    text = output.count(gone, "worker")
    text += " and the scheduler" if {s.pid for s in was.schedulers} - {s.pid for s in back.schedulers} else ""
    left = len(was.workers) - gone
    more = f"; {output.count(left, 'old worker')} still to finish a job" if left else ""
    return f"{text} replaced after {after}, pid {was.pid} stays{more}"


def workers_gone(was: MasterReport, back: MasterReport) -> int:
    """Number of workers that have left, or will without another job."""
    return len({each.pid for each in was.workers} - {each.pid for each in back.workers if each.job})


def described(before: list[MasterReport], answers: list[ControlReply]) -> list[dict[str, Any]]:
    rows = [output.fields(master, "host", "pool", "pid") for master in before]
    for row, (was, back, after, refused) in zip(rows, answers, strict=False):
        row |= {"back": back is not None, "new_pid": back.pid if back else None}
        row |= {"after_s": None if after is None else round(after, 3)}
        row |= {"workers_replaced": workers_gone(was, back) if back else None, "refused": refused or None}
    return rows


# -- queues


@click.command()
@click.argument("queues", nargs=-1, metavar="[QUEUE...]")
@click.option("--for", "seconds", type=context.SPAN, metavar="TIME", help="Resume automatically after this long.")
@click.option("--reason", default="", metavar="TEXT", help="Reason, shown by `qd status`.")
@part_options("job", "host", "pool")
@context.options
def pause(queues: tuple[str, ...], seconds: float | None, reason: str, **parts: tuple[str, ...]) -> None:
    """Take no more jobs from these queues, on any host.

    Jobs that run are finished; delayed jobs wait.

    --job: workers put these jobs back. --host, --pool: workers there take nothing, nor do those that start there. Both
    within about a second.

    Without QUEUE: from all queues that running masters report and the configuration names.
    """
    if seconds == 0:
        raise click.UsageError("--for 0 would end at once; leave it out to pause until `qd resume`")
    found = context.settings()
    if these := targets(queues, **parts):
        notes = pause_parts(found, these, reason, seconds)
        ways = [(str(target), output.resuming(*target)) for target in these]
    else:
        places = context.places(found)
        notes = pause_queues(found, places, queues, seconds=seconds, reason=reason)
        ways = [(shown(each, places), "`qd resume`") for each in notes]
    if context.given().json:
        return output.document({"paused": notes})
    for title, way in ways:
        output.say(f"{title}: paused {f'until {way}' if seconds is None else f'for {output.duration(seconds)}'}")


def pause_queues(
    found: Settings, places: list[str], queues: tuple[str, ...], *, seconds: float | None, reason: str
) -> list[dict[str, Any]]:
    """Pause these queues (none: all known ones) and record it. Returns the notes, each with queue and connection."""
    notes = list[dict[str, Any]]()
    for place in places:
        store = context.store(found, place)
        for name in chosen(found, place, queues):
            note = controls.pause(store, name, by=context.operator(), reason=reason, seconds=seconds)
            notes.append({"queue": name, "connection": place, **asdict(note)})
        if has_laravel(found):
            there = cache(found)
            for key in [controls.laravel_paused(place, name) for name in queues] or [controls.PAUSED_ALL]:
                there.put(key, controls.TRUE, seconds)
    time.sleep(FETCHED)
    context.record(found, "pause", *[place_of(each) | for_(seconds) for each in notes], reason=reason)
    return notes


@click.command()
@click.argument("queues", nargs=-1, metavar="[QUEUE...]")
@part_options("job", "host", "pool")
@context.options
def resume(queues: tuple[str, ...], **parts: tuple[str, ...]) -> None:
    """Take jobs from these queues again.

    Without QUEUE: from all that are paused.
    """
    found = context.settings()
    if these := targets(queues, **parts):
        listed, titles = resume_parts(found, these), [str(target) for target in these]
    else:
        places = context.places(found)
        listed = resume_queues(found, places, queues)
        titles = [shown(each, places) for each in listed]
    if context.given().json:
        return output.document({"resumed": listed})
    for title, each in zip(titles, listed, strict=True):
        if each["was_paused"] or these or each["queue"] in queues:
            output.say(f"{title}: {'resumed' if each['was_paused'] else 'was not paused'}")
    if not queues and not these and not any(each["was_paused"] for each in listed):
        output.say("nothing was paused")


def resume_queues(found: Settings, places: list[str], queues: tuple[str, ...]) -> list[dict[str, Any]]:
    """Resume these queues (none: all) and record it. Returns each queue with whether it was paused."""
    listed = [each for place in places for each in resumed(found, place, queues)]
    context.record(found, "resume", *[place_of(each) for each in listed if each["was_paused"]])
    return listed


def resumed(found: Settings, place: str, queues: tuple[str, ...]) -> list[dict[str, Any]]:
    """The queues of one connection, each with whether it was paused."""
    store = context.store(found, place)
    names = chosen(found, place, queues) if queues or has_laravel(found) else []
    names = names if queues else list(dict.fromkeys([*masters.queues_held(store), *names]))
    # Laravel's keys first: keepers mirror them into ours as long as they are there.
    were = resume_laravel(found, place, queues, names) if has_laravel(found) else dict.fromkeys(names, False)
    for name in names:
        were[name] |= controls.resume(store, name) is not None
    return [{"queue": name, "connection": place, "was_paused": was} for name, was in were.items()]


def place_of(note: dict[str, Any]) -> dict[str, Any]:
    return {key: note[key] for key in ("queue", "connection")}


def for_(seconds: float | None) -> dict[str, str]:
    return {} if seconds is None else {"for": output.duration(seconds)}


def shown(note: dict[str, Any], places: list[str]) -> str:
    """The name of a queue, with its connection if there are several."""
    return str(note["queue"] if len(places) == 1 else f"{note['connection']}:{note['queue']}")


def chosen(found: Settings, place: str, queues: tuple[str, ...]) -> list[str]:
    """The queues named, else all known ones. Raises Refused if there are none."""
    reported = masters.queues_of(masters.masters(context.store(found, found.control))).get(place, [])
    known = list(dict.fromkeys([*context.queues_named(found, place), *reported]))
    note_unserved(queues, known, f" of {place}")
    if not queues and not known and not has_laravel(found):
        raise context.Refused(f"no queue of {place} is known (no master reports, no file names one): name one")
    return list(dict.fromkeys(queues or known))


def note_unserved(names: Iterable[str], known: Collection[str], of: str = "") -> None:
    for name in names:
        if known and name not in known:
            output.note(f"no worker is known to serve '{name}'{of}{did_you_mean(name, known)}")


def resume_laravel(found: Settings, place: str, queues: tuple[str, ...], names: list[str]) -> dict[str, bool]:
    """Which queues Laravel's own keys paused. A pause of all queues only ends when all are resumed."""
    store = cache(found)
    were = {name: store.take(controls.laravel_paused(place, name)) is not None for name in names}
    if not queues and store.take(controls.PAUSED_ALL) is not None:
        return dict.fromkeys(names, True)
    if queues and store.get(controls.PAUSED_ALL)[0] is not None:
        output.note("Laravel's pause of all queues still holds: `qd resume` without a queue ends it")
    return were


def has_laravel(found: Settings) -> bool:
    return found.laravel is not None and bool(found.laravel.cache_url)


def cache(found: Settings) -> Store:
    """Laravel's cache, where its workers read such notes; ask `has_laravel` first."""
    assert found.laravel is not None
    return context.store_at(found.laravel.cache_url, found.laravel.cache_prefix)


# -- maintenance mode


def until(text: str) -> float:
    """Seconds until then: "30m", "18:30" (the next one, local time), "2026-11-21 18:30" (local time),
    "2026-11-21T18:30+01:00". Raises ValueError."""
    now = time.time()
    try:
        seconds = kinds.span(text)
    except ValueError:
        seconds = moment_of(text.strip(), now) - now
    if seconds <= 0:
        raise ValueError(f"{text!r} is in the past (it is {local_time(now)})")
    try:
        return kinds.span(seconds)
    except ValueError:
        raise ValueError(f"{text!r} is more than 100 years away") from None


UNTIL = context.Parsed(until)


def moment_of(text: str, now: float) -> float:
    try:
        if OF_DAY.fullmatch(text):
            return of_day(text if text[1] != ":" else f"0{text}", now)
        return datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError):
        written = "30m, 18:30, '2026-11-21 18:30' or 2026-11-21T18:30+01:00"
        raise ValueError(f"{text!r} is neither a duration nor a time (write {written})") from None


def of_day(text: str, now: float) -> float:
    """The next time at which a clock here shows `text`."""
    at = datetime.fromisoformat(f"{datetime.fromtimestamp(now):%Y-%m-%d} {text}")
    return (at if at.timestamp() > now else at + timedelta(days=1)).timestamp()


@click.command()
@click.option("--reason", default="", metavar="TEXT", help="Reason, shown by `qd status`.")
@click.option("--until", "seconds", type=UNTIL, metavar="WHEN", help="End automatically: 30m, 18:30 or an ISO time.")
@click.option("--allow", multiple=True, metavar="QUEUE", help="Keep working on this queue; several: a,b or repeat.")
@context.options
def down(reason: str, seconds: float | None, allow: tuple[str, ...]) -> None:
    """Begin maintenance mode, until `qd up`.

    Workers finish their jobs and take no more, on every host within 2 s, and the schedule is skipped; `qd work --force`
    ignores it. A time without a zone is local time.
    """
    if len(reason) > LONGEST:
        raise click.UsageError(f"--reason has {len(reason)} characters, at most {LONGEST}: link to the details")
    found = context.settings()
    store = context.store(found, found.control)
    open_ones = named(found, allow)
    was = controls.is_down(store)
    note = controls.down(store, by=context.operator(), reason=reason, seconds=seconds, allow=open_ones)
    allowed = {"allow": ", ".join(open_ones)} if open_ones else {}
    context.record(found, "down", allowed | for_(seconds), reason=reason)
    if context.given().json:
        return output.document({"down": asdict(note), "was_down": None if was is None else asdict(was)})
    if was is not None:
        output.say(f"it was already on{by_whom(was, store.now())}; this replaces it")
    end = "`qd up`" if seconds is None else f"{local_time(time.time() + seconds)}, for {output.duration(seconds)}"
    output.say(f"maintenance mode is on until {end}{but(note)}")


@click.command()
@context.options
def up() -> None:
    """End maintenance mode."""
    found = context.settings()
    store = context.store(found, found.control)
    was = controls.up(store)
    context.record(found, "up", *[{}] * (was is not None))
    if context.given().json:
        return output.document({"was_down": None if was is None else asdict(was)})
    output.say("maintenance mode is off" if was else "maintenance mode was not on")
    reports = [each for each in masters.masters(store) if each.laravel_down and not each.silent(store.now())]
    for what in sorted({f"{master.laravel_down} on {master.host}" for master in reports}):
        output.note(f"Laravel's own still holds ({what}): `php artisan up` ends it")


def laravels(found: Settings) -> str:
    """Laravel's file or key that holds this host, if [laravel] obeys it; "" if none, or if that is unknown."""
    held = found.laravel
    if held is not None and held.down_file:
        there, why = controls.down_file(held.down_file)
        if why:
            output.note(f"Laravel's down_file {held.down_file} is ignored while it cannot be checked: {why}")
        if there:
            return held.down_file
    if held is None or not held.down:
        return ""
    try:
        value = context.store_at(held.cache_url, held.cache_prefix).get(controls.DOWN)[0]
        return controls.DOWN if controls.truthy(value) else ""
    except (ConnectionLost, ServerRefused) as error:
        output.note(f"Laravel's cache is unreachable, so whether Laravel is down is unknown: {error}")
        return ""


def named(found: Settings, words: tuple[str, ...]) -> tuple[str, ...]:
    """The queues of --allow. Notes those that no worker is known to serve. Raises UsageError."""
    names = list(dict.fromkeys(name.strip() for word in words for name in word.split(",")))
    for name in names:
        try:
            queue_name(name)
        except ValueError as error:
            raise click.UsageError(f"--allow: {error}") from None
    if len(names) > MAX_OPEN_QUEUES:
        way = "`qd pause` the others instead"
        raise click.UsageError(f"--allow names {len(names)} queues, at most {MAX_OPEN_QUEUES}: {way}")
    if not names:
        return ()
    known = {queue for place in found.connections for queue in context.queues_named(found, place)}
    reported = masters.queues_of(masters.masters(context.store(found, found.control)))
    note_unserved(names, known.union(*reported.values()))
    return tuple(names)
