"""`qd failed list | show`: the jobs that have failed for good."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qd import units
from qd.cli import common, output

if TYPE_CHECKING:
    from qd.store.failed import FailedStore, Record, Wanted

SHOWN = 100  # records of a table, where nobody says how many
F = TypeVar("F", bound=Callable[..., Any])


@click.group("failed")
def failed() -> None:
    """List the jobs that have failed for good, look at one, send them again, or forget them."""


# -- which of them


class Moment(click.ParamType[float]):
    """A moment: "90s", "2h", "7d" ago as negative seconds; "2026-11-21", "2026-11-21T10:00" as unix seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return -units.span(value)
        except ValueError:
            pass
        try:
            return datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError, OSError):
            known = "'2h', '7d', '2026-11-21', '2026-11-21T10:00', '2026-11-21T10:00+01:00'"
            self.fail(f"{value!r} is neither a length of time ago nor a moment (as {known})", param, ctx)


@dataclass(frozen=True)
class Filters:
    """What the options of a command say. Moments as `Moment` gives them."""

    queue: tuple[str, ...] = ()
    job: str | None = None
    error: str | None = None
    text: str | None = None
    since: float | None = None
    until: float | None = None
    older_than: float | None = None

    @property
    def any(self) -> bool:
        return self != Filters()

    def wanted(self, now: float) -> Wanted:
        """now: the moment at which the command began, by the server's clock; nothing newer is meant."""
        from qd.store.failed import Wanted

        ends = [now, *(moment(at, now) for at in (self.until,) if at is not None)]
        ends += [now - self.older_than] if self.older_than is not None else []
        since = None if self.since is None else moment(self.since, now)
        return Wanted(self.job, self.error, self.text, since, min(ends))


def moment(at: float, now: float) -> float:
    return now + at if at <= 0 else at


def filters(function: F) -> F:
    """Decorator: the options that say which records; the command is given them as `Filters`."""
    add = (
        click.option(
            "-q", "--queue", multiple=True, metavar="QUEUE", help="Only those of this queue; more than once: any."
        ),
        click.option("--job", metavar="NAME", help="Only jobs of this name; 'mail.*' is any that fits."),
        click.option(
            "--error", metavar="CLASS", help="Only those that ended with this exception; '*Error' is any that fits."
        ),
        click.option("--text", metavar="TEXT", help="Only those with this text in the reason, traceback or payload."),
        click.option(
            "--since", type=Moment(), metavar="TIME", help="Only those that failed since: 2h (ago), 2026-11-21T10:00."
        ),
        click.option("--until", type=Moment(), metavar="TIME", help="Only those that had failed by then: as --since."),
        click.option(
            "--older-than", type=common.Span(), metavar="TIME", help="Only those that failed longer ago than this."
        ),
    )
    for decorator in reversed(add):
        function = decorator(function)
    return function


@dataclass(frozen=True)
class Place:
    """Where a command looks: a connection's failed stores, those of `queues`, at the moment it began."""

    store: FailedStore
    connection: str
    queues: list[str]
    now: float


def place(asked: tuple[str, ...]) -> Place:
    """Raises ConfigError, ConnectionLost."""
    from qd.store.failed import FailedStore

    found = common.settings()
    name = common.connection_name(found)
    store = common.store(found, name)
    kept = FailedStore(store)
    queues = list(asked) or kept.queues([*common.queues_named(found, name), found.connection(name).queue])
    return Place(kept, name, queues, store.now())


# -- list


@failed.command("list")
@filters
@click.option(
    "--limit", type=click.IntRange(0), metavar="N", help=f"Show this many, 0: all.  [{SHOWN}; with --json: all]"
)
@common.options
def list_(limit: int | None, **said: Any) -> None:
    """List failed jobs, the newest first."""
    common.given().only_looks = True
    which = Filters(**said)
    at = place(which.queue)
    records = at.store.records(at.queues, which.wanted(at.now))
    if common.given().json:
        return stream(islice(records, limit or None))
    most = SHOWN if limit is None else limit
    rows = [row(record, at.now) for record in islice(records, most or None)]
    if not rows:
        return output.note("nothing has failed" if not which.any else "no failed job fits")
    output.table(("id", "queue", "job", "error", "reason", "attempts", "failed"), rows, right=("attempts",))
    if most and next(records, None) is not None:
        output.note(f"the newest {most} of more; --limit 0 shows all")


