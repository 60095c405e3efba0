"""`qd schedule work`: the daemon with a scheduler and no workers."""

from __future__ import annotations

from collections.abc import Mapping

import click

from qd.cli import context
from qd.cli import work as daemon
from qd.cli.flags import flags_of

# The options of `qd work` that mean something here, and what they mean where that is not the same.
FLAGS = {
    "pool": "use [pools.NAME] over [worker], and be called so; without it [pools.schedule] where there is one",
    "force": "run entries in maintenance mode too",
    "stop_timeout": "let what runs finish for this long when asked to stop, then end it, 0: for ever",
    "min_uptime": "",
    "no_respawn": "leave with the scheduler: exit 1 after a crash, 12 for memory, else 0",
    "no_preload": "import the app in the scheduler itself",
    "reload": "start the scheduler anew when a file changes, for development",
    "log_format": "",
    "log_level": "",
}


@click.command("work")
@flags_of(FLAGS)
@context.options
def work(flags: Mapping[str, object]) -> int:
    """Run the schedule, and no jobs: for hosts that are to have the scheduler in a process of its own.

    `qd work` does it beside its workers (--no-schedule: not). Signals, exit codes and restarts are those of `qd work`.
    """
    return daemon.run({**flags, "only_schedule": True})
