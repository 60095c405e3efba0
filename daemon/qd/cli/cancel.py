"""`qd cancel`: a job that waits will never run, one that runs is told to end. By its id, or by the key it was sent with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qd.bus.results import Asked
from qd.bus.route import name_of
from qd.cli import context, output
from qd.cli.context import app_if_named
from qd.cli.job import looked_for, masters_of, names
from qd.cli.queues import queue_of

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.config import Settings


@click.command()
@click.argument("id", metavar="[ID]", required=False)
@click.option("--job", metavar="NAME", help="The job's name.")
@click.option("--key", metavar="KEY", help="The key it was sent with.")
@click.option(
    "-q", "--queue", metavar="QUEUE", help="It waits in this queue.  [default: the job's, else the connection's]"
)
@context.options
def cancel(id: str | None, job: str | None, key: str | None, queue: str | None) -> int:
    """Cancel a job by its id, or the one that waits under a key.

    One that waits will never run; one that runs, found by its id, is told to end. Exit 1: there is none to cancel.
    """
    if id is None and job is not None and key is not None:
        return by_key(job, key, queue)
    if id is None or job is not None or key is not None:
        raise click.UsageError("give either the ID of a job, or both --job NAME and --key KEY")
    return by_id(context.settings(), id, queue)


def by_id(found: Settings, id: str, queue: str | None) -> int:
    """Looked for on every connection, unless one is named; there in one queue, or in every one that somebody names, works
    on, or has sent jobs to."""
    masters = masters_of(found)

    def there(name: str) -> tuple[str, str] | None:
        return cancelled_on(
            found, name, id, [queue] if queue else names(found, name, context.store(found, name), masters)
        )

    connection, was = looked_for(found, there) or (context.connection_name(found), None)
    if context.given().json:
        output.document({"id": id, "connection": connection, "was": was, "cancelled": was is not None})
    elif was is None:
        output.note(output.clean(f"nothing to cancel: the job {id} has ended, or nobody knows it"))
    else:
        output.say(output.clean(f"cancelled {id}" + ("; its worker is told to end it" if was == "running" else "")))
    return int(was is None)


def cancelled_on(found: Settings, connection: str, id: str, queues: list[str]) -> tuple[str, str] | None:
    """The connection, and where the job was that is cancelled; None: there was none to cancel."""
    jobs = context.queue(found, connection).jobs
    for name in queues:
        if (spot := jobs.find(name, id, ("delayed", "ready", "running"))) is not None:
            return (connection, spot.spot) if Asked(lambda: jobs, name).cancel(id) else None
    return None


def by_key(job: str, key: str, queue: str | None) -> int:
    told = queue is not None and context.given().connection is not None  # then the app has nothing to add
    found = None if told else app_if_named(context.loaded())
    place = place_of(found, job)
    queue = queue or (queue_of(found, job, {}) if found else context.settings().connection(place).queue)
    cancelled = context.queue(context.settings(), place).cancel_keyed(queue, name_of(job, key))
    if context.given().json:
        output.document({"job": job, "key": key, "queue": queue, "connection": place, "cancelled": cancelled})
    elif cancelled:
        output.say(output.clean(f"cancelled {job} {key} in {queue}"))
    else:
        output.note(output.clean(f"no {job} waits under {key} in {queue}"))
    return 0 if cancelled else 1


def place_of(app: Qd | None, job: str) -> str:
    """The connection: the one that is asked for, else the job's own, else the default one."""
    declared = app._registry.get(job) if app else None
    if declared is None or declared.options.connection is None or context.given().connection:
        return context.place(context.settings())
    return declared.options.connection