def row(record: Record, now: float) -> tuple[object, ...]:
    reason = record.reason.partition("\n")[0]
    reason = reason if len(reason) <= 60 else reason[:59] + "…"
    ago = output.ago(max(0.0, now - record.failed_at))
    return record.id, record.queue, record.job or "-", record.error or "-", reason, record.attempts, ago


def stream(records: Iterator[Record]) -> None:
    """One JSON array, written as it is read: any number of records takes no more memory than one."""
    mark = "["
    for record in records:
        click.echo(mark + "\n" + json.dumps(document(record)), nl=False)
        mark = ","
    click.echo("[]" if mark == "[" else "\n]")


def document(record: Record) -> dict[str, Any]:
    names = ("id", "uuid", "queue", "job", "error", "reason", "attempts", "crashes")
    facts: dict[str, Any] = {name: getattr(record, name) for name in names}
    facts["failed_at"] = round(record.failed_at, 3)
    text = record.text()
    return facts | ({"payload": text} if text is not None else {"payload_base64": b64encode(record.payload).decode()})


# -- show


@failed.command("show")
@click.argument("id", metavar="ID")
@click.option("-q", "--queue", multiple=True, metavar="QUEUE", help="Look in this queue only.")
@common.options
def show(id: str, queue: tuple[str, ...]) -> int:
    """Show all that is kept of a failed job.

    ID is that of `qd failed list`, or what it begins with; or the job's uuid, or the id that the log tells of it.
    """
    common.given().only_looks = True
    at = place(queue)
    found = at.store.find(at.queues, [id])[id]
    if not found:
        output.note(f"qd: no failed job '{id}' (`qd failed list` shows them)")
        return 1
    one = single(id, found)
    if common.given().json:
        output.document({**document(one), "trace": one.trace, "death": one.death})
        return 0
    for line in told(one, at.now):
        output.say(line)
    return 0


def single(word: str, found: list[Record]) -> Record:
    """Raises Refused when the word means several."""
    if len(found) > 1:
        names = ", ".join(record.id for record in found[:5])
        raise common.Refused(f"'{word}' means {len(found)} failed jobs ({names}{', ...' if len(found) > 5 else ''})")
    return found[0]


def told(record: Record, now: float) -> Iterator[str]:
    """Everything for people: the facts, the traceback, how its worker died, the payload."""
    at = datetime.fromtimestamp(record.failed_at).astimezone().isoformat(" ", "seconds")
    facts = {
        "id": record.id,
        "uuid": record.uuid,
        "queue": record.queue,
        "job": record.job,
        "failed": f"{at} ({output.ago(max(0.0, now - record.failed_at))})",
        "error": f"{record.error}: {record.reason.partition(chr(10))[0]}" if record.reason else record.error,
        "attempts": record.attempts,
        "crashes": record.crashes,
    }
    died = {key: value for key, value in (record.death or {}).items() if value and key != "stack"}
    facts |= {"peak memory" if key == "peak" else key: value_of(key, value) for key, value in died.items()}
    for name, value in facts.items():
        if value not in (None, ""):
            yield output.clean(f"{name + ':':<13}{value}")
    stack = (record.death or {}).get("stack")
    parts = {"reason": record.reason if "\n" in record.reason else "", "traceback": record.trace, "stack": stack}
    for name, text in (parts | {"payload": pretty(record)}).items():
        if text:
            yield from ("", f"{name}:", *(output.clean(line) for line in str(text).splitlines()))


def value_of(key: str, value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value / 1_000_000:.0f}M" if key == "peak" else output.duration(value) if key == "took" else str(value)
    return str(value)


def pretty(record: Record) -> str:
    """The payload in lines; as it is, where it is no JSON."""
    try:
        return json.dumps(json.loads(record.payload), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return record.text() or repr(record.payload)[2:-1]
