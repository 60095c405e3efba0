"""`qd work`: from flags to the daemon. Everything else is daemon.py's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from qd import config
from qd.cli import context
from qd.cli.flags import work_flags
from qd.config import Settings
from qd.variables import VARIABLES

EXITS = (
    "Exit codes: 0 asked to stop, 1 a bug, 2 usage, 3 the app does not start, 78 settings; "
    "with --no-respawn also 1 a worker crashed, 12 memory."
)


@click.command("work", epilog=EXITS)
@work_flags
@context.options
def command(flags: Mapping[str, object]) -> int:
    """Work on the jobs of QUEUE..., the first before the second. Without names: on every queue that the app declares, in
    turn."""
    return run(flags)


def run(flags: Mapping[str, object]) -> int:
    """The daemon with these flags and the shared options. Returns its exit code."""
    from qd import daemon

    VARIABLES.begin()
    asked = context.given()
    path = Path(asked.config) if asked.config else None
    said = {**flags, **({"app": asked.app} if asked.app else {})}
    if asked.connection:
        said.setdefault("connection", asked.connection)

    def load(code: Mapping[str, object] | None) -> Settings:
        return config.load(path, flags=said, code=code)

    return daemon.run(load)
