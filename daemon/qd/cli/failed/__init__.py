"""`qd failed`: the jobs that have failed permanently."""

from __future__ import annotations

import click

from qd.cli.failed.retry import forget
from qd.cli.failed.retry import retry as retry_command
from qd.cli.failed.show import list_, show, summary


@click.group("failed")
def failed() -> None:
    """List failed jobs, show one, send them again, or delete."""


for command in (list_, summary, show, retry_command, forget):
    failed.add_command(command)
