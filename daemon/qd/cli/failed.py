"""`qd failed`: the jobs that have failed permanently.

filters                   which of them a command applies to: options of most commands here, and of the dashboard
list, summary, show       when, where and why they failed; read only
retry, forget             send them again or delete them, at most a hundred in a step

However retry or forget is interrupted, each job was either moved or not: run it again to do the rest.
"""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import Any

import click

from qd.cli import context, output
from qd.errors import QdError
from qd.options import kinds
from qd.payload.encryption import hidden
from qd.store.failed import EVERY, FailedStore, Record, Wanted
from qd.store.failed_jobs_table import DatabaseError, with_copies

SHOWN = 100  # records of a table without --limit
NEWEST = 10_000  # records that a summary reads without --all
PROGRESS = 5.0  # seconds between two progress lines
CHUNK = 100  # records in one step
HEAVY = 4 << 20  # bytes in one step, unless one record is larger
MOST = 20  # jobs that are named if they cannot be sent
Moment = float | timedelta  # unix seconds, or a time ago
Step = Callable[[list[Record]], list[str | None]]  # result for each: None if done, "" if it was gone, else why not


@click.group("failed")
def failed() -> None:
    """List, show, retry or delete failed jobs."""


# -- filters


def time_of(text: str) -> Moment:
    """A point in time: "90s", "2h", "7d" ago, or "2026-11-21", "2026-11-21T10:00". Raises ValueError."""
    with suppress(ValueError, OverflowError):
        return timedelta(seconds=kinds.span(text))
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        known = "'2h', '7d', '2026-11-21', '2026-11-21T10:00', '2026-11-21T10:00+01:00'"
        raise ValueError(f"{text!r} is neither a time ago nor a date (such as {known})") from None


TIME = context.Parsed(time_of)


@dataclass(frozen=True)
class Filters:
    queue: tuple[str, ...] = ()
    job: str | None = None
    error: str | None = None
    text: str | None = None
    since: Moment | None = None
    until: Moment | None = None
    older_than: float | None = None

    @property
    def narrows(self) -> bool:
        """Whether any filter but the queue is given."""
        return replace(self, queue=()) != Filters()

    def wanted(self, now: float) -> Wanted:
        """now: when the command began, by the server's clock; newer failures are excluded."""
        older = None if self.older_than is None else now - self.older_than
        until = min(end for end in (now, moment(self.until, now), older) if end is not None)
        return Wanted(self.job, self.error, self.text, moment(self.since, now), until)


def moment(at: Moment | None, now: float) -> float | None:
    return now - at.total_seconds() if isinstance(at, timedelta) else at


