"""`qd schedule list`: what runs when, how it last went, and what prevents it. Reads only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Any

import click

from qd.cli import context, output
from qd.cli.context import app
from qd.cli.output import by_whom
from qd.cli.schedule.state import EntryView, Overlap, moment, off, overdue, read_entries, unended, what, why_off
from qd.config.settings import Settings
from qd.options.kinds import KINDS
from qd.process.exit_codes import Exit
from qd.schedule.entry import Entry, next_of
from qd.schedule.timing import zone_of
from qd.store import schedule

WIDE = 60  # characters of what an entry does, in a table
ZONE = context.Parsed(KINDS["zone"])


@click.command("list")
@click.option("--timezone", type=ZONE, metavar="ZONE", help="Show times in this zone.  [each entry's own]")
@context.options
def list_(timezone: str | None) -> int:
    """List what runs when, how it went, what holds it back.

    If a server is unreachable, it shows what the app declares: exit 69.
    """
    context.given().only_looks = True
    own = app()
    entries, found = own.schedule.entries(), own.settings
    seen = read_entries(own, found, entries)
    if context.given().json:
        output.document(document(entries, seen, found, timezone))
    else:
        for line in above(seen):
            output.say(line)
        head = ("name", "what", "when", "zone", "next", "last", "")
        if entries:
            output.table(head, [row(entry, seen, found, timezone) for entry in entries])
        else:
            output.note("nothing is scheduled: declare an entry with app.schedule(...) or [schedule.entries.NAME]")
    for name, why in seen.away.items():
        output.note(f"qd: the state on connection {name} is unknown: {why}")
    return Exit.UNAVAILABLE if seen.away else Exit.OK


# -- for people


def above(seen: EntryView) -> Iterator[str]:
    if seen.down is not None:
        yield f"maintenance mode{by_whom(seen.down, seen.now)}; `qd up` ends it"
    if (note := seen.paused.get(schedule.ALL)) is not None:
        yield f"all entries are paused{by_whom(note, seen.now)}; `qd schedule resume` ends it"


def row(entry: Entry, seen: EntryView, found: Settings, zone: str | None) -> tuple[str, ...]:
    shown = what(entry)
    shown = shown if len(shown) <= WIDE else shown[: WIDE - 1] + "…"
    notes = "; ".join(remarks(entry, seen, found))
    zone = zone or entry.timing.zone
    return entry.name, shown, entry.timing.text, zone, coming(entry, seen, found, zone), went(entry, seen), notes


def coming(entry: Entry, seen: EntryView, found: Settings, zone: str) -> str:
    if off(entry, found):
        return "-"
    at = next_of(entry, seen.now)
    return "not within a year" if at is None else f"{moment(at, zone)} (in {output.duration(at - seen.now)})"


def went(entry: Entry, seen: EntryView) -> str:
    """`done 3m ago on app-1, took 2.0s`."""
    one = seen.last.get(entry.name)
    if one is None:
        return "-"
    parts = [f"{one.outcome} {output.ago(max(0.0, seen.now - one.ended))}{f' on {one.host}' if one.host else ''}"]
    parts += [f"took {output.duration(one.ended - one.began)}"] if one.outcome != "sent" else []
    parts += [f"{output.duration(one.late)} late"] if one.late >= 1 else []
    return ", ".join(parts) + (f": {one.detail}" if one.outcome == "failed" and one.detail else "")


def remarks(entry: Entry, seen: EntryView, found: Settings) -> Iterator[str]:
    if off(entry, found):
        yield why_off(entry, found)
    if (note := seen.paused.get(entry.name)) is not None:
        yield f"paused{by_whom(note, seen.now)}"
    yield from (held(lock, seen.now) for lock in seen.locks.get(entry.name, ()))
    if (began := unended(entry, seen)) is not None and entry.name not in seen.locks:
        yield f"started {output.ago(max(0.0, seen.now - began))}, end unknown: it runs, or died with its scheduler"
    if late := overdue(entry, seen, found):
        yield f"overdue for {output.duration(late)}"
    skip, last = seen.skipped.get(entry.name), seen.last.get(entry.name)
    if skip is not None and (last is None or skip.tick > last.tick):
        yield f"skipped {output.ago(max(0.0, seen.now - skip.ended))}: {skip.detail}"
    if entry.missed != "skip":
        yield f"missed: {entry.missed}"
    if entry.every_host:
        yield "on every host"


def held(lock: Overlap, now: float) -> str:
    if lock.job:
        return f"job {lock.job} waits or runs"
    who = f" on {lock.host}" if lock.host else ""
    who += f" (pid {lock.pid})" if lock.pid is not None else ""
    return f"runs{who}" + (f" for {output.duration(max(0.0, now - lock.at))}" if lock.at is not None else "")


# -- for programs


def document(entries: tuple[Entry, ...], seen: EntryView, found: Settings, zone: str | None) -> dict[str, Any]:
    every = seen.paused.get(schedule.ALL)
    return {
        "at": seen.now,
        "reached": not seen.away,
        "environment": found.env,
        "down": seen.down and asdict(seen.down),
        "paused": every and asdict(every),
        "entries": [described(entry, seen, found, zone or entry.timing.zone) for entry in entries],
    }


def described(entry: Entry, seen: EntryView, found: Settings, zone: str) -> dict[str, Any]:
    at = next_of(entry, seen.now)
    note = seen.paused.get(entry.name)
    return {
        "name": entry.name,
        "kind": entry.kind,
        "what": what(entry),
        "expression": entry.timing.text,
        "timezone": zone,
        "next_at": at,
        "next": None if at is None else datetime.fromtimestamp(at, zone_of(zone)).isoformat(),
        "last": run_document(seen.last.get(entry.name)),
        "skipped": run_document(seen.skipped.get(entry.name)),
        "unended_at": unended(entry, seen),
        "overdue_s": overdue(entry, seen, found),
        "locks": [asdict(lock) for lock in seen.locks.get(entry.name, ())],
        "paused": note and asdict(note),
        "off": off(entry, found),
        "environments": list(entry.environments),
        "missed": entry.missed,
        "without_overlapping": entry.alone,
        "on_every_host": entry.every_host,
        "in_background": entry.background,
        "in_maintenance": entry.in_maintenance,
        "filters": [each.why for each in entry.filters],
        "declared_at": f"{entry.origin[0]}:{entry.origin[1]}",
    }


def run_document(last: schedule.Last | None) -> dict[str, Any] | None:
    if last is None:
        return None
    facts = {"tick_at": last.tick, "began_at": last.began, "ended_at": last.ended, "outcome": last.outcome}
    return {**facts, "late_s": round(last.late, 3), "host": last.host, "detail": last.detail}
