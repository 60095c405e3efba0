"""Audit events: what operators did, and what happened to masters. The list qd:events of the control connection.

    commands (cli/context.py), keepers (keeper/report.py)  --record-->  qd:events  --read-->  `qd events`

An entry is text: `number first last count`, then JSON (scripts/audit.lua). The number grows with each entry; a follower
reads the entries with a number above the last one it has seen. Equal events within a minute are one entry, which gets a
new number each time, but for MILESTONES. Times are the server's.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from qd.drivers.keyspace import keys
from qd.log import cut
from qd.payload.build import new_id
from qd.process.proc import user_name
from qd.redaction import redact
from qd.store.base import KeyspaceStore

MOST = 10_000  # entries that are kept
PAGE = 500  # entries read by one call
LONGEST = 1000  # characters of a reason
# Each of these is an entry of its own: their order shows which code ran when.
MILESTONES = ("restart", "master started", "master stopped", "new code", "refused new code")


class Event(NamedTuple):
    """object: what it was done to, in words such as queue, id, pool and host. times: how often it happened."""

    what: str
    object: Mapping[str, Any]
    reason: str = ""
    times: int = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """A recorded event. count: of equal events from `first_at` to `at`, unix seconds by the server's clock."""

    number: int
    first_at: float
    at: float
    count: int
    actor: str
    what: str
    object: Mapping[str, Any]
    reason: str


def actor() -> str:
    """Who acts: QD_ACTOR, else user@host."""
    return cut(os.environ.get("QD_ACTOR", "")) or f"{user_name()}@{socket.gethostname()}"


def record(store: KeyspaceStore, *events: Event) -> None:
    """Add these events in one step, which also deletes the oldest. May raise ConnectionLost or ServerRefused."""
    args = list[str | int]()
    for event in events:
        named = {key: value if isinstance(value, int) else cut(redact(value)) for key, value in event.object.items()}
        reason = cut(redact(event.reason), LONGEST)
        text = {"actor": redact(actor()), "what": event.what, "object": named, "reason": reason}
        if event.what in MILESTONES:
            text["id"] = new_id()  # equals no other entry
        args += [event.times, json.dumps(text)]
    store.step("audit", [keys.EVENTS], MOST, *args)


def read(store: KeyspaceStore, *, after: int = 0, since: float = 0.0, most: int = MOST) -> list[Entry]:
    """The newest entries, oldest first, at most `most`. after: only those with a higher number. since: unix seconds."""
    found, below, at = list[Entry](), float("inf"), 0
    while True:
        name = store.prefix + keys.EVENTS
        page = store.space.call("LRANGE", name, -at - PAGE, -at - 1)
        for raw in reversed(page):
            entry = entry_of(raw)
            if entry is None or entry.number >= below:
                continue  # unreadable, or read before: entries were added meanwhile
            below = entry.number
            if entry.number <= after or entry.at < since or len(found) == most:
                return found[::-1]
            found.append(entry)
        if len(page) < PAGE:
            return found[::-1]
        at += PAGE


def last_number(store: KeyspaceStore) -> int:
    """The number of the newest entry; 0: there is none."""
    raw = store.space.call("LINDEX", store.prefix + keys.EVENTS, -1)
    entry = entry_of(raw) if raw is not None else None
    return 0 if entry is None else entry.number


def entry_of(raw: bytes) -> Entry | None:
    """None if it is unreadable: another version of qd, or another program, may have written it."""
    try:
        number, first, last, count, text = raw.split(b" ", 4)
        note = json.loads(text)
        actor, what, reason = (str(note[key]) for key in ("actor", "what", "reason"))
        return Entry(int(number), float(first), float(last), int(count), actor, what, dict(note["object"]), reason)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
