"""What the servers know of the entries at this moment: `qd schedule list`, `qd status` and `qd doctor` read here."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qd.cli import context
from qd.cli.schedule.which import Sent, lock_keys, off, sent, where
from qd.connectors.keyspace import keys
from qd.errors import ConnectionLost
from qd.schedule import Entry, JobTask
from qd.store import schedule, stamps

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.config import Settings
    from qd.store.base import Store

MS = 0.001


@dataclass(frozen=True)
class Overlap:
    """Who has the overlap of an entry: a process on a host, or a job that waits or runs."""

    host: str = ""
    pid: int | None = None
    at: float | None = None
    job: str = ""


@dataclass
class Seen:
    """now: unix seconds by the server's clock, by this host's where it is away. away: connection -> why nothing is known of
    what stands there. ticks: entry -> the last tick that was decided."""

    now: float
    paused: dict[str, schedule.Pause] = field(default_factory=dict)
    down: stamps.Down | None = None
    last: dict[str, schedule.Last] = field(default_factory=dict)
    skipped: dict[str, schedule.Last] = field(default_factory=dict)
    ticks: dict[str, float] = field(default_factory=dict)
    locks: dict[str, list[Overlap]] = field(default_factory=dict)
    away: dict[str, str] = field(default_factory=dict)


def looked(app: Qd, found: Settings, entries: Sequence[Entry]) -> Seen:
    """Never raises for a server that is away."""
    seen = Seen(time.time())
    places = {entry.name: sent(app, entry) for entry in entries}
    for name, there in by_connection(found, entries, places).items():
        try:
            store = context.store(found, name)
            if name == found.control:
                read_notes(seen, store)
            read_ticks(seen, store, there)
            read_locks(seen, store, there, places)
        except ConnectionLost as error:
            seen.away[name] = str(error)
    return seen


def by_connection(found: Settings, entries: Sequence[Entry], places: dict[str, Sent | None]) -> dict[str, list[Entry]]:
    """Where what is known of them stands; the control connection first, also when there is none of them."""
    there: dict[str, list[Entry]] = {found.control: []}
    for entry in entries:
        there.setdefault(where(found, places[entry.name]), []).append(entry)
    return there


def read_notes(seen: Seen, store: Store) -> None:
    seen.now = store.now()
    seen.paused = schedule.paused(store, seen.now)
    seen.down = stamps.is_down(store)
    seen.last, seen.skipped = schedule.last(store), schedule.skipped(store)


def read_ticks(seen: Seen, store: Store, entries: Sequence[Entry]) -> None:
    ticks = schedule.ticked(store) if entries else {}
    of_hosts = newest_of_hosts(ticks)
    for entry in entries:
        at = of_hosts.get(entry.name) if entry.every_host else ticks.get(entry.name)
        if at is not None:
            seen.ticks[entry.name] = at


def newest_of_hosts(ticks: dict[str, float]) -> dict[str, float]:
    """Of the fields of hosts: the newest tick that any host has decided."""
    found: dict[str, float] = {}
    for name, at in ticks.items():
        entry = keys.entry_of_host(name)
        found[entry] = max(at, found.get(entry, 0.0))
    return found


def read_locks(seen: Seen, store: Store, entries: Sequence[Entry], places: dict[str, Sent | None]) -> None:
    held = [(entry.name, key) for entry in entries for key in lock_keys(store, entry, places[entry.name])]
    for (name, _), raw in zip(held, store.get(*[key for _, key in held]), strict=True):
        if raw is not None:
            seen.locks.setdefault(name, []).append(read_overlap(raw, job=places[name] is not None))


def read_overlap(raw: bytes, *, job: bool) -> Overlap:
    """Bytes that are not ours are a lock too, nobody's."""
    if job:
        return Overlap(job=raw.decode("utf-8", "replace"))
    try:
        said: Any = json.loads(raw)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        return Overlap()
    host, pid, at = said.get("host"), said.get("pid"), said.get("at")
    return Overlap(
        host if isinstance(host, str) else "",
        pid if isinstance(pid, int) else None,
        float(at) if isinstance(at, int | float) else None,
    )


def overdue(entry: Entry, seen: Seen, found: Settings) -> float:
    """Seconds since a tick that should have been decided and was not; 0: none."""
    at = seen.ticks.get(entry.name)
    if at is None or off(entry, found) or (due := entry.timing.next_after(at)) is None:
        return 0.0
    waits = seen.now - due
    return waits if waits > found.schedule.late else 0.0


def unended(entry: Entry, seen: Seen) -> float | None:
    """The last tick (unix seconds) at which a function or command was begun of whose end nothing is known: it runs, or died
    with its scheduler. Jobs are a worker's business, and of an entry on every host only the newest end is kept."""
    at = seen.ticks.get(entry.name)
    if at is None or isinstance(entry.task, JobTask) or entry.every_host or seen.away:
        return None
    known = [one.tick for one in (seen.last.get(entry.name), seen.skipped.get(entry.name)) if one is not None]
    due = entry.timing.next_after(at - MS)  # what was first seen at some moment begins there, and that is no tick
    is_tick = due is not None and abs(due - at) < MS / 2
    return at if is_tick and all(tick < at - MS / 2 for tick in known) else None
