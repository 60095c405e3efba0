"""`qd batch`: the batches of a connection with their callbacks and failed jobs; cancel one, or retry its failed jobs.

Batches are found by SCAN, among at most MOST keys: qd keeps no index of them.
"""

from __future__ import annotations

from typing import Any

import click

from qd.cli import context, output
from qd.cli.failed.retry import listeners_of
from qd.config.settings import Settings
from qd.dispatch.batch import failures, lost, lost_text, retried
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import chunked
from qd.drivers.keyspace.records import KeptBatches
from qd.drivers.types import BatchState
from qd.errors import UnknownBatch
from qd.payload.format import read
from qd.store.base import KeyspaceStore
from qd.store.failed import FailedStore, Record
from qd.store.failed_jobs_table import with_copies

MOST = 10_000  # keys that are scanned; a batch has up to three
CHUNK = 100  # batches, or records, that are read in one round trip
CALLBACKS = ("then", "catch", "finally")
FACTS = ("id", "name", "state", "progress", "total", "pending", "failed", "created_at", "cancelled_at", "finished_at")
limited = click.option("--limit", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="At most N.")


@click.group("batch")
def command() -> None:
    """List batches, show one, cancel it, retry its failed jobs."""


def place() -> tuple[Settings, str, KeyspaceStore]:
    settings = context.settings()
    connection = context.place(settings)
    return settings, connection, context.store(settings, connection)


def batches_of(store: KeyspaceStore) -> KeptBatches:
    return KeptBatches(store.space, store.prefix)


def state_of(store: KeyspaceStore, id: str) -> BatchState:
    """Raises QdError if there is no such batch: exit 1."""
    found = None if ":" in id else batches_of(store).state(id)
    if found is None:
        raise UnknownBatch(f"no batch '{id}' exists: `qd batch list` shows those that do")
    return found


@command.command("list")
@limited
@context.options
def list_(limit: int) -> None:
    """List batches, the newest first.

    Finished ones are kept for a day, with failed jobs for 30 days. Scans at most 10,000 keys.
    """
    context.given().only_looks = True
    _, connection, store = place()
    found = document(store, connection, limit)
    if context.given().json:
        return output.document(found)
    if found["batches"]:
        output.table(FACTS[:8], [[each[name] for name in FACTS[:8]] for each in found["batches"]], right=FACTS[3:7])
    cut = f", among the first {MOST:,} keys of the server" if found["cut"] else ""
    if cut or len(found["batches"]) < max(1, found["count"]):
        output.note(f"{len(found['batches']):,} of {found['count']:,} batches shown{cut}")


def document(store: KeyspaceStore, connection: str, limit: int) -> dict[str, Any]:
    """The newest first. count: how many were found; cut: whether the server has keys that were not looked at."""
    names, cut = store.scan(keys.batch(""), MOST)
    ids = [id for name in names if ":" not in (id := name.removeprefix(keys.batch("")))]
    found = [state for some in chunked(ids, CHUNK) for state in batches_of(store).states(some) if state is not None]
    found.sort(key=lambda state: (-state.created_at, state.id))
    head = {"schema": 1, "read_at": output.iso(store.now()), "connection": connection, "count": len(found), "cut": cut}
    return head | {"batches": [described(each) for each in found[:limit]]}


def described(state: BatchState) -> dict[str, Any]:
    ended = "running" if state.finished_at is None else "failed" if state.failed else "done"
    word = ended if state.cancelled_at is None else "cancelled"
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
    context.given().only_looks = True
    _, _, store = place()
    found = details(store, id, limit)
    if context.given().json:
        return output.document(found)
    for name in (*FACTS, "dropped"):
        if found[name] is not None:
            output.say(f"{name:<14}{found[name]}{' %' if name == 'progress' else ''}")
    for what, head in (
        ("callbacks", ("callback", "job", "queue", "sent_at")),
        ("failures", ("id", "job", "queue", "error", "reason")),
    ):
        if found[what]:
            output.say()
            output.table(head, [["-" if each[name] is None else each[name] for name in head] for each in found[what]])


def details(store: KeyspaceStore, id: str, limit: int) -> dict[str, Any]:
    """failures: at most `limit`. dropped: how many of the failed jobs cannot be retried. Raises UnknownBatch."""
    state, kept, failed = state_of(store, id), batches_of(store), FailedStore(store)
    rows = [
        failure(record)
        for queue, jobs in failures(id, kept).items()
        for some in chunked([*jobs.values()][:limit] if queue else [], CHUNK)
        for record in failed.of_ids(queue, some)
    ]
    more = {"callbacks": callbacks(store, id), "failures": rows[:limit], "dropped": lost(id, kept, failed)}
    return {"schema": 1, "read_at": output.iso(store.now())} | described(state) | more


def failure(record: Record) -> dict[str, Any]:
    facts = {"id": record.job_id, "record": record.id, "reason": record.reason.partition("\n")[0]}
    return (
        facts | output.fields(record, "job", "queue", "error", "attempts") | {"failed_at": output.iso(record.failed_at)}
    )


def callbacks(store: KeyspaceStore, id: str) -> list[dict[str, Any]]:
    fields = [field for name in CALLBACKS for field in (name, f"{name}:queue", f"{name}:sent")]
    values = chunked(store.space.call("HMGET", store.prefix + keys.batch(id), *fields), 3)
    return [
        {
            "callback": name,
            "job": read(text).display,
            "queue": queue.decode(),
            "sent_at": sent and output.iso(float(sent)),
        }
        for name, (text, queue, sent) in zip(CALLBACKS, values, strict=True)
        if text is not None
    ]


@command.command()
@click.argument("id", metavar="ID")
@context.options
def cancel(id: str) -> int:
    """Cancel a batch.

    Its jobs with the middleware SkipIfBatchCancelled are not run any more; the others are. Exit 1: it is unknown, finished
    or cancelled.
    """
    found, connection, store = place()
    left = state_of(store, id).pending
    done = batches_of(store).cancel(id)
    if done:
        context.record(found, "batch cancel", {"batch": id, "connection": connection})
    if context.given().json:
        output.document({"schema": 1, "id": id, "connection": connection, "cancelled": done})
    elif done:
        output.say(f"cancelled batch {id}; {output.count(left, 'job')} left")
    else:
        output.note(f"nothing to cancel: batch {id} is {described(state_of(store, id))['state']}")
    return int(not done)


@command.command()
@click.argument("id", metavar="ID")
@context.options
def retry(id: str) -> int:
    """Send the failed jobs of a batch again; a cancelled batch goes on.

    Exit 1: it is unknown, or none was sent.
    """
    found, connection, store = place()
    state_of(store, id)
    kept, notify, sent = with_copies(store, found.failed.database), listeners_of(connection), 0
    for queue, jobs in failures(id, batches_of(store)).items():
        for some in chunked([*jobs.values()] if queue else [], CHUNK):
            moved = retried(kept, queue, some, id)
            notify(moved)
            sent += len(moved)
    if sent:
        context.record(found, "batch retry", {"batch": id, "connection": connection, "jobs": sent})
    if gone := lost(id, batches_of(store), kept):
        output.note(f"qd: {lost_text(id, gone)}")
    if context.given().json:
        output.document({"schema": 1, "id": id, "connection": connection, "retried": sent, "dropped": gone})
    else:
        output.say(f"{output.count(sent, 'job')} sent again")
    return int(not sent)
