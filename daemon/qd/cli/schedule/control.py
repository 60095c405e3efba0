"""`qd schedule pause`, `resume` and `clear-locks`: obeyed by every scheduler on every host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import click

from qd.app import Qd
from qd.cli import context, output
from qd.cli.context import app, app_if_named
from qd.cli.schedule.show import held
from qd.cli.schedule.state import Overlap, lock_keys, named, read_overlap, sent, where
from qd.config.settings import Settings
from qd.schedule.entry import Entry
from qd.store import schedule


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option("--for", "seconds", type=context.SPAN, metavar="TIME", help="Resume automatically after this long.")
@click.option("--reason", default="", metavar="TEXT", help="Reason, shown by `qd schedule list`.")
@context.options
def pause(names: tuple[str, ...], seconds: float | None, reason: str) -> None:
    """Skip the ticks of these entries, on every host.

    Without NAME: of all entries, also those declared later.

    Runs continue. Skipped ticks are gone: a resumed entry runs at its next one.
    """
    if seconds == 0:
        raise click.UsageError("--for 0 would end at once; leave it out to pause until `qd schedule resume`")
    found = checked(names)
    store = context.store(found, found.control)
    note = schedule.pause(store, names or [schedule.ALL], by=context.operator(), reason=reason, seconds=seconds)
    context.record(found, "schedule pause", *[{"entry": name} for name in names or (schedule.ALL,)], reason=reason)
    if context.given().json:
        return output.document({"paused": [{"entry": name, **asdict(note)} for name in names or (schedule.ALL,)]})
    for name in names or ("",):
        ends = f"`qd schedule resume{name and f' {output.quote(name)}'}`"
        until = f"until {ends}" if seconds is None else f"for {output.duration(seconds)}"
        output.say(f"{name or 'all entries'}: paused {until}")


def checked(names: tuple[str, ...]) -> Settings:
    """The configuration. Raises Refused for a name that the app does not declare, if there is an app."""
    found = context.loaded()
    if not names:
        return context.settings()
    own = app_if_named(found)
    if own is None:
        output.note("qd: no app is named, so it is unknown whether such entries exist")
        return found
    named(own.schedule.entries(), names)
    return own.settings


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME...]")
@context.options
def resume(names: tuple[str, ...]) -> None:
    """Let entries run again, from their next tick.

    Without NAME: all that are paused.
    """
    found = context.settings()
    store = context.store(found, found.control)
    there = {schedule.ALL, *schedule.paused(store)}
    unknown = [name for name in names if name not in there]  # a paused entry may no longer be declared
    if unknown:
        checked(tuple(unknown))
    were = schedule.resume(store, names or list(schedule.paused(store)))
    context.record(found, "schedule resume", *[{"entry": name} for name in were])
    every = bool(names) and schedule.ALL in schedule.paused(store)
    if context.given().json:
        listed = [{"entry": name, "was_paused": name in were} for name in names or were]
        return output.document({"resumed": listed, "all_paused": every})
    for name in names or were:
        result = "resumed" if name in were else "was not paused"
        output.say(f"{'all entries' if name == schedule.ALL else name}: {result}")
    if not names and not were:
        output.say("nothing was paused")
    if every:
        output.note("all entries are still paused: `qd schedule resume` without a name resumes them")


@click.command("clear-locks")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@context.options
def clear_locks(names: tuple[str, ...]) -> None:
    """Free the locks of entries without overlapping.

    Without NAME: of all entries, regardless of the holder.

    A running entry continues, and may then run twice at once. Locks end by themselves: that of a run within [schedule] lease
    after its host has died, that of a job with the job.
    """
    own = app()
    entries = named(own.schedule.entries(), names)
    found = own.settings
    freed = [(entry.name, lock) for entry in entries for lock in free(own, found, entry)]
    if context.given().json:
        return output.document({"freed": [{"entry": name, **asdict(lock)} for name, lock in freed]})
    now = context.store(found, found.control).now()
    for name, lock in freed:
        output.say(f"{name}: freed; {held(lock, now)}")
    if not freed:
        output.say("no lock was taken")


def free(own: Qd, found: Settings, entry: Entry) -> Iterator[Overlap]:
    """Free its locks. Yields their holders."""
    place = sent(own, entry)
    store = context.store(found, where(found, place))
    for key in lock_keys(store, entry, place):
        if (raw := store.take(key)) is not None:
            yield read_overlap(raw, job=place is not None)
