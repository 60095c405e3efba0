"""`qd health --live`: do the masters of this host or container run? Their files answer; no server and no configuration is
asked, so that a server that is away restarts nobody. For liveness probes.

`qd health`: is it well? Exit 0, or 1 with each reason in a line. `--live` asks the masters here, and no server.

For cron, load balancers and probes: it starts nothing, changes nothing, and answers within a few seconds whatever hangs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from qd.cli import context, output
from qd.cli.output import duration
from qd.errors import ConnectionLost
from qd.process import liveness
from qd.process.liveness import Live

if TYPE_CHECKING:
    from qd.cli.state import HealthThresholds, Reason, State


LOST = 30.0  # seconds without its keeper: a master replaces a silent one long before


def run(pool: str | None) -> int:
    """0: every master here, or every one of `pool`, has just given a sign. 1: with the reasons."""
    masters = [each for each in liveness.read_all(os.environ) if pool in (None, each.pool or "default")]
    why = list(reasons(masters, pool))
    if context.given().json:
        output.document({"ok": not why, "reasons": why, "masters": [asdict(master) for master in masters]})
    else:
        for line in why or [f"ok: {output.count(len(masters), 'master')} here"]:
            output.say(output.clean(line))
    return 1 if why else 0


def reasons(masters: list[Live], pool: str | None) -> Iterator[str]:
    if not masters:
        of_pool = f" of pool {pool}" if pool else ""
        folder = liveness.folder(os.environ)
        yield f"no master{of_pool} runs here: no liveness file in {folder}; start `qd work`, as this user"
    for master in masters:
        who = f"{master.pool or 'default'} (pid {master.pid})"
        if master.hangs:
            yield f"{who}: the master gave no sign for {duration(master.age)}: it hangs, kill it and let it be started again"
        elif master.keeper_silent_s > LOST:
            yield f"{who}: its keeper is silent for {duration(master.keeper_silent_s)}: kill the master, to be started again"


PATIENCE = 2.0  # seconds for a connection, and for each answer
AT_MOST = 8  # seconds for all of it: a name server may hang, and an app that names the url


@click.command("health")
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@click.option("--max-ready", type=click.IntRange(0), metavar="N", help="Not well when more jobs than this are ready.")
@click.option(
    "--max-age", type=context.Span(), metavar="TIME", help="Not well when a ready job waits longer than this."
)
@click.option("--expect", type=click.IntRange(1), metavar="N", help="Not well when fewer masters than this run.")
@click.option("--allow-none", is_flag=True, help="Well even if no master runs.")
@click.option(
    "--live", is_flag=True, help="Ask only whether the masters of this host or container live, and no server."
)
@click.option("--pool", metavar="NAME", help="With --live: ask for the masters of this pool only.")
@context.options
def command(
    queues: tuple[str, ...],
    max_ready: int | None,
    max_age: float | None,
    expect: int | None,
    allow_none: bool,
    live: bool,
    pool: str | None,
) -> int:
    """Say whether masters and queues are well: exit 0, or 1 with each reason in a line.

    Not well without a master, unless --allow-none. With names, only these queues are checked. Without: all that have keys on
    the server, that masters work on, or that the configuration names.
    """
    if live:
        if queues or (max_ready, max_age, expect, allow_none) != (None, None, None, False):
            raise click.UsageError("--live asks no server: it takes no queues and no other option but --pool")
        return run(pool)
    if pool is not None:
        raise click.UsageError("--pool goes with --live; without it name queues")
    if allow_none and expect is not None:
        raise click.UsageError("--expect asks for masters, --allow-none for none: give one of them")
    from qd.cli.state import HealthThresholds

    with context.ended_within(
        AT_MOST, f"no answer within {AT_MOST} s: the server, its name, or the app's import hangs"
    ):
        return of_fleet(queues, HealthThresholds(max_ready, max_age, expect, allow_none))


# -- the whole fleet, by what is on the server


def of_fleet(queues: tuple[str, ...], limits: HealthThresholds) -> int:
    from qd.cli.state import looked, reasons

    context.given().patience, context.given().only_looks = PATIENCE, True
    found = context.settings()
    state = narrowed(looked(found, search=not queues, also=queues), queues)
    if state.away:  # nobody can say whether what stands there is well
        raise ConnectionLost("; ".join(state.away.values()))
    why = list(reasons(state, limits))
    if context.given().json:
        output.document(document(state, why))
    else:
        for reason in why:
            output.say(output.clean(reason.text))
        if not why:
            output.say(output.clean(well(state)))
        for text in warnings(state):
            output.say(output.clean(f"warn: {text}"))
    return 1 if why else 0


def narrowed(state: State, queues: tuple[str, ...]) -> State:
    from dataclasses import replace

    return replace(state, queues=[line for line in state.queues if line.name in queues]) if queues else state


def well(state: State) -> str:
    """The one line when there is nothing to complain of."""
    from qd.cli.state import living

    alive = living(state)
    workers, ready = sum(len(m.workers) for m in alive), sum(line.sizes.ready for line in state.queues)
    ages = [line.sizes.oldest_age for line in state.queues if line.sizes.oldest_age is not None]
    count = output.count
    said = [f"{count(len(alive), 'master')} with {count(workers, 'worker')}" if alive else "no master reports"]
    said.append(f"{count(ready, 'job')} ready")
    if ages:
        said.append(f"the oldest for {output.duration(max(ages))}")
    if failed := sum(line.sizes.failed for line in state.queues):
        said.append(f"{failed} failed and kept")
    if dropped := sum(line.failed.dropped for line in state.queues):
        said.append(f"{dropped} failed and dropped")
    if state.down:
        said.append("maintenance mode" + (f" but for {' '.join(state.down.allow)}" if state.down.allow else ""))
    if any(master.laravel_down for master in alive):
        said.append("Laravel's maintenance mode")
    if paused := [line.name for line in state.queues if line.paused]:
        said.append(f"paused: {' '.join(paused)}")
    return f"ok: {', '.join(said)}"


def document(state: State, why: list[Reason]) -> dict[str, Any]:
    from qd.cli.state import living

    alive = living(state)
    queues = [
        {
            "connection": line.connection,
            "name": line.name,
            "ready": line.sizes.ready,
            "failed": line.sizes.failed,
            "failed_bytes": line.failed.bytes,
            "dropped": line.failed.dropped,
            "dropped_at": line.failed.dropped_at,
            "oldest_age_s": line.sizes.oldest_age,
            "paused": line.paused is not None,
            "workers": line.workers,
        }
        for line in state.queues
    ]
    facts = {"masters": len(alive), "workers": sum(len(m.workers) for m in alive), "queues": queues}
    found = {"reasons": told(why), "warnings": warnings(state)}
    return {"ok": not why, "at": state.now, "down": is_down(state), **found, **facts}


def warnings(state: State) -> list[str]:
    """What is worth a look and is no reason to be unwell."""
    from qd.cli.state import of_failed

    return [f"{said}; {way}" for line in state.queues for said, way in of_failed(line, state.now)]


def is_down(state: State) -> bool:
    """Whether maintenance mode holds anything back, ours or Laravel's."""
    return state.down is not None or any(master.laravel_down for master in state.masters)


def told(why: list[Reason]) -> list[dict[str, str]]:
    return [{key: value for key, value in asdict(reason).items() if value} for reason in why]
