"""`qd failed list`, `summary` and `show`: which jobs failed, when, where and why. Reads only."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Any

import click

from qd.cli import context, output
from qd.cli.failed.filters import Filters, filters, place, single
from qd.store.failed import EVERY, Record, Wanted

SHOWN = 100  # records of a table without --limit
NEWEST = 10_000  # records that a summary reads without --all


@click.command("list")
@filters
@click.option(
    "--limit", type=click.IntRange(0), metavar="N", help=f"Show this many, 0: all.  [{SHOWN}; with --json: all]"
)
@context.options
def list_(limit: int | None, **given: Any) -> None:
    """List failed jobs, the newest first."""
    context.given().only_looks = True
    which = Filters(**given)
    at = place(which.queue, changes=False)
    records = at.store.records(at.queues, which.wanted(at.now))
    if context.given().json:
        return stream(islice(records, limit or None))
    most = SHOWN if limit is None else limit
    rows = [row(record, at.now) for record in islice(records, most or None)]
    if not rows:
        return output.note("nothing has failed" if not which.any else "no failed job matches")
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


@click.command("summary")
@filters
@click.option("--all", "every", is_flag=True, help=f"Read all failed jobs, not only the newest {NEWEST:,}.")
@context.options
def summary(every: bool, **given: Any) -> None:
    """Count failed jobs by name and exception."""
    context.given().only_looks = True
    which = Filters(**given)
    at = place(which.queue, changes=False)
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
        rows = [
            (each.count, each.job or "-", each.error or "-", ",".join(sorted(each.queues)), *times(each, at.now))
            for each in found
        ]
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


@click.command("show")
@click.argument("id", metavar="ID")
@click.option("-q", "--queue", multiple=True, metavar="QUEUE", help="Search only this queue.")
@context.options
def show(id: str, queue: tuple[str, ...]) -> int:
    """Show everything that is stored of a failed job.

    ID is the job's id, as in `qd failed list`, the log and `qd job`, or its beginning; or the job's uuid.
    """
    context.given().only_looks = True
    at = place(queue, changes=False)
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
    facts = {
        "id": record.job_id,
        "uuid": record.uuid,
        "queue": record.queue,
        "job": record.job,
        "failed": failed if count == 1 else f"{count} times, first {moment_of(first, now)}, last {failed}",
        "error": f"{record.error}: {record.reason.partition(chr(10))[0]}" if record.reason else record.error,
        "attempts": record.attempts,
        "crashes": record.crashes,
    }
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
        return json.dumps(json.loads(record.payload), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return record.text() or repr(record.payload)[2:-1]
