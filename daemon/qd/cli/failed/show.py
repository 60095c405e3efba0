"""`qd failed list` and `show`: which jobs failed, when, where and why. Reads only."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any

import click

from qd.cli import context, output
from qd.cli.failed.filters import Filters, filters, place, single
from qd.store.failed import Record

SHOWN = 100  # records of a table without --limit


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
