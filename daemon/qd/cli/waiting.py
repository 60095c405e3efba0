"""What waits in a queue: `qd peek` shows it, `qd move` and `qd cancel --queue` take many jobs, `qd clear` deletes all,
`qd wait` returns once there is nothing.

To move or cancel a job is one step on the server, that of `qd cancel ID`: the job is deleted with what its end does to its
lock and batch, or with a push to where it goes. So however such a command is interrupted, each job is in exactly one place.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple, cast

import click

from qd.cli import context, output
from qd.cli.state import note_unknown
from qd.config.settings import Settings
from qd.dispatch.results import CANCELLED, was_cancelled
from qd.drivers.base import Connector
from qd.drivers.connections import gaps_of
from qd.drivers.types import Found, Push, Spot, ends
from qd.options.kinds import queue_name
from qd.payload.encryption import hidden
from qd.payload.format import Payload, readable, tags_of
from qd.redaction import redact
from qd.store.base import KeyspaceStore
from qd.store.waiting import Place, Waiting, total, waiting
from qd.store.waiting import each as each_of

STATES = ("ready", "delayed", "reserved")
SHOWN = 20  # jobs without --limit
STEP = 0.5  # seconds between two looks of `qd wait`
LONGEST = 60  # characters of the arguments in a table
SPACES = bytes.maketrans(b"01", b" \t")
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
        return hidden(redact(bytes(self.payload.data).decode("utf-8", "replace"))) if self.payload else ""


class Search:
    """Reads jobs of a queue, keeps those that fit, and counts how many were looked at."""

    def __init__(self, store: KeyspaceStore, queue: str, place: Place, job: str | None, tag: str | None) -> None:
        self.store, self.queue, self.place, self.job, self.tag = store, queue, place, job, tag
        self.looked, self.total = 0, total(store, queue, place)

    def __iter__(self) -> Iterator[Peeked]:
        for text, score in waiting(self.store, self.queue, self.place):
            self.looked += 1
            found = Peeked(readable(text), tags_of(text) if b'"tags"' in text else (), score)
            if (self.job is None or fnmatchcase(found.name, self.job)) and (self.tag is None or self.tag in found.tags):
                yield found

    def note(self) -> str:
        """`10,000 of 1,000,000 looked at`"""
        return f"{self.looked:,} of {max(self.total, self.looked):,} looked at"


@click.command()
@click.argument("queue", metavar="QUEUE")
@click.option(
    "--state", type=click.Choice(STATES), default="ready", show_default=True, help="Show the jobs in this state."
)
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
    name = listable(settings)
    search = Search(context.store(settings, name), queue, cast("Place", state), job, tag)
    if not search.total:
        note_unknown(settings, [name], queue)
    facts = {"connection": name, "queue": queue, "state": state}
    if count_by is not None:
        return counted(search, facts, count_by, limit)
    found = list(islice(search, limit or SHOWN))
    if context.given().json:
        return document(search, facts, jobs=[described(each, state) for each in found])
    if not found:
        delayed = total(search.store, queue, "delayed") if state == "ready" and not search.total else 0
        more = f"; {delayed:,} delayed: qd peek {output.quote(queue)} --state delayed" if delayed else ""
        return output.note(f"no {state} job {'matches; ' + search.note() if search.total else f'in {queue}{more}'}")
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


# -- many jobs


class Wanted(NamedTuple):
    """job: a name or pattern. older_than: seconds since it was sent."""

    job: str | None
    older_than: float | None
    limit: int | None


@dataclass
class Tally:
    """done: jobs that were moved or cancelled, or would be. gone: a worker was quicker. Others stay: keyed, because their
    key belongs to their queue; ageless, because they have no time; unreadable, because they are no jobs."""

    done: int = 0
    looked: int = 0
    gone: int = 0
    keyed: int = 0
    ageless: int = 0
    unreadable: int = 0


@dataclass
class Sweep:
    """The ready and delayed jobs of a queue, one by one. step: takes one away; None: a dry run. leaves_keyed: those that
    wait under a key stay. now: by the server's clock."""

    store: KeyspaceStore
    wanted: Wanted
    step: Callable[[Found], bool] | None
    now: float
    leaves_keyed: bool = False
    tally: Tally = field(default_factory=Tally)

    def run(self, queue: str) -> None:
        # The delayed ones first: while this goes on, they become ready and not the other way round. With a limit, which does
        # not want all, those that are next.
        places: tuple[Literal["delayed", "ready"], ...] = ("delayed", "ready")
        for place in places if self.wanted.limit is None else places[::-1]:
            each_of(self.store, queue, place, partial(self._look, queue, place))

    def _look(self, queue: str, spot: Spot, job: Waiting, behind: int) -> bool | None:
        tally, wanted = self.tally, self.wanted
        if wanted.limit is not None and tally.done >= wanted.limit:
            return None
        tally.looked += 1
        if (payload := readable(job.text)) is None:
            tally.unreadable += 1
            return False
        found = Found(queue, spot, job.text, payload, job.score, behind)
        if (wanted.job is not None and not fnmatchcase(payload.display, wanted.job)) or was_cancelled(found):
            return False
        if wanted.older_than is not None and payload.createdAt is None:
            tally.ageless += 1
            return False
        if wanted.older_than is not None and self.now - (payload.createdAt or 0.0) < wanted.older_than:
            return False
        if self.leaves_keyed and payload.qd is not None and payload.qd.key is not None:
            tally.keyed += 1
            return False
        there = self.step is None or self.step(found)
        tally.done += there
        tally.gone += not there
        return self.step is not None


