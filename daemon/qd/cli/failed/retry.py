"""`qd failed retry` and `forget`: failed jobs are sent again or deleted, at most a hundred in a step.

However such a command is interrupted, each job was either moved or not: run it again to do the rest. Progress is a bar
if stderr is a terminal, else a line now and then.
"""

from __future__ import annotations

import io
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import click

from qd.cli import context, output
from qd.cli.failed.filters import Filters, Place, filters, place, single
from qd.errors import QdError
from qd.store.failed import Record

EVERY = 5.0  # seconds between two progress lines
CHUNK = 100  # records in one step
HEAVY = 4 << 20  # bytes in one step, unless one record is larger
MOST = 20  # jobs that are named if they cannot be sent
NOWHERE = io.StringIO()
Step = Callable[[list["Record"]], list[str | None]]  # result for each: None if done, "" if it was gone, else why not


class Rate(click.FloatRange):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a number per second (without --rate: as fast as possible)", param, ctx)
        return found


@dataclass
class Tally:
    done: int = 0
    gone: int = 0  # retried or forgotten by another command meanwhile
    refused: list[dict[str, str]] = field(default_factory=list)  # the first MOST of them
    refusals: int = 0
    unknown: list[str] = field(default_factory=list)
    batches: set[str] = field(default_factory=set)  # of the jobs that are done

    def count(self, record: Record, why: str | None) -> None:
        if why is None:
            self.done += 1
            if record.batch is not None:
                self.batches.add(record.batch)
        elif not why:
            self.gone += 1
        else:
            self.refusals += 1
            if self.refusals <= MOST:
                self.refused.append({"id": record.job_id, "record": record.id, "reason": why})
                output.note(f"qd: {record.job_id} ({record.job or 'no job'}) stays failed: {why}")

    @property
    def code(self) -> int:
        return 1 if self.refusals or self.unknown else 0


@click.command("retry")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "every", is_flag=True, help="Every failed job matching the filters.")
@filters
@click.option("--rate", type=Rate(0, min_open=True), metavar="N", help="Send at most this many per second.")
@click.option(
    "--force", is_flag=True, help="Include those whose row in failed_jobs was retried or forgotten with artisan."
)
@click.option("--dry-run", is_flag=True, help="Only show what would be sent.")
@context.options
def retry(ids: tuple[str, ...], every: bool, rate: float | None, force: bool, dry_run: bool, **given: Any) -> int:
    """Send failed jobs to their queues again, the oldest first.

    Each starts afresh: no attempts, no crashes, and the full time of retry_for. If the command is interrupted, run it again:
    no job is lost or doubled.
    """
    which = Filters(**given)
    check_choice(ids, every, which, "send again")

    at = place(which.queue)
    # locks are only known when a retry is tried
    step: Step = (lambda chunk: at.store.refused(chunk, at.now, force=force)) if dry_run else resend(at, force)
    tally = go(at, ids, which, step, "sent again", "retried", dry_run, rate)
    tell_batches(at, sorted(tally.batches))
    return tally.code


def tell_batches(at: Place, ids: Sequence[str]) -> None:
    """Note which of these batches can never succeed, whatever is retried. Checks the first MOST of them."""
    from qd.dispatch.composite import lost, lost_text
    from qd.drivers.keyspace.records import KeptBatches

    batches = KeptBatches(at.store.store.space, at.store.store.prefix)
    for id in ids[:MOST]:
        if gone := lost(id, batches, at.store):
            output.note(f"qd: {lost_text(id, gone)}")


@click.command("forget")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "every", is_flag=True, help="Every failed job matching the filters.")
@filters
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@context.yes
@context.options
def forget(ids: tuple[str, ...], every: bool, dry_run: bool, yes: bool, **given: Any) -> int:
    """Delete failed jobs permanently.

    It asks first, but not for jobs that are named by their ids.
    """
    which = Filters(**given)
    check_choice(ids, every, which, "forget")
    at = place(which.queue)
    name = which.queue[0] if len(which.queue) == 1 else at.connection
    of = "queue" if len(which.queue) == 1 else "connection"
    context.confirm(yes or dry_run or bool(ids), name, f"this deletes failed jobs of {of} {name}")

    def step(chunk: list[Record]) -> list[str | None]:
        return [None] * len(chunk) if dry_run else at.store.forget(chunk[0].queue, chunk)

    return go(at, ids, which, step, "forgotten", "forgotten", dry_run, None).code


