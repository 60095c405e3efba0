"""`qd top`: a live screen of the fleet.

reader.py   a thread of its own: reads the servers -> View; also does what keys ask for
view.py     View -> lines of (text, style), without Textual
screen.py   the Textual app: keys, focus, and the drawing of lines that have changed
"""

from __future__ import annotations

import sys

import click

from qd.cli import context
from qd.errors import ConfigError


def on_terminal() -> bool:
    """Textual reads stdin and writes to stderr; stdout decides as for every command."""
    return all(stream is not None and stream.isatty() for stream in (sys.__stdin__, sys.__stdout__, sys.__stderr__))


@click.command("top")
@context.options
def command() -> None:
    """Watch queues and workers on a live screen, and act on them.

    Keys are shown at the bottom; `?` explains them. Needs a terminal and the extra: pip install 'qd-worker[top]'.
    """
    if context.given().json:
        raise click.UsageError("a live screen has no --json; use `qd status --json` and `qd queues --json`")
    if not on_terminal():
        raise context.Refused("stdin, stdout and stderr must be a terminal; elsewhere use `qd status` and `qd queues`")
    try:
        from qd.cli.top.screen import Top
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise ConfigError("the library 'textual' is not installed: pip install 'qd-worker[top]'") from None
    from qd.cli.top.reader import Reader

    reader = Reader(context.settings())
    try:
        Top(reader, reader.call(reader.read).result()).show()
    finally:
        reader.close()
