"""State of the schedule that all hosts share: pauses of entries, and the last run of each entry.

Schedulers write the last runs and obey the pauses; `qd schedule ...`, `qd status` and `qd doctor` read both. Schedulers also
write the claims of ticks.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from typing import Literal, NamedTuple

import msgspec

from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import chunked
from qd.store.base import Store, decoded
from qd.store.controls import Pause as Pause
from qd.store.controls import new_pause, read_pause

ALL = "*"  # the name of the pause of all entries
FORGOTTEN = 400 * 86400.0  # seconds until an undeclared entry is deleted: longer than a yearly one waits
BATCH = 500  # fields per call

Outcome = Literal["sent", "done", "failed", "skipped"]


class Last(msgspec.Struct, frozen=True):
    """One run of an entry. tick: when it was due; began, ended: of its run; all unix seconds by the store's clock. host: of
    its scheduler. detail: the job's id, the error, or why it was skipped."""

    tick: float
    began: float
    ended: float
    outcome: Outcome
    host: str = ""
    detail: str = ""

    @property
    def late(self) -> float:
        """Seconds from its tick to its start."""
        return max(0.0, self.began - self.tick)


_decoder = msgspec.json.Decoder(Last, strict=False)

# -- pauses


def pause(store: Store, names: Iterable[str], *, by: str, reason: str = "", seconds: float | None = None) -> Pause:
    """Once this returns, no host claims a tick of these entries. "*": all entries, also those declared later. Running ones
    continue. seconds: how long; None: until `resume`."""
    note = new_pause(store, by, reason, seconds)
    _put(store, keys.SCHEDULE_PAUSED, {name: json.dumps(asdict(note)) for name in names})
    return note


def resume(store: Store, names: Collection[str]) -> dict[str, Pause]:
    """End these pauses; "*" is the pause of all entries. Returns those that existed."""
    found = _take(store, keys.SCHEDULE_PAUSED, names)
    return read_paused(found, store.now())


def paused(store: Store, now: float | None = None) -> dict[str, Pause]:
    """The paused entries and their pauses; "*" is the pause of all entries. now: by the store's clock, which is read if it
    is not given."""
    fields = store.fields(keys.SCHEDULE_PAUSED)
    return read_paused(fields, store.now() if now is None and fields else now or 0.0)


def read_paused(fields: Mapping[str, bytes], now: float) -> dict[str, Pause]:
    """As `paused`, from the fields of the hash."""
    notes = {name: read_pause(raw) for name, raw in fields.items()}
    return {name: note for name, note in notes.items() if not over(note, now)}


def over(note: Pause, now: float) -> bool:
    """Whether it has expired. Its field stays until the next resume or sweep."""
    return note.until is not None and note.until <= now


def pause_of(notes: Mapping[str, Pause], name: str) -> Pause | None:
    """The pause of the entry `name`; that of all entries takes precedence."""
    return notes.get(ALL) or notes.get(name)


# -- last runs


def note_each(store: Store, lasts: Mapping[str, Last]) -> None:
    """Write the last runs of several entries. Skipped ticks are kept apart and do not replace the last run."""
    ran, skips = dict[str, str](), dict[str, str]()
    for entry, one in lasts.items():
        (skips if one.outcome == "skipped" else ran)[entry] = msgspec.json.encode(one).decode()
    _put(store, keys.SCHEDULE_LAST, ran)
    _put(store, keys.SCHEDULE_SKIPPED, skips)


def last(store: Store) -> dict[str, Last]:
    """Entry -> its last run, also of entries that are no longer declared."""
    return read_last(store.fields(keys.SCHEDULE_LAST))


def skipped(store: Store) -> dict[str, Last]:
    """Entry -> its last skipped tick, and why."""
    return read_last(store.fields(keys.SCHEDULE_SKIPPED))


def read_last(fields: Mapping[str, bytes]) -> dict[str, Last]:
    found = {name: decoded(_decoder, raw) for name, raw in fields.items()}
    return {name: one for name, one in found.items() if one is not None}


# -- claims of ticks


def ticked(store: Store) -> dict[str, float]:
    """Entry -> unix seconds of the last tick that was decided."""
    found = {name: read_field(raw) for name, raw in store.fields(keys.TICKS).items()}
    return {name: field.at / 1000 for name, field in found.items() if field is not None}


class Field(NamedTuple):
    """The claim of an entry. at: the last decided tick, unix ms; token: of the claim; mark: of the entry's timing then."""

    at: int
    token: str
    mark: str


def written_field(field: Field) -> bytes:
    """`<ms> <token> <mark>`."""
    return f"{field.at} {field.token} {field.mark}".encode("utf-8", "surrogatepass")


def read_field(raw: bytes) -> Field | None:
    """None: not a claim."""
    at, _, rest = raw.decode("utf-8", "replace").partition(" ")
    token, _, mark = rest.partition(" ")
    return Field(int(at), token, mark) if at.isdecimal() and len(at) < 16 else None


# -- cleanup


def sweep(store: Store, declared: Collection[str], now: float) -> int:
    """Delete entries that are not `declared` and did not run for 400 days, and expired pauses. Returns how many. Called
    when a scheduler starts."""
    gone, before = 0, now - FORGOTTEN
    for key in (keys.SCHEDULE_LAST, keys.SCHEDULE_SKIPPED):
        found = {name: decoded(_decoder, raw) for name, raw in store.fields(key).items() if name not in declared}
        gone += len(_take(store, key, [name for name, one in found.items() if one is None or one.ended < before]))
    notes = {name: read_pause(raw) for name, raw in store.fields(keys.SCHEDULE_PAUSED).items()}
    kept = {ALL, *declared}
    ended = [n for n, note in notes.items() if over(note, now) or (n not in kept and (note.at or now) < before)]
    return gone + len(_take(store, keys.SCHEDULE_PAUSED, ended))


# -- fields


def _put(store: Store, key: str, fields: Mapping[str, str]) -> None:
    for some in chunked(list(fields.items()), BATCH):
        store.step("hash_put", [key], *[word for pair in some for word in pair])


def _take(store: Store, key: str, names: Collection[str]) -> dict[str, bytes]:
    """Delete these fields. Returns their values."""
    found: dict[str, bytes] = {}
    for some in chunked(list(names), BATCH):
        values = store.step("hash_take", [key], *some)
        found.update({name: raw for name, raw in zip(some, values, strict=True) if raw is not None})
    return found