def check_choice(ids: Sequence[str], every: bool, which: Filters, verb: str) -> None:
    """Raises UsageError unless records are chosen in exactly one way."""
    if ids and (every or which.narrows):
        raise click.UsageError(f"'{ids[0]}' and {'--all' if every else 'filters'}: choose records in one way only")
    if not ids and not every and not which.any:
        raise click.UsageError(f"name the jobs to {verb}: ids of `qd failed list`, filters, or --all")


def chosen(at: Place, ids: Sequence[str], which: Filters, tally: Tally) -> Iterable[Record]:
    """The chosen records, queue by queue, the oldest first. Notes words that match none; raises Refused for one that
    matches several, before anything is done."""
    if not ids:
        wanted = which.wanted(at.now)
        return chain.from_iterable(at.store.of_queue(queue, wanted, newest=False) for queue in at.queues)
    found = at.store.find(at.queues, list(dict.fromkeys(ids)))
    tally.unknown = [word for word, records in found.items() if not records]
    for word in tally.unknown:
        output.note(f"qd: no failed job '{word}' (`qd failed list` shows them)")
    named = {record.id: record for word, records in found.items() if records for record in [single(word, records)]}
    return sorted(named.values(), key=lambda record: (record.queue, record.failed_at))


def chunks(records: Iterable[Record], most: int) -> Iterator[list[Record]]:
    """In order, each chunk from one queue."""
    chunk, heavy = list[Any](), 0
    for record in records:
        if chunk and (len(chunk) >= most or heavy + len(record.payload) > HEAVY or chunk[0].queue != record.queue):
            yield chunk
            chunk, heavy = [], 0
        chunk.append(record)
        heavy += len(record.payload)
    if chunk:
        yield chunk


def go(
    at: Place, ids: Sequence[str], which: Filters, step: Step, what: str, key: str, dry_run: bool, rate: float | None
) -> Tally:
    """Chunk by chunk, at most `rate` records per second; then prints what was done. what: in words; key: in the document."""
    tally, what = Tally(), f"would be {what}" if dry_run else what
    most = CHUNK if rate is None else max(1, min(CHUNK, int(rate)))
    total = len(ids) or (None if which.narrows else at.store.count(at.queues))  # None: unknown before all were read
    seen = sys.stderr.isatty() and not context.given().json
    due = noted_at = time.monotonic()
    shown = click.progressbar(chosen(at, ids, which, tally), total, show_pos=True, file=sys.stderr if seen else NOWHERE)
    try:
        with shown as records:
            for chunk in chunks(records, most):
                if rate is not None:
                    time.sleep(max(0.0, due - time.monotonic()))
                    due = max(due, time.monotonic() - 1.0) + len(chunk) / rate
                for record, why in zip(chunk, step(chunk), strict=True):
                    tally.count(record, why)
                if not seen and time.monotonic() - noted_at >= EVERY:
                    noted_at = time.monotonic()
                    output.note(f"{output.count(tally.done, 'job')} {what} so far")
    finally:  # also if it was interrupted
        if tally.done and not dry_run:
            note_done(at, ids, which, "failed retry" if key == "retried" else "failed forget", tally.done)
    if context.given().json:
        would = {"would": tally.done} if dry_run else {}
        facts = output.fields(tally, "gone", "refusals", "refused", "unknown")
        output.document({key: 0 if dry_run else tally.done, **would, **facts})
        return tally
    if tally.refusals > MOST:
        output.note(f"qd: {tally.refusals} stay failed, the first {MOST} are named above")
    if tally.done or not tally.code:
        output.say(f"{output.count(tally.done, 'job')} {what}")
    return tally


def note_done(at: Place, ids: Sequence[str], which: Filters, what: str, done: int) -> None:
    named = {"id": ", ".join(ids), "queue": ", ".join(which.queue), "job": which.job, "error": which.error}
    chosen = {key: value for key, value in named.items() if value}
    context.record(context.settings(), what, {"connection": at.connection, **chosen, "jobs": done})


def resend(at: Place, force: bool) -> Step:
    notify = listeners_of(at.connection)

    def step(chunk: list[Record]) -> list[str | None]:
        results = at.store.retry(chunk[0].queue, chunk, at.store.store.now(), force=force)
        notify([record for record, why in zip(chunk, results, strict=True) if why is None])
        return results

    return step


def listeners_of(connection: str) -> Callable[[list[Record]], None]:
    """Notifies the app's listeners which jobs were sent again; does nothing if no app is named, or it does not import."""
    from qd.dispatch.composite import emit_retried

    try:
        found = context.app_if_named(context.loaded())
    except QdError as error:
        output.note(f"qd: listeners of JobRetryRequested are not notified: {error}")
        found = None
    if found is None:
        return lambda records: None
    return partial(emit_retried, found._listeners, connection)
