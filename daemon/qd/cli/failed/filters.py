"""Which failed jobs a command applies to: the options of `qd failed` commands, and the queues they read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

from qd.cli import context
from qd.options import kinds
from qd.store.failed import FailedStore, Record, Wanted

F = TypeVar("F", bound=Callable[..., Any])
Moment = float | timedelta  # unix seconds, or a time ago


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
    def any(self) -> bool:
        return self != Filters()

    @property
    def narrows(self) -> bool:
        """Whether any filter but the queue is given."""
        return replace(self, queue=()).any

    def wanted(self, now: float) -> Wanted:
        """now: when the command began, by the server's clock; newer failures are excluded."""
        from qd.store.failed import Wanted

        older = None if self.older_than is None else now - self.older_than
        until = min(end for end in (now, moment(self.until, now), older) if end is not None)
        return Wanted(self.job, self.error, self.text, moment(self.since, now), until)


def moment(at: Moment | None, now: float) -> float | None:
    return now - at.total_seconds() if isinstance(at, timedelta) else at


def filters(function: F) -> F:
    """Decorator: adds the filter options; the command turns their values into `Filters`."""
    return context.decorated(
        function,
        click.option("-q", "--queue", multiple=True, metavar="QUEUE", help="Only of this queue; repeat for several."),
        click.option("--job", metavar="NAME", help="Only jobs with this name; 'mail.*' is a pattern."),
        click.option(
            "--error", metavar="CLASS", help="Only those that failed with this exception; '*Error' is a pattern."
        ),
        click.option("--text", metavar="TEXT", help="Only those with this text in the reason, traceback or payload."),
        click.option(
            "--since", type=TIME, metavar="TIME", help="Only those that failed since: 2h (ago), 2026-11-21T10:00."
        ),
        click.option("--until", type=TIME, metavar="TIME", help="Only those that failed before; written as --since."),
        click.option(
            "--older-than", type=context.SPAN, metavar="TIME", help="Only those that failed longer ago than this."
        ),
    )


@dataclass(frozen=True)
class Place:
    """The failed stores that a command reads: of a connection and `queues`, when it began."""

    store: FailedStore
    connection: str
    queues: list[str]
    now: float


def place(chosen: tuple[str, ...], *, changes: bool = True) -> Place:
    """changes: the command retries or forgets jobs, so copies in failed_jobs follow. Raises ConfigError, ConnectionLost."""
    from qd.store.failed_jobs_table import with_copies

    found = context.settings()
    name = context.place(found)
    store = context.store(found, name)
    kept = with_copies(store, found.failed.database if changes else "")
    queues = list(chosen) or kept.queues([*context.queues_named(found, name), found.connection(name).queue])
    return Place(kept, name, queues, store.now())


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
