"""`qd scale`, and `qd pause`, `resume` and `restart` with --job, --host and --pool: orders for a part of the fleet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import click

from qd.cli import context, output
from qd.config.settings import Settings
from qd.options.kinds import did_you_mean
from qd.store import fleet, masters
from qd.store.base import KeyspaceStore
from qd.store.fleet import Kind, Target

MAX_WORKERS = 200  # as in master/state.py, which needs the whole master
HELP = {
    "job": "This job; repeat for several.",
    "host": "The masters on this host.",
    "pool": "The masters of this pool.",
}


def options(*kinds: Kind) -> Callable[[Any], Any]:
    """Decorator: an option for each kind of target."""
    added = [click.option(f"--{kind}", f"{kind}s", multiple=True, metavar="NAME", help=HELP[kind]) for kind in kinds]
    return lambda function: context.decorated(function, *added)


def targets(queues: Sequence[str], **named: Sequence[str]) -> list[Target]:
    """named: jobs, hosts, pools. Raises UsageError."""
    found = [Target(kind, name) for kind in fleet.KINDS for name in dict.fromkeys(named.get(f"{kind}s", ()))]
    if found and queues:
        raise click.UsageError(f"'{queues[0]}' and --{found[0].kind}: name queues, or jobs, hosts and pools")
    return found


def is_of(master: masters.MasterReport, these: Sequence[Target]) -> bool:
    """Whether it runs on one of the hosts, or is of one of the pools."""
    return any(each in these for each in (Target("host", master.host), Target("pool", master.pool_title)))


def note_unknown(store: KeyspaceStore, these: Sequence[Target]) -> None:
    """Hosts and pools without a running master are obeyed by the masters that start there."""
    running = [master for master in masters.masters(store) if not master.silent(store.now())]
    known = {"host": {master.host for master in running}, "pool": {master.pool_title for master in running}}
    for kind, name in these:
        if kind != "job" and name not in known[kind]:
            output.note(f"no running master is of {kind} '{name}'{did_you_mean(name, known[kind])}")


def pause(found: Settings, these: list[Target], reason: str, seconds: float | None) -> None:
    store = context.store(found, found.control)
    paused = fleet.read(store).pauses.keys() | these
    if sum(target.kind == "job" for target in paused) > fleet.MOST:
        raise context.Refused(f"at most {fleet.MOST} jobs can be paused: `qd pause` the queues instead")
    note_unknown(store, these)
    notes = []
    for target in these:
        note = fleet.pause(store, target, by=context.operator(), reason=reason, seconds=seconds)
        notes.append({target.kind: target.name} | asdict(note))
    given = {} if seconds is None else {"for": output.duration(seconds)}
    objects: list[dict[str, str]] = [{kind: name, **given} for kind, name in these]
    context.record(found, "pause", *objects, reason=reason)
    if context.given().json:
        return output.document({"paused": notes})
    for kind, name in these:
        until = f"until `qd resume --{kind} {name}`" if seconds is None else f"for {output.duration(seconds)}"
        output.say(f"{kind} {name}: paused {until}")


def resume(found: Settings, these: list[Target]) -> None:
    store = context.store(found, found.control)
    were = {target: fleet.resume(store, target) is not None for target in these}
    objects: list[dict[str, str]] = [{kind: name} for (kind, name), was in were.items() if was]
    context.record(found, "resume", *objects)
    if context.given().json:
        return output.document({"resumed": [{kind: name, "was_paused": was} for (kind, name), was in were.items()]})
    for target, was in were.items():
        output.say(f"{target}: {'resumed' if was else 'was not paused'}")


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
        output.say(f"{master.title}: {number} workers, {master.configured} configured")