def filters(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: adds the filter options; the command turns their values into `Filters`."""
    option = click.option
    return context.decorated(
        function,
        option("-q", "--queue", multiple=True, metavar="QUEUE", help="Only of this queue; repeat for several."),
        option("--job", metavar="NAME", help="Only jobs with this name; 'mail.*' is a pattern."),
        option("--error", metavar="CLASS", help="Only those that failed with this exception; '*Error' is a pattern."),
        option("--text", metavar="TEXT", help="Only those with this text in the reason, traceback or payload."),
        option("--since", type=TIME, metavar="TIME", help="Only those that failed since: 2h (ago), 2026-11-21T10:00."),
        option("--until", type=TIME, metavar="TIME", help="Only those that failed before; written as --since."),
        option("--older-than", type=context.SPAN, metavar="TIME", help="Only those that failed longer ago than this."),
    )


@dataclass(frozen=True)
class Source:
    """The failed stores that a command reads: of a connection and `queues`, when it began."""

    store: FailedStore
    connection: str
    queues: list[str]
    now: float


def source(chosen: tuple[str, ...], *, changes: bool = True) -> Source:
    """changes: the command retries or forgets jobs, so copies in failed_jobs follow. Raises ConfigError, ConnectionLost."""
    found = context.settings()
    name = context.place(found)
    store = context.store(found, name)
    kept = with_copies(store, found.failed.database if changes else "")
    queues = list(chosen) or kept.queues([*context.queues_named(found, name), found.connection(name).queue])
    return Source(kept, name, queues, store.now())


def single(word: str, found: list[Record]) -> Record:
    """The one record that `word`, an id or its beginning, names. Raises Refused if it names several."""
    whole = [record for record in found if word in (record.id, record.uuid, record.job_id)]
    found = whole or found
    if len(found) == 1:
        return found[0]
    ids = {record.job_id for record in found}
    if len(ids) == 1:
        names = ", ".join(f"{record.id} of queue {record.queue}" for record in found[:5])
        what = f"is the id of {len(found)} failed jobs; name one by its record instead"
    else:
        names, what = ", ".join(sorted(ids)[:5]), f"means {len(found)} failed jobs"
    raise context.Refused(f"'{word}' {what} ({names}{', ...' if len(found) > 5 else ''})")


# -- reading


@failed.command("list")
@filters
@click.option("--limit", type=click.IntRange(0), metavar="N", help=f"Show this many, 0: all.  [{SHOWN}; --json: all]")
@context.options
def list_(limit: int | None, **given: Any) -> None:
    """List failed jobs, the newest first."""
    context.given().only_looks = True
    which = Filters(**given)
    at = source(which.queue, changes=False)
    records = at.store.records(at.queues, which.wanted(at.now))
    if context.given().json:
        return stream(islice(records, limit or None))
    most = SHOWN if limit is None else limit
    rows = [row(record, at.now) for record in islice(records, most or None)]
    if not rows:
        return output.note("nothing has failed" if which == Filters() else "no failed job matches")
    output.table(("id", "queue", "job", "error", "reason", "attempts", "failed"), rows, right=("attempts",))
    if most and next(records, None) is not None:
        output.note(f"the newest {most} of more; --limit 0 shows all")


def row(record: Record, now: float) -> tuple[object, ...]:
    reason = record.reason.partition("\n")[0]
    reason = reason if len(reason) <= 60 else reason[:59] + "…"
    ago = output.ago(max(0.0, now - record.failed_at))
    return record.job_id, record.queue, record.job or "-", record.error or "-", reason, record.attempts, ago


def stream(records: Iterator[Record]) -> None:
    """One JSON array, written record by record to bound memory."""
    mark = "["
    for record in records:
        click.echo(mark + "\n" + json.dumps(document(record)), nl=False)
        mark = ","
    click.echo("[]" if mark == "[" else "\n]")


def document(record: Record) -> dict[str, Any]:
    own = output.fields(record, "uuid", "queue", "job", "error", "reason", "attempts", "crashes")
    facts: dict[str, Any] = {"id": record.job_id, "record": record.id, **own}
    count, first = record.failures
    facts |= {"failed_at": round(record.failed_at, 3), "failures": count, "first_failed_at": round(first, 3)}
    text = record.text()
    return facts | ({"payload": text} if text is not None else {"payload_base64": b64encode(record.payload).decode()})


@dataclass
class Group:
    """The failed jobs with one name and one exception. first, last: unix seconds at which they failed."""

    job: str | None
    error: str
    first: float
    last: float
    count: int = 0
    queues: set[str] = field(default_factory=set)

    def add(self, record: Record) -> None:
        self.count += 1
        self.queues.add(record.queue)
        self.first, self.last = min(self.first, record.failed_at), max(self.last, record.failed_at)


@failed.command("summary")
@filters
@click.option("--all", "every", is_flag=True, help=f"Read all failed jobs, not only the newest {NEWEST:,}.")
@context.options
def summary(every: bool, **given: Any) -> None:
    """Count failed jobs by name and exception."""
    context.given().only_looks = True
    which = Filters(**given)
    at = source(which.queue, changes=False)
    wanted = which.wanted(at.now)
    # records() returns those of the time that is wanted, so that `looked` counts also those that do not fit otherwise.
    records = at.store.records(at.queues, replace(wanted, job=None, error=None, text=None))
    found, looked = grouped(islice(records, None if every else NEWEST), wanted)
    more, total = next(records, None) is not None, at.store.count(at.queues)
    if context.given().json:
        facts = {"schema": 1, "read_at": output.iso(at.now), "connection": at.connection, "total": total}
        return output.document({**facts, "looked": looked, "complete": not more, "groups": [*map(described, found)]})
    if not found:
        output.note("nothing has failed" if not total else "no failed job matches")
    else:
        names = [(each.job or "-", each.error or "-", ",".join(sorted(each.queues))) for each in found]
        rows = [(each.count, *words, *times(each, at.now)) for each, words in zip(found, names, strict=True)]
        output.table(("count", "job", "error", "queues", "first", "last"), rows, right=("count",))
    if more:
        output.note(f"the newest {looked:,} of {total:,} failed jobs looked at; --all reads all")


def grouped(records: Iterable[Record], wanted: Wanted = EVERY) -> tuple[list[Group], int]:
    """The wanted ones in groups, the largest first, and how many were read."""
    groups, looked = dict[tuple[str | None, str], Group](), 0
    for record in records:
        looked += 1
        if wanted.fits(record):
            kind = record.job, record.error
            groups.setdefault(kind, Group(*kind, record.failed_at, record.failed_at)).add(record)
    return sorted(groups.values(), key=lambda group: (-group.count, -group.last)), looked


def times(group: Group, now: float) -> tuple[str, str]:
    return output.ago(max(0.0, now - group.first)), output.ago(max(0.0, now - group.last))


def described(group: Group) -> dict[str, Any]:
    facts = output.fields(group, "job", "error", "count") | {"queues": sorted(group.queues)}
    return facts | {"first_failed_at": output.iso(group.first), "last_failed_at": output.iso(group.last)}


@failed.command("show")
@click.argument("id", metavar="ID")
@click.option("-q", "--queue", multiple=True, metavar="QUEUE", help="Search only this queue.")
@context.options
def show(id: str, queue: tuple[str, ...]) -> int:
    """Show everything that is stored of a failed job.

    ID is the job's id, as in `qd failed list`, the log and `qd job`, or its beginning; or the job's uuid.
    """
    context.given().only_looks = True
    at = source(queue, changes=False)
    found = at.store.find(at.queues, [id])[id]
    if not found:
        output.note(f"qd: no failed job '{id}' (`qd failed list` shows them)")
        return 1
    one = single(id, found)
    if context.given().json:
        output.document({**document(one), "trace": one.trace, "death": one.death})
        return 0
    for line in lines_of(one, at.now):
        output.say(line)
    return 0


def lines_of(record: Record, now: float) -> Iterator[str]:
    count, first = record.failures
    failed = moment_of(record.failed_at, now)
    facts = {"id": record.job_id, **output.fields(record, "uuid", "queue", "job")}
    facts["failed"] = failed if count == 1 else f"{count} times, first {moment_of(first, now)}, last {failed}"
    facts["error"] = f"{record.error}: {record.reason.partition(chr(10))[0]}" if record.reason else record.error
    facts |= output.fields(record, "attempts", "crashes")
    died = {key: value for key, value in (record.death or {}).items() if value and key != "stack"}
    facts |= {"peak memory" if key == "peak" else key: value_of(key, value) for key, value in died.items()}
    for name, value in facts.items():
        if value not in (None, ""):
            yield f"{name + ':':<13}{value}"
    stack = (record.death or {}).get("stack")
    parts = {"reason": record.reason if "\n" in record.reason else "", "traceback": record.trace, "stack": stack}
    for name, text in (parts | {"payload": pretty(record)}).items():
        if text:
            yield from ("", f"{name}:", *str(text).splitlines())


def moment_of(at: float, now: float) -> str:
    stamp = datetime.fromtimestamp(at).astimezone().isoformat(" ", "seconds")
    return f"{stamp} ({output.ago(max(0.0, now - at))})"


def value_of(key: str, value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value / 1_000_000:.0f}M" if key == "peak" else output.duration(value) if key == "took" else str(value)
    return str(value)


def pretty(record: Record) -> str:
    """The payload, indented; unchanged if it is not JSON."""
    try:
        return json.dumps(json.loads(hidden(record.text() or "")), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return record.text() or repr(record.payload)[2:-1]


# -- retry and forget


def rate_of(text: str) -> float:
    if not 0 < (rate := float(text)) < float("inf"):
        raise ValueError(f"{text!r} is not a number per second (without --rate: as fast as possible)")
    return rate


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


@failed.command("retry")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "every", is_flag=True, help="Every failed job matching the filters.")
@filters
@click.option("--rate", type=context.Parsed(rate_of), metavar="N", help="Send at most this many per second.")
@click.option(
    "--force", is_flag=True, help="Also those whose row in failed_jobs was retried or forgotten with artisan."
)
@click.option("--dry-run", is_flag=True, help="Only show what would be sent.")
@context.options
def retry(ids: tuple[str, ...], every: bool, rate: float | None, force: bool, dry_run: bool, **given: Any) -> int:
    """Requeue failed jobs, the oldest first.

    Each starts afresh: no attempts, no crashes, and the full time of retry_for. If the command is interrupted, run it again:
    no job is lost or doubled.
    """
    from qd.dispatch.composite import lost, lost_text
    from qd.drivers.keyspace.records import KeptBatches

    which = Filters(**given)
    check_choice(ids, every, which, "send again")
    at = source(which.queue)
    # locks are only known when a retry is tried
    step: Step = (lambda chunk: at.store.refused(chunk, at.now, force=force)) if dry_run else resend(at, force)
    tally = go(at, ids, which, step, "sent again", "retried", dry_run, rate)
    batches = KeptBatches(at.store.store.space, at.store.store.prefix)
    for id in sorted(tally.batches)[:MOST]:  # note which can never succeed, whatever is retried
        if gone := lost(id, batches, at.store):
            output.note(f"qd: {lost_text(id, gone)}")
    return tally.code


@failed.command("forget")
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
    at = source(which.queue)
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
    if not ids and not every and which == Filters():
        raise click.UsageError(f"name the jobs to {verb}: ids of `qd failed list`, filters, or --all")


def chosen(at: Source, ids: Sequence[str], which: Filters, tally: Tally) -> Iterable[Record]:
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
    at: Source, ids: Sequence[str], which: Filters, step: Step, what: str, key: str, dry_run: bool, rate: float | None
) -> Tally:
    """Chunk by chunk, at most `rate` records per second; then prints what was done. what: in words; key: in the document."""
    tally, what = Tally(), f"would be {what}" if dry_run else what
    most = CHUNK if rate is None else max(1, min(CHUNK, int(rate)))
    due = noted_at = time.monotonic()
    try:
        for chunk in chunks(chosen(at, ids, which, tally), most):
            if rate is not None:
                time.sleep(max(0.0, due - time.monotonic()))
                due = max(due, time.monotonic() - 1.0) + len(chunk) / rate
            for record, why in zip(chunk, step(chunk), strict=True):
                tally.count(record, why)
            if time.monotonic() - noted_at >= PROGRESS:
                noted_at = time.monotonic()
                output.note(f"{output.count(tally.done, 'job')} {what} so far")
    except DatabaseError as error:
        before = f"{output.count(tally.done, 'job')} {what} before" if tally.done else "nothing was changed"
        raise DatabaseError(f"{before}: {error.fact}", error.fix) from None
    finally:  # also if it was interrupted
        if tally.done and not dry_run:
            named = {"id": ", ".join(ids), "queue": ", ".join(which.queue), "job": which.job, "error": which.error}
            given = {key: value for key, value in named.items() if value}
            event = "failed retry" if key == "retried" else "failed forget"
            context.record(context.settings(), event, {"connection": at.connection, **given, "jobs": tally.done})
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


def resend(at: Source, force: bool, batch: str | None = None) -> Step:
    """The app's listeners are notified which jobs were sent again, if an app is named and imports. batch: is resumed."""
    from qd.dispatch.composite import emit_retried

    app = None
    try:
        app = context.app_if_named(context.loaded())
    except QdError as error:
        output.note(f"qd: listeners of JobRetryRequested are not notified: {error}")

    def step(chunk: list[Record]) -> list[str | None]:
        results = at.store.retry(chunk[0].queue, chunk, at.store.store.now(), force=force, resumes=batch)
        if app is not None:
            sent = [record for record, why in zip(chunk, results, strict=True) if why is None]
            emit_retried(app._listeners, at.connection, sent)
        return results

    return step
