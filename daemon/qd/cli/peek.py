"""`qd peek`: the jobs that wait in a queue, or how many there are of each name or tag. Reads only."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, NamedTuple, cast

import click

from qd.cli import context, output
from qd.drivers.connections import gaps_of
from qd.errors import Malformed
from qd.payload.format import Payload, read, tags_of
from qd.redaction import redact
from qd.store.base import KeyspaceStore
from qd.store.waiting import Place, total, waiting

SHOWN = 20  # jobs without --limit
LONGEST = 60  # characters of the arguments in a table
UNREADABLE = "(unreadable)"
UNTAGGED = "(no tag)"


class Peeked(NamedTuple):
    """payload: None if the bytes are no job."""

    payload: Payload | None
    tags: tuple[str, ...]
    score: float | None

    @property
    def name(self) -> str:
        return self.payload.display if self.payload else UNREADABLE

    @property
    def arguments(self) -> str:
        """As JSON, without secrets."""
        return redact(bytes(self.payload.data).decode("utf-8", "replace")) if self.payload else ""


class Search:
    """Reads jobs of a queue, keeps those that fit, and counts how many were looked at."""

    def __init__(self, store: KeyspaceStore, queue: str, place: Place, job: str | None, tag: str | None) -> None:
        self.store, self.queue, self.place, self.job, self.tag = store, queue, place, job, tag
        self.looked, self.total = 0, total(store, queue, place)

    def __iter__(self) -> Iterator[Peeked]:
        for text, score in waiting(self.store, self.queue, self.place):
            self.looked += 1
            try:
                payload = read(text)
            except Malformed:
                payload = None
            found = Peeked(payload, tags_of(text) if b'"tags"' in text else (), score)
            if (self.job is None or fnmatchcase(found.name, self.job)) and (self.tag is None or self.tag in found.tags):
                yield found

    def note(self) -> str:
        """`10,000 of 1,000,000 looked at`"""
        return f"{self.looked:,} of {max(self.total, self.looked):,} looked at"


@click.command()
@click.argument("queue", metavar="QUEUE")
@click.option(
    "--state", type=click.Choice(["ready", "delayed", "reserved"]), default="ready", show_default=True,
    help="Which of its jobs.",
)  # fmt: skip
@click.option("--job", metavar="GLOB", help="Only jobs with this name; 'mail.*' is a pattern.")
@click.option("--tag", metavar="TAG", help="Only jobs with this tag.")
@click.option("--count-by", type=click.Choice(["job", "tag"]), help="Count the jobs by name or by tag.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help=f"Show at most this many.  [{SHOWN}; counts: all]")
@context.options
def peek(queue: str, state: str, job: str | None, tag: str | None, count_by: str | None, limit: int | None) -> None:
    """Show the jobs that wait in a queue.

    Reads at most the first and the last 5,000 jobs. Secrets in arguments are masked as in the log.
    """
    context.given().only_looks = True
    settings = context.settings()
    name = context.place(settings)
    limits = gaps_of(settings, name, context.own_drivers(settings, name))
    if why := limits.get("find") or limits.get("memory"):
        raise context.Refused(f"connection '{name}' cannot list the jobs of a queue: {why}")
    search = Search(context.store(settings, name), queue, cast("Place", state), job, tag)
    facts = {"connection": name, "queue": queue, "state": state}
    if count_by is not None:
        return counted(search, facts, count_by, limit)
    found = list(islice(search, limit or SHOWN))
    if context.given().json:
        return document(search, facts, jobs=[described(each, state) for each in found])
    if not found:
        return output.note(f"no {state} job {'matches; ' + search.note() if search.total else f'in {queue}'}")
    when = {"ready": "age", "delayed": "due in", "reserved": "lease ends in"}[state]
    now = search.store.now()
    rows = [(each.payload.id or each.payload.uuid or "-" if each.payload else "-", *row(each, now)) for each in found]
    output.table(("id", "job", "arguments", "tags", "attempts", when), rows, right=("attempts",))
    if job is not None or tag is not None:
        output.note(f"{len(found):,} shown, {search.note()}")
    elif len(found) < search.total:
        output.note(f"{len(found):,} of {search.total:,} shown")


def row(each: Peeked, now: float) -> tuple[object, ...]:
    arguments = each.arguments if len(each.arguments) <= LONGEST else each.arguments[: LONGEST - 1] + "…"
    created = each.payload.createdAt if each.payload else None
    seconds = each.score - now if each.score is not None else None if created is None else now - created
    attempts = each.payload.attempts if each.payload else "-"
    return each.name, arguments, ",".join(each.tags) or "-", attempts, output.duration(seconds)


def described(each: Peeked, state: str) -> dict[str, Any]:
    payload = each.payload
    facts = output.fields(payload, "id", "uuid", "attempts") if payload else dict.fromkeys(("id", "uuid", "attempts"))
    facts |= {"job": payload and payload.display, "tags": list(each.tags), "arguments": value_of(each.arguments)}
    facts["created_at"] = output.iso(payload.createdAt if payload else None)
    if state != "ready":
        facts["due_at" if state == "delayed" else "lease_ends_at"] = output.iso(each.score)
    return facts


def value_of(arguments: str) -> Any:
    """As text if it is no JSON (any more)."""
    try:
        return json.loads(arguments) if arguments else None
    except (ValueError, RecursionError):
        return arguments


def counted(search: Search, facts: dict[str, Any], by: str, limit: int | None) -> None:
    """A job with several tags counts once for each."""
    found: Counter[str] = Counter()
    for each in search:
        found.update((each.name,) if by == "job" else each.tags or (UNTAGGED,))
    ranked = sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))[:limit]
    if context.given().json:
        odd = UNREADABLE if by == "job" else UNTAGGED
        counts = [{by: None if name == odd else name, "count": count} for name, count in ranked]
        return document(search, facts, counts=counts)
    if not ranked:
        return output.note(f"no {search.place} job {'matches' if search.total else f'in {search.queue}'}")
    output.table((by, "count"), [(name, f"{count:,}") for name, count in ranked], right=("count",))
    output.note(search.note())


def document(search: Search, facts: dict[str, Any], **found: Iterable[Any]) -> None:
    head = {"schema": 1, "read_at": output.iso(search.store.now()), **facts}
    output.document({**head, "total": search.total, "looked": search.looked, **found})