def filters(function: Any) -> Any:
    """Decorator: which jobs of a queue are moved or cancelled."""
    return context.decorated(
        function,
        click.option("--older-than", type=context.SPAN, metavar="TIME", help="Only jobs sent longer ago than this."),
        click.option("--limit", type=click.IntRange(1), metavar="N", help="At most N jobs."),
        click.option("--dry-run", is_flag=True, help="Only count them."),
        context.yes,
    )


def listable(found: Settings) -> str:
    """The connection, on which single jobs of a queue can be found. Raises Refused."""
    name = context.place(found)
    limits = gaps_of(found, name, context.own_drivers(found, name))
    if why := limits.get("find") or limits.get("memory"):
        raise context.Refused(f"connection '{name}' cannot list the jobs of a queue: {why}")
    return name


def moved(jobs: Connector, to: str, now: Callable[[], float], found: Found) -> bool:
    """Move one job to the tail of `to`; a delayed one is due when it was. False: it is no longer there."""
    delay = max(0.0, found.score - now()) if found.score is not None else 0.0
    text = found.text
    if delay and not (found.payload.uuid or found.payload.id):
        # Equal payloads would be one member of the sorted set: make it another text with the same meaning (later.lua).
        text += bin(time.time_ns())[2:].encode().translate(SPACES)
    return jobs.jobs.drop(found, [Push(to, text, delay)])


@click.command()
@click.argument("queue", metavar="QUEUE")
@click.option("--to", required=True, metavar="QUEUE", help="The queue to which they go, on the same connection.")
@click.option("--job", metavar="GLOB", help="Only jobs with this name; 'mail.*' is a pattern.")
@filters
@context.options
def move(queue: str, to: str, job: str | None, dry_run: bool, yes: bool, **which: Any) -> None:
    """Move waiting jobs to another queue.

    Ready jobs go to its end in their order, delayed ones are due when they were. Running jobs stay, and those that wait
    under a key. If the command is interrupted, run it again: no job is lost or doubled.
    """
    try:
        queue_name(to)
    except ValueError as error:
        raise click.UsageError(f"--to: {error}") from None
    if to == queue:
        raise click.UsageError(f"--to {to} is the queue itself")
    found = context.settings()
    name = listable(found)
    wanted = Wanted(job, **which)
    jobs_of_it = f"{f'at most {wanted.limit:,} ' if wanted.limit else ''}{job or 'all'} jobs that wait in {queue}"
    context.confirm(yes or dry_run, queue, f"this moves {jobs_of_it} to {to}")
    jobs, store = context.queue(found, name), context.store(found, name)
    began, at = time.monotonic(), store.now()
    step = partial(moved, jobs, to, lambda: at + time.monotonic() - began)
    sweep = Sweep(store, wanted, None if dry_run else step, at, leaves_keyed=True)
    go(found, sweep, "move", {"queue": queue, "to": to, "connection": name}, f"moved from {queue} to {to}")


