"""`qd cancel`: a job that waits, by the key it was sent with, will never run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qd.bus.route import name_of
from qd.cli import common, output
from qd.cli.apps import app_if_named
from qd.cli.queues import queue_of

if TYPE_CHECKING:
    from qd.app import Qd


@click.command()
@click.option("--job", metavar="NAME", required=True, help="The job's name.")
@click.option("--key", metavar="KEY", required=True, help="The key it was sent with.")
@click.option(
    "-q", "--queue", metavar="QUEUE", help="It waits in this queue.  [default: the job's, else the connection's]"
)
@common.options
def cancel(job: str, key: str, queue: str | None) -> int:
    """Cancel the job that waits under a key.

    Exit 0: it waited, and will never run. Exit 1: nothing waits under this key; it runs, has run, or was never there.
    """
    found = app_if_named(common.loaded())
    place = place_of(found, job)
    queue = queue or (queue_of(found, job, {}) if found else common.settings().connection(place).queue)
    cancelled = common.queue(common.settings(), place).cancel_keyed(queue, name_of(job, key))
    if common.given().json:
        output.document({"job": job, "key": key, "queue": queue, "connection": place, "cancelled": cancelled})
    elif cancelled:
        output.say(output.clean(f"cancelled {job} {key} in {queue}"))
    else:
        output.note(output.clean(f"no {job} waits under {key} in {queue}"))
    return 0 if cancelled else 1


def place_of(app: Qd | None, job: str) -> str:
    """The connection: the one that is asked for, else the job's own, else the default one."""
    declared = app.registry.get(job) if app else None
    if declared is None or declared.options.connection is None or common.given().connection:
        return common.connection_name(common.settings())
    return declared.options.connection
