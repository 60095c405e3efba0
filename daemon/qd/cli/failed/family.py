"""The commands of `qd failed`."""

from __future__ import annotations

import click

from qd.cli.failed.again import forget, retry
from qd.cli.failed.look import list_, show


@click.group("failed")
def failed() -> None:
    """List the jobs that have failed for good, look at one, send them again, or forget them."""


for command in (list_, show, retry, forget):
    failed.add_command(command)