def cancel_many(queue: str, job: str | None, dry_run: bool, yes: bool, **which: Any) -> None:
    """`qd cancel --queue`: as `qd cancel ID` for each waiting job that fits."""
    found = context.settings()
    name = listable(found)
    context.confirm(yes or dry_run, queue, f"this cancels {job or 'old'} jobs that wait in {queue}")
    jobs, store = context.queue(found, name).jobs, context.store(found, name)

    def step(job: Found) -> bool:
        return jobs.drop(job, ends(job.payload, "failed", value=CANCELLED))

    sweep = Sweep(store, Wanted(job, **which), None if dry_run else step, store.now())
    go(found, sweep, "cancel", {"queue": queue, "connection": name}, f"cancelled in {queue}")


def go(found: Settings, sweep: Sweep, what: str, facts: dict[str, str], words: str) -> None:
    dry_run, tally = sweep.step is None, sweep.tally
    try:
        sweep.run(facts["queue"])
    finally:  # also if it was interrupted
        named = facts | ({"job": sweep.wanted.job} if sweep.wanted.job else {})
        if tally.done and not dry_run:
            context.record(found, what, named | {"jobs": tally.done})
    if context.given().json:
        counts = asdict(tally) | {"done": 0 if dry_run else tally.done, "would": tally.done if dry_run else None}
        return output.document({"schema": 1, **facts, "dry_run": dry_run, **counts})
    for number, why in (
        (tally.gone, "were taken by a worker meanwhile"),
        (tally.keyed, "stay: they wait under a key, which belongs to their queue"),
        (tally.ageless, "stay: they do not say when they were sent"),
        (tally.unreadable, "stay: they are no jobs"),
    ):
        if number:
            output.note(f"{output.count(number, 'job')}: {why}")
    output.say(f"{output.count(tally.done, 'job')} {'would be ' if dry_run else ''}{words}")


@click.command()
@click.argument("queue", metavar="QUEUE")
@click.option("--dry-run", is_flag=True, help="Only count them.")
@context.yes
@context.options
def clear(queue: str, dry_run: bool, yes: bool) -> None:
    """Delete the ready and delayed jobs of a queue.

    Running and failed jobs are not affected.
    """
    found = context.settings()
    place = context.place(found)
    context.confirm(yes or dry_run, queue, f"this deletes the ready and delayed jobs of {queue}")
    jobs, facts = context.queue(found, place), {"queue": queue, "connection": place}
    if dry_run:
        sizes = jobs.sizes(queue)
        count = sizes.ready + sizes.delayed
        if context.given().json:
            return output.document({**facts, "deleted": 0, "would": count})
        return output.say(f"{queue}: {count} would be deleted")
    count = jobs.clear(queue)
    if count:
        context.record(found, "clear", facts | {"jobs": count})
    if context.given().json:
        return output.document({**facts, "deleted": count})
    output.say(f"{queue}: {count} deleted")


@click.command()
@click.argument("queue", metavar="QUEUE")
@click.option("--empty", is_flag=True, help="Wait until no job is ready, delayed or reserved.")
@click.option("--timeout", type=context.SPAN, metavar="TIME", help="Stop waiting after this long, with exit 1.")
@context.options
def wait(queue: str, empty: bool, timeout: float | None) -> int:
    """Wait until a queue is empty.

    Failed jobs do not count. An unknown queue counts as empty; a warning names it. Exit 1: it was not empty in time.
    """
    if not empty:
        raise click.UsageError("name what to wait for: --empty")
    settings = context.settings()
    name = context.place(settings)
    jobs, began, was_empty = context.queue(settings, name), time.monotonic(), None
    while True:
        sizes, waited = jobs.sizes(queue), time.monotonic() - began
        is_empty = not (sizes.ready or sizes.delayed or sizes.reserved)
        if is_empty and was_empty is None:
            note_unknown(settings, [name], queue)
        # The sizes are not counted in one step: a job that moves may be missed once, but not twice.
        if (is_empty and was_empty) or (not is_empty and timeout is not None and waited >= timeout):
            break
        was_empty = is_empty
        time.sleep(STEP if timeout is None or is_empty else max(0.0, min(STEP, timeout - waited)))
    if context.given().json:
        facts = {"connection": name, "queue": queue, "empty": is_empty, "waited_s": round(waited, 3)}
        output.document({"schema": 1, **facts, **output.fields(sizes, "ready", "delayed", "reserved")})
    elif is_empty:
        output.say(f"{queue} is empty")
    else:
        left = f"{sizes.ready:,} ready, {sizes.delayed:,} delayed, {sizes.reserved:,} reserved"
        output.note(f"{queue} is not empty after {output.duration(timeout)}: {left}")
    return int(not is_empty)
