"""`qd wait`: returns once a queue is empty. Reads only."""

from __future__ import annotations

import time

import click

from qd.cli import context, output
from qd.drivers.types import Sizes

STEP = 0.5  # seconds between two looks


@click.command()
@click.argument("queue", metavar="QUEUE")
@click.option("--empty", is_flag=True, help="Wait until no job is ready, delayed or reserved.")
@click.option("--timeout", type=context.SPAN, metavar="TIME", help="Stop waiting after this long, with exit 1.")
@context.options
def wait(queue: str, empty: bool, timeout: float | None) -> int:
    """Wait until a queue is empty.

    Failed jobs do not count. Exit 1: it was not empty in time.
    """
    if not empty:
        raise click.UsageError("name what to wait for: --empty")
    settings = context.settings()
    name = context.place(settings)
    jobs, began, was_empty = context.queue(settings, name), time.monotonic(), False
    while True:
        sizes, waited = jobs.sizes(queue), time.monotonic() - began
        is_empty = not (sizes.ready or sizes.delayed or sizes.reserved)
        # The sizes are not counted in one step: a job that moves may be missed once, but not twice.
        if (is_empty and was_empty) or (not is_empty and timeout is not None and waited >= timeout):
            break
        was_empty = is_empty
        time.sleep(STEP if timeout is None or is_empty else max(0.0, min(STEP, timeout - waited)))
    if context.given().json:
        facts = {"connection": name, "queue": queue, "empty": is_empty, "waited_s": round(waited, 3)}
        output.document({"schema": 1, **facts, **output.fields(sizes, "ready", "delayed", "reserved")})
    elif is_empty:
        output.say(f"{queue} is empty")
    else:
        output.note(f"{queue} is not empty after {output.duration(timeout)}: {left_in(sizes)}")
    return int(not is_empty)


def left_in(sizes: Sizes) -> str:
    return f"{sizes.ready:,} ready, {sizes.delayed:,} delayed, {sizes.reserved:,} reserved"
