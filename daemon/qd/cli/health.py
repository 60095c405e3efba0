"""`qd health`: exit 0 if masters and queues are healthy, or 1 with one reason per line. For cron, load balancers and
probes: it changes nothing, and answers within a few seconds whatever hangs.

`qd health --live` is for liveness probes: do the masters of this host or container run? It reads their files, and neither
server nor configuration, so that an unreachable server does not restart them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from qd.cli import context, output
from qd.cli.output import duration
from qd.errors import ConnectionLost
from qd.process import liveness
from qd.process.liveness import Live

if TYPE_CHECKING:
    from qd.cli.diagnosis import HealthThresholds, Reason
    from qd.cli.state import State

LOST = 30.0  # seconds without its keeper; a master replaces a silent keeper long before
PATIENCE = 2.0  # seconds for a connection, and for each reply
NO_LIMITS = {"max_ready": None, "max_age": None, "expect": None, "allow_none": False}  # of the options
AT_MOST = 8  # seconds in all; a name server may hang, or an app that names the url


def live_here(pool: str | None) -> int:
    """0 if every master here (of `pool`) has written its liveness file in time, else 1 with the reasons."""
    masters = [each for each in liveness.read_all(os.environ) if pool in (None, each.pool or "default")]
    why = list(dead(masters, pool))
    if context.given().json:
        output.document({"ok": not why, "reasons": why, "masters": [structs.asdict(master) for master in masters]})
    else:
        for line in why or [f"ok: {output.count(len(masters), 'master')} here{whose(masters)}"]:
            output.say(line)
    return 1 if why else 0


def whose(masters: list[Live]) -> str:
    """Their working directories, if one is not the current one: another project of this user has the same files."""
    folders = Counter(master.folder for master in masters if master.folder)
    here = "" if context.folder_is_gone() else os.getcwd()
    if not folders or [*folders] == [here]:
        return ""
    return f": {', '.join(f'{number} in {folder}' for folder, number in folders.items())}"


def dead(masters: list[Live], pool: str | None) -> Iterator[str]:
    if not masters:
        of_pool = f" of pool {pool}" if pool else ""
        folder = liveness.folder(os.environ)
        yield f"no master{of_pool} runs here: no liveness file in {folder}; start `qd work`, as this user"
    for master in masters:
        who = f"{master.pool or 'default'} (pid {master.pid})"
        if master.hangs:
            yield f"{who}: the master has not reported for {duration(master.age)}: it hangs, kill and restart it"
        elif master.keeper_silent_s > LOST:
            yield f"{who}: its keeper is silent for {duration(master.keeper_silent_s)}: kill and restart the master"


@click.command("health")
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@click.option("--max-ready", type=click.IntRange(0), metavar="N", help="Fail if a queue has more ready jobs than this.")
@click.option("--max-age", type=context.SPAN, metavar="TIME", help="Fail if a ready job has waited longer than this.")
@click.option("--expect", type=click.IntRange(1), metavar="N", help="Fail if fewer masters than this run.")
@click.option("--allow-none", is_flag=True, help="Do not fail if no master runs.")
@click.option("--live", is_flag=True, help="Check only the masters of this host or container, without any server.")
@click.option("--pool", metavar="NAME", help="With --live: check only the masters of this pool.")
@context.options
def command(queues: tuple[str, ...], live: bool, pool: str | None, **limits: Any) -> int:
    """Check that masters and queues are healthy.

    Exit 0, or 1 with one reason per line. Fails without a master, unless --allow-none. With names, only these queues are
    checked; without, all that exist on the server, that masters work on, or that the configuration names.
    """
    if live:
        if queues or limits != NO_LIMITS:
            raise click.UsageError("--live queries no server: it takes no queues and no other option but --pool")
        return live_here(pool)
    if pool is not None:
        raise click.UsageError("--pool goes with --live; without it name queues")
    if limits["allow_none"] and limits["expect"] is not None:
        raise click.UsageError("--expect and --allow-none contradict each other: use one of them")
    from qd.cli.diagnosis import HealthThresholds

    why = f"no answer within {AT_MOST} s: the server, its name, or the app's import hangs"
    with context.ended_within(AT_MOST, why):
        return of_fleet(queues, HealthThresholds(**limits))


def of_fleet(queues: tuple[str, ...], limits: HealthThresholds) -> int:
    from qd.cli.diagnosis import reasons
    from qd.cli.state import read_state

    context.given().patience, context.given().only_looks = PATIENCE, True
    found = context.settings()
    state = read_state(found, only=queues)
    if state.away:
        raise ConnectionLost("; ".join(state.away.values()))
    why = list(reasons(state, limits))
    if context.given().json:
        output.document(document(state, why))
    else:
        for reason in why:
            output.say(reason.text)
        if not why:
            output.say(well(state))
        for text in warnings(state):
            output.say(f"warn: {text}")
    return 1 if why else 0


def well(state: State) -> str:
    alive = state.living
    workers, ready = sum(len(m.workers) for m in alive), sum(line.sizes.ready for line in state.queues)
    ages = [line.sizes.oldest_age for line in state.queues if line.sizes.oldest_age is not None]
    count = output.count
    parts = [f"{count(len(alive), 'master')} with {count(workers, 'worker')}" if alive else "no master reports"]
    parts.append(f"{count(ready, 'job')} ready")
    if ages:
        parts.append(f"the oldest for {output.duration(max(ages))}")
    if failed := sum(line.sizes.failed for line in state.queues):
        parts.append(f"{failed} failed and kept")
    if dropped := sum(line.failed.dropped for line in state.queues):
        parts.append(f"{dropped} failed and dropped")
    if state.down:
        parts.append("maintenance mode" + (f" but for {' '.join(state.down.allow)}" if state.down.allow else ""))
    if any(master.laravel_down for master in alive):
        parts.append("Laravel's maintenance mode")
    if paused := [line.name for line in state.queues if line.paused]:
        parts.append(f"paused: {' '.join(paused)}")
    return f"ok: {', '.join(parts)}"


def document(state: State, why: list[Reason]) -> dict[str, Any]:
    alive = state.living
    queues = []
    for line in state.queues:
        facts = output.fields(line, "connection", "name") | output.fields(line.sizes, "ready", "failed")
        facts |= {"failed_bytes": line.failed.bytes, **output.fields(line.failed, "dropped", "dropped_at")}
        facts |= {"oldest_age_s": line.sizes.oldest_age, "paused": line.paused is not None, "workers": line.workers}
        queues.append(facts)
    facts = {"masters": len(alive), "workers": sum(len(m.workers) for m in alive), "queues": queues}
    listed = [{key: value for key, value in asdict(reason).items() if value} for reason in why]
    # Down: whether maintenance mode holds anything back, qd's or Laravel's.
    down = state.down is not None or any(master.laravel_down for master in state.masters)
    return {"ok": not why, "at": state.now, "down": down, "reasons": listed, "warnings": warnings(state), **facts}


def warnings(state: State) -> list[str]:
    """What deserves attention but is no failure."""
    from qd.cli.diagnosis import of_line, of_refused_code

    found = [*of_refused_code(state), *(each for line in state.queues for each in of_line(line, state))]
    return [f"{fact}; {way}" for fact, way in found]
