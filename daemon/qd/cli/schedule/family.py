"""The commands of `qd schedule`."""

from __future__ import annotations

import click

from qd.cli.schedule.look import list_
from qd.cli.schedule.minute import run
from qd.cli.schedule.steer import clear_locks, pause, resume
from qd.cli.schedule.trial import test
from qd.cli.schedule.work import work


@click.group("schedule")
def schedule() -> None:
    """Show what runs when, run it, pause it."""


for command in (work, run, list_, test, pause, resume, clear_locks):
    schedule.add_command(command)
