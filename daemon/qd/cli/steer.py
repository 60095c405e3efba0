"""`qd restart`, `pause`, `resume`: notes in Redis that every worker on every host obeys.

With [laravel] configured, restart, pause and resume are told to Laravel's workers too.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from qd.cli import context, output
from qd.errors import ConfigError, ConnectionLost, ServerRefused
from qd.store import hosts, laravel, stamps
from qd.units import did_you_mean

if TYPE_CHECKING:
    from qd.config import Settings
    from qd.store.base import Store

LOOK = 0.1  # seconds between two looks of --wait


# -- restart


class Answer(NamedTuple):
    """What became of a master that was there. back: its place is taken by one that booted after the stamp."""

    was: hosts.Master
    back: hosts.Master | None
    after: float | None  # seconds


@click.command()
@click.option("--rolling", is_flag=True, help="Replace the workers one by one; their masters stay.")
@click.option(
    "--wait", "seconds", type=context.Span(), metavar="TIME", help="Wait so long for every master to be back."
)
@context.options
def restart(rolling: bool, seconds: float | None) -> int:
    """Let every worker finish its job and start anew, with new code.

    A whole `qd work` drains and leaves with exit 0, for supervisord or systemd to start it again.

    --wait: exit 0 when each master that was there is back (same host and pool, started after this command), with --rolling
    when its workers are replaced; 1 when one is not, and it is named.
    """
    found = context.settings()
    store = context.store(found, found.control)
    before = [master for master in hosts.masters(store) if not master.silent(store.now())]
    stamp = stamp_both(found, store, rolling) if tells_laravel(found) else stamps.restart(store, rolling=rolling)
    answers = wait_for(store, before, stamp, seconds) if seconds is not None else []
    if context.given().json:
        output.document({"at": stamp.at, "rolling": stamp.rolling, "masters": told(before, answers)})
    elif seconds is None:
        output.say(f"asked to restart: {', '.join(map(name_of, before)) or 'no master reports'}")
    else:
        say_answers(answers, seconds, rolling)
    return 0 if all(answer.back for answer in answers) else 1


def stamp_both(found: Settings, store: Store, rolling: bool) -> stamps.Restart:
    """qd's stamp, which names the value of Laravel's key, then that key. If Laravel's cache does not answer, qd's masters
    restart all the same, and the error is raised."""
    try:
        there = cache(found)
        value = laravel.next_restart(there)
    except (ConnectionLost, ServerRefused):
        stamps.restart(store, rolling=rolling)
        raise
    stamp = stamps.restart(store, rolling=rolling, laravel=value)
    laravel.restart(there, value)
    return stamp


def wait_for(store: Store, before: list[hosts.Master], stamp: stamps.Restart, seconds: float) -> list[Answer]:
    """Look until every place is taken again, for `seconds` at most. The server may be away until then."""
    begun = time.monotonic()
    answers = [Answer(master, None, None) for master in before]
    while True:
        passed = time.monotonic() - begun
        try:
            answers = looked(answers, hosts.masters(store), stamp, passed)
            if all(answer.back for answer in answers) or passed >= seconds:
                return answers
        except ConnectionLost:
            if passed >= seconds:
                raise
        time.sleep(min(LOOK, max(0.0, seconds - passed)))


def looked(answers: list[Answer], now: list[hosts.Master], stamp: stamps.Restart, passed: float) -> list[Answer]:
    """The answers after one more look: each master that is new takes one place of its host and pool."""
    taken = {answer.back.token for answer in answers if answer.back}
    free = [m for m in now if m.booted_at > stamp.at and m.state != "stopping" and m.token not in taken]
    found = []
    for answer in answers:
        back = next((master for master in free if master.place == answer.was.place), None)
        if answer.back or back is None:
            found.append(answer)
        else:
            free.remove(back)
            found.append(Answer(answer.was, back, passed))
    return found


def say_answers(answers: list[Answer], seconds: float, rolling: bool) -> None:
    if not answers:
        output.say("no master reports, so there is none to wait for")
    for was, back, after in answers:
        if back is not None:
            output.say(f"{name_of(was)}: {replaced(was, back, output.duration(after))}")
        elif rolling:
            why = "see `master.reload_refused` in its log"
            output.say(f"{name_of(was)}: not replaced within {output.duration(seconds)}, pid {was.pid}; {why}")
        else:
            output.say(f"{name_of(was)}: not back within {output.duration(seconds)}, pid was {was.pid}")


def replaced(was: hosts.Master, back: hosts.Master, after: str) -> str:
    """A whole master, or the workers of one that stays."""
    if was.pid != back.pid:
        return f"back after {after}, pid {was.pid} -> {back.pid}"
    gone = workers_gone(was, back)
    said = output.count(gone, "worker")
    if {each.pid for each in was.schedulers} - {each.pid for each in back.schedulers}:
        said += " and the scheduler"
    left = len(was.workers) - gone
    more = f"; {output.count(left, 'old worker')} still to finish a job" if left else ""
    return f"{said} replaced after {after}, pid {was.pid} stays{more}"


def workers_gone(was: hosts.Master, back: hosts.Master) -> int:
    """Those of its workers that have left, or will without another job."""
    return len({each.pid for each in was.workers} - {each.pid for each in back.workers if each.job})


def told(before: list[hosts.Master], answers: list[Answer]) -> list[dict[str, Any]]:
    if not answers:
        return [{"host": master.host, "pool": master.pool, "pid": master.pid} for master in before]
    return [
        {
            "host": was.host,
            "pool": was.pool,
            "pid": was.pid,
            "back": back is not None,
            "new_pid": back.pid if back else None,
            "after_s": None if after is None else round(after, 3),
            "workers_replaced": workers_gone(was, back) if back else None,
        }
        for was, back, after in answers
    ]


def name_of(master: hosts.Master) -> str:
    """`mail@app-1`, or the host alone for a master without a pool."""
    return output.clean(f"{master.pool}@{master.host}" if master.pool else master.host)


# -- pause and resume


@click.command()
@click.argument("queues", nargs=-1, metavar="[QUEUE...]")
@click.option("--for", "seconds", type=context.Span(), metavar="TIME", help="Resume by itself after this long.")
@click.option("--reason", default="", metavar="TEXT", help="Say why, for those who look at `qd status`.")
@context.options
def pause(queues: tuple[str, ...], seconds: float | None, reason: str) -> None:
    """Take no more jobs from these queues, on any host.

    Jobs that run are finished; delayed jobs wait.

    Without QUEUE: from all queues that running masters report and the configuration names.
    """
    if seconds == 0:
        raise click.UsageError("--for 0 would end at once; leave it out to pause until `qd resume`")
    found = context.settings()
    places = context.places(found)
    notes = list[dict[str, Any]]()
    for place in places:
        store = context.store(found, place)
        for name in asked(found, place, queues):
            note = stamps.pause(store, name, by=context.who(), reason=reason, seconds=seconds)
            notes.append({"queue": name, "connection": place, **asdict(note)})
        if tells_laravel(found):
            pause_laravel(found, place, queues, seconds)
    if context.given().json:
        return output.document({"paused": notes})
    until = "until `qd resume`" if seconds is None else f"for {output.duration(seconds)}"
    for each in notes:
        output.say(f"{shown(each, places)}: paused {until}")


@click.command()
@click.argument("queues", nargs=-1, metavar="[QUEUE...]")
@context.options
def resume(queues: tuple[str, ...]) -> None:
    """Take jobs from these queues again.

    Without QUEUE: from all that are paused.
    """
    found = context.settings()
    places = context.places(found)
    listed = [each for place in places for each in resumed(found, place, queues)]
    if context.given().json:
        return output.document({"resumed": listed})
    for each in listed:
        if each["was_paused"] or each["queue"] in queues:
            output.say(f"{shown(each, places)}: {'resumed' if each['was_paused'] else 'was not paused'}")
    if not queues and not any(each["was_paused"] for each in listed):
        output.say("nothing was paused")


def resumed(found: Settings, place: str, queues: tuple[str, ...]) -> list[dict[str, Any]]:
    """The queues of one connection, each with whether it was paused."""
    store = context.store(found, place)
    names = asked(found, place, queues) if queues or tells_laravel(found) else []
    names = names if queues else list(dict.fromkeys([*hosts.queues_held(store), *names]))
    # Laravel's keys first: keepers mirror them into ours as long as they are there.
    were = resume_laravel(found, place, queues, names) if tells_laravel(found) else dict.fromkeys(names, False)
    for name in names:
        were[name] |= stamps.resume(store, name) is not None
    return [{"queue": name, "connection": place, "was_paused": was} for name, was in were.items()]


def shown(note: dict[str, Any], places: list[str]) -> str:
    """A queue by its name, and of which connection where there are several."""
    return output.clean(note["queue"] if len(places) == 1 else f"{note['connection']}:{note['queue']}")


def asked(found: Settings, place: str, queues: tuple[str, ...]) -> list[str]:
    """The queues named, else all that are known. Refuses when none is."""
    reported = hosts.queues_of(hosts.masters(context.store(found, found.control))).get(place, [])
    known = list(dict.fromkeys([*context.queues_named(found, place), *reported]))
    for name in queues:
        if known and name not in known:
            output.note(f"nobody is known to work on '{name}' of {place}{did_you_mean(name, known)}")
    if not queues and not known and not tells_laravel(found):
        raise context.Refused(f"no queue of {place} is known (no master reports, no file names one): name one")
    return list(dict.fromkeys(queues or known))


def pause_laravel(found: Settings, place: str, queues: tuple[str, ...], seconds: float | None) -> None:
    store = cache(found)
    for name in queues:
        laravel.pause(store, place, name, seconds)
    if not queues:
        laravel.pause_all(store, seconds)


def resume_laravel(found: Settings, place: str, queues: tuple[str, ...], names: list[str]) -> dict[str, bool]:
    """Which queues Laravel's own keys held. A pause of all queues ends only when all are resumed."""
    store = cache(found)
    were = {name: laravel.resume(store, place, name) for name in names}
    if not queues and laravel.resume_all(store):
        return dict.fromkeys(names, True)
    if queues and laravel.all_paused(store):
        output.note("Laravel's pause of all queues still holds: `qd resume` without a queue ends it")
    return were


def tells_laravel(found: Settings) -> bool:
    return found.laravel is not None and bool(found.laravel.cache_url)


def cache(found: Settings) -> Store:
    """Where Laravel's workers look for such notes."""
    if found.laravel is None:
        raise ConfigError("[laravel] is not configured")
    return context.store_at(found.laravel.cache_url, found.laravel.cache_prefix)
