"""`qd move` and `qd cancel --queue`: many jobs that wait in a queue are moved or cancelled.

Each job is one step on the server, that of `qd cancel ID`: the job is deleted with what its end does to its lock and batch,
or with a push to where it goes. So however such a command is interrupted, each job is in exactly one place.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal, NamedTuple

import click

from qd.cli import context, output
from qd.config.settings import Settings
from qd.dispatch.results import CANCELLED, was_cancelled
from qd.drivers.base import Connector
from qd.drivers.connections import gaps_of
from qd.drivers.types import Found, Push, Spot, ends
from qd.errors import Malformed
from qd.options.kinds import queue_name
from qd.payload.format import read
from qd.store.base import KeyspaceStore
from qd.store.waiting import Waiting, each

SPACES = bytes.maketrans(b"01", b" \t")


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


class Sweep:
    """The ready and delayed jobs of a queue, one by one. step: takes one away; None: a dry run. leaves_keyed: those that
    wait under a key stay."""

    def __init__(
        self, store: KeyspaceStore, wanted: Wanted, step: Callable[[Found], bool] | None, *, leaves_keyed: bool
    ) -> None:
        self.store, self.wanted, self.step, self.leaves_keyed = store, wanted, step, leaves_keyed
        self.tally, self.now = Tally(), store.now()

    def run(self, queue: str) -> None:
        # The delayed ones first: while this goes on, they become ready and not the other way round. With a limit, which does
        # not want all, those that are next.
        places: tuple[Literal["delayed", "ready"], ...] = ("delayed", "ready")
        for place in places if self.wanted.limit is None else places[::-1]:
            each(self.store, queue, place, partial(self._look, queue, place))

    def _look(self, queue: str, spot: Spot, job: Waiting, behind: int) -> bool | None:
        tally, wanted = self.tally, self.wanted
        if wanted.limit is not None and tally.done >= wanted.limit:
            return None
        tally.looked += 1
        try:
            found = Found(queue, spot, job.text, read(job.text), job.score, behind)
        except Malformed:
            tally.unreadable += 1
            return False
        payload = found.payload
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
    """Decorator: which jobs of the queue."""
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
def move(
    queue: str, to: str, job: str | None, older_than: float | None, limit: int | None, dry_run: bool, yes: bool
) -> None:
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
    which = f"{f'at most {limit:,} ' if limit else ''}{job or 'all'} jobs that wait in {queue}"
    context.confirm(yes or dry_run, queue, f"this moves {which} to {to}")
    jobs, store = context.queue(found, name), context.store(found, name)
    began, at = time.monotonic(), store.now()
    step = partial(moved, jobs, to, lambda: at + time.monotonic() - began)
    sweep = Sweep(store, Wanted(job, older_than, limit), None if dry_run else step, leaves_keyed=True)
    go(found, sweep, "move", {"queue": queue, "to": to, "connection": name}, f"moved from {queue} to {to}")


def cancel_many(
    queue: str, job: str | None, older_than: float | None, limit: int | None, dry_run: bool, yes: bool
) -> None:
    """`qd cancel --queue`: as `qd cancel ID` for each waiting job that fits."""
    found = context.settings()
    name = listable(found)
    context.confirm(yes or dry_run, queue, f"this cancels {job or 'old'} jobs that wait in {queue}")
    jobs = context.queue(found, name).jobs

    def step(job: Found) -> bool:
        return jobs.drop(job, ends(job.payload, "failed", value=CANCELLED))

    wanted = Wanted(job, older_than, limit)
    sweep = Sweep(context.store(found, name), wanted, None if dry_run else step, leaves_keyed=False)
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
