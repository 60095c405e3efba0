"""`qd failed`: the jobs that have failed for good.

The commands of `qd failed`.
"""

from __future__ import annotations

import click

from qd.cli.failed.retry import forget
from qd.cli.failed.retry import retry as retry_command
from qd.cli.failed.show import list_, show


@click.group("failed")
def failed() -> None:
    """List the jobs that have failed for good, look at one, send them again, or forget them."""


for command in (list_, show, retry_command, forget):
    failed.add_command(command)
