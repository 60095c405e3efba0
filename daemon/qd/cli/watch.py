"""`--watch N`: a command that only reads runs again every N seconds, until Ctrl-C or until nobody reads its output."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from qd.cli import context, output
from qd.errors import ConnectionLost


def watched(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: adds the option. Each run has connections of its own. A server that is away is tried again."""

    @functools.wraps(function)
    def again(*args: Any, watch: float | None, **named: Any) -> Any:
        if watch is None:
            return function(*args, **named)
        here = click.get_current_context()
        here.meta[output.ONE_LINE] = True
        while True:
            if sys.stdout.isatty() and not context.given().json:
                click.clear()
            with click.Context(here.command, info_name=here.info_name, parent=here.parent):
                try:
                    code = function(*args, **named)
                except ConnectionLost as error:
                    output.note(f"qd: {error}; trying again")
            if output.is_lost():
                return code
            time.sleep(watch)

    option = click.option(
        "--watch",
        type=click.FloatRange(min=0.1),
        metavar="N",
        help="Run again every N seconds; --json: a document a line.",
    )
    return option(again)
