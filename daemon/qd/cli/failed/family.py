"""The commands of `qd failed`."""

from __future__ import annotations

import click

from qd.cli.failed.again import forget
from qd.cli.failed.again import retry as retry_command
from qd.cli.failed.look import list_, show


@click.group("failed")
def failed() -> None:
    """List the jobs that have failed for good, look at one, send them again, or forget them."""


for command in (list_, show, retry_command, forget):
    failed.add_command(command)
