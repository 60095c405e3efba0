"""`qd schedule`: show, run and pause the entries of the schedule."""

from __future__ import annotations

import click

from qd.cli.schedule.entries import clear_locks, list_, pause, resume
from qd.cli.schedule.run import run, test
from qd.cli.work import work


@click.group("schedule")
def schedule() -> None:
    """Show what runs when, run it, pause it."""


for command in (work, run, list_, test, pause, resume, clear_locks):
    schedule.add_command(command)
