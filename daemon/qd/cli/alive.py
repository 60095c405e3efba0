"""`qd health --live`: do the masters of this host or container run? Their files answer; no server and no configuration is
asked, so that a server that is away restarts nobody. For liveness probes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict

from qd.cli import context, output
from qd.cli.output import duration
from qd.process import live
from qd.process.live import Live

LOST = 30.0  # seconds without its keeper: a master replaces a silent one long before


def run(pool: str | None) -> int:
    """0: every master here, or every one of `pool`, has just given a sign. 1: with the reasons."""
    masters = [each for each in live.read_all(os.environ) if pool in (None, each.pool or "default")]
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
        yield f"no master{of_pool} lives here: none gives a sign in {live.folder(os.environ)}; start `qd work`, as this user"
    for master in masters:
        who = f"{master.pool or 'default'} (pid {master.pid})"
        if master.hangs:
            yield f"{who}: the master gave no sign for {duration(master.age)}: it hangs, kill it and let it be started again"
        elif master.keeper_silent_s > LOST:
            yield f"{who}: its keeper is silent for {duration(master.keeper_silent_s)}: kill the master, to be started again"
