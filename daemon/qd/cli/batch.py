"""`qd batch`: the batches of a connection with their callbacks and failed jobs; cancel one, or retry its failed jobs.

Batches are found by SCAN, among at most MOST keys: qd keeps no index of them.
"""

from __future__ import annotations

from typing import Any

import click

from qd.cli import context, output
from qd.cli.failed import Source, resend
from qd.dispatch.composite import failures, lost, lost_text
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import chunked
from qd.drivers.keyspace.records import KeptBatches
from qd.drivers.types import BatchState
from qd.errors import unknown_batch
from qd.payload.format import read
from qd.store.base import KeyspaceStore
from qd.store.failed import FailedStore
from qd.store.failed_jobs_table import with_copies

MOST = 10_000  # keys that are scanned; a batch has up to three
CHUNK = 100  # records of failed jobs that are read, or sent again, in one step
FACTS = ("id", "name", "state", "progress", "total", "pending", "failed", "created_at", "cancelled_at", "finished_at")
limited = click.option("--limit", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="At most N.")


@click.group("batch")
def command() -> None:
    """List batches, show one, cancel it, retry its failed jobs."""


def opened(store: KeyspaceStore, id: str) -> tuple[KeptBatches, BatchState]:
    """Raises UnknownBatch: exit 1."""
    kept = KeptBatches(store.space, store.prefix)
    if ":" in id or (state := kept.state(id)) is None:
        raise unknown_batch(id)
    return kept, state


@command.command("list")
@limited
@context.options
def list_(limit: int) -> None:
    """List batches, the newest first.

    Finished ones are kept for a day, with failed jobs for 30 days. Scans at most 10,000 keys.
    """
    found = document(*context.opened(looks=True)[1:], limit)
    if context.given().json:
        return output.document(found)
    if found["batches"]:
        output.table(FACTS[:8], [[*each.values()][:8] for each in found["batches"]], right=FACTS[3:7])
    output.shown(len(found["batches"]), found["count"], "batches", MOST * found["cut"])


def document(connection: str, store: KeyspaceStore, limit: int) -> dict[str, Any]:
    """The newest first. count: how many were found; cut: whether the server has keys that were not looked at."""
    names, cut = store.scan(keys.batch(""), MOST)
    ids = [id for name in names if ":" not in (id := name.removeprefix(keys.batch("")))]
    found = [state for state in KeptBatches(store.space, store.prefix).states(ids) if state is not None]
    found.sort(key=lambda state: (-state.created_at, state.id))
    head = {"schema": 1, "read_at": output.iso(store.now()), "connection": connection, "count": len(found), "cut": cut}
    return head | {"batches": [described(each) for each in found[:limit]]}


def described(state: BatchState) -> dict[str, Any]:
    ended = "cancelled" if state.cancelled_at else "failed" if state.failed else "done"
    word = ended if state.cancelled_at or state.finished_at else "running"
    times = {name: output.iso(getattr(state, name)) for name in FACTS[7:]}
    return output.fields(state, *FACTS[:2]) | {"state": word} | output.fields(state, *FACTS[3:7]) | times


@command.command()
@click.argument("id", metavar="ID")
@limited
@context.options
def show(id: str, limit: int) -> None:
    """Show a batch: its progress, callbacks and failed jobs.

    Exit 1: it is unknown.
    """
    found = details(context.opened(looks=True)[2], id, limit)
    if context.given().json:
        return output.document(found)
    for name in (*FACTS, "dropped"):
        if found[name] is not None:
            output.say(f"{name:<14}{found[name]}{' %' if name == 'progress' else ''}")
    for what in ("callbacks", "failures"):
        if rows := [["-" if value is None else value for value in each.values()] for each in found[what]]:
            output.say()
            output.table([*found[what][0]], rows)


def details(store: KeyspaceStore, id: str, limit: int) -> dict[str, Any]:
    """failures: at most `limit`. dropped: how many of the failed jobs cannot be retried. Raises UnknownBatch."""
    (kept, state), failed, rows = opened(store, id), FailedStore(store), list[dict[str, Any]]()
    for queue, jobs in failures(id, kept).items():
        for some in chunked([*jobs.values()][:limit] if queue else [], CHUNK):
            for record in failed.of_ids(queue, some):
                facts = {"id": record.job_id} | output.fields(record, "job", "queue", "attempts", "error")
                facts |= {"reason": record.reason.partition("\n")[0], "failed_at": output.iso(record.failed_at)}
                rows.append(facts | {"record": record.id})
    stored, after = store.fields(keys.batch(id)), list[dict[str, Any]]()
    for name in (each for each in ("then", "catch", "finally") if each in stored):
        at = stored.get(f"{name}:sent")
        facts = {"callback": name, "job": read(stored[name]).display, "queue": stored[f"{name}:queue"].decode()}
        after.append(facts | {"sent_at": at and output.iso(float(at))})
    more = {"callbacks": after, "failures": rows[:limit], "dropped": lost(id, kept, failed)}
    return {"schema": 1, "read_at": output.iso(store.now())} | described(state) | more


@command.command()
@click.argument("id", metavar="ID")
@context.options
def cancel(id: str) -> int:
    """Cancel a batch.

    Its jobs with the middleware SkipIfBatchCancelled are not run any more. Exit 1: it is unknown, finished or cancelled.
    """
    found, connection, store = context.opened()
    kept, state = opened(store, id)
    if done := kept.cancel(id):
        context.record(found, "batch cancel", {"batch": id, "connection": connection})
    if context.given().json:
        output.document({"schema": 1, "id": id, "connection": connection, "cancelled": done})
    elif done:
        output.say(f"cancelled batch {id}; {output.count(state.pending, 'job')} left")
    else:
        output.note(f"nothing to cancel: batch {id} is {described(state)['state']}")
    return int(not done)


@command.command()
@click.argument("id", metavar="ID")
@context.options
def retry(id: str) -> int:
    """Send the failed jobs of a batch again, and resume it.

    Exit 1: it is unknown, or none was sent.
    """
    found, connection, store = context.opened()
    kept, failed = opened(store, id)[0], with_copies(store, found.failed.database)
    step, sent = resend(Source(failed, connection, [], store.now()), False, id), 0
    for queue, jobs in failures(id, kept).items():
        for some in chunked([*jobs.values()] if queue else [], CHUNK):
            sent += step(records).count(None) if (records := failed.of_ids(queue, some)) else 0
    if sent:
        context.record(found, "batch retry", {"batch": id, "connection": connection, "jobs": sent})
    if gone := lost(id, kept, failed):
        output.note(f"qd: {lost_text(id, gone)}")
    if context.given().json:
        output.document({"schema": 1, "id": id, "connection": connection, "retried": sent, "dropped": gone})
    else:
        output.say(f"{output.count(sent, 'job')} sent again")
    return int(not sent)
