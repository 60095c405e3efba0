"""What all hosts know of the schedule: who paused which entries, and how each last went. Schedulers write how it went and
obey the pauses; `qd schedule ...`, `qd status` and `qd doctor` read. Claims of ticks are qd.scheduler's.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from typing import Literal, NamedTuple

import msgspec

from qd.drivers.keyspace import keys
from qd.store.base import Store
from qd.store.controls import Pause as Pause
from qd.store.controls import read_pause

ALL = "*"  # the name under which every entry is paused
FORGOTTEN = (
    400 * 86400.0
)  # seconds for which an entry that is declared no more is remembered: longer than a yearly one waits
BATCH = 500  # fields a call

Outcome = Literal["sent", "done", "failed", "skipped"]


class Last(msgspec.Struct, frozen=True):
    """How an entry went. tick: the moment at which it was due; began, ended: of its run, all unix seconds of the store's
    clock; host: whose scheduler it was. detail: the job's id, the error, or why it was skipped."""

    tick: float
    began: float
    ended: float
    outcome: Outcome
    host: str = ""
    detail: str = ""

    @property
    def late(self) -> float:
        """Seconds between the moment at which it was due and its begin."""
        return max(0.0, self.began - self.tick)


_decoder = msgspec.json.Decoder(Last, strict=False)

# -- pauses


def pause(store: Store, names: Iterable[str], *, by: str, reason: str = "", seconds: float | None = None) -> Pause:
    """From the return of this call on no tick of these entries is claimed, on any host. "*": of all entries, of those
    declared later too. Whatever has begun goes on. seconds: then it ends by itself."""
    now = round(store.now(), 3)
    note = Pause(by, reason, now, None if seconds is None else round(now + seconds, 3))
    _put(store, keys.SCHEDULE_PAUSED, {name: json.dumps(asdict(note)) for name in names})
    return note


def resume(store: Store, names: Collection[str]) -> dict[str, Pause]:
    """Take these pauses away. Returns those that were there; "*" is the name of the one of all entries."""
    found = _take(store, keys.SCHEDULE_PAUSED, names)
    return read_paused(found, store.now())


def paused(store: Store, now: float | None = None) -> dict[str, Pause]:
    """The entries that are paused, "*" for all of them, with who and why. now: the store's, asked for where it is needed and
    not given. One call, or two."""
    found = store.fields(keys.SCHEDULE_PAUSED)
    notes = {name: read_pause(raw) for name, raw in found.items()}
    if now is None and any(note.until is not None for note in notes.values()):
        now = store.now()
    return {name: note for name, note in notes.items() if not over(note, now)}


def read_paused(fields: Mapping[str, bytes], now: float) -> dict[str, Pause]:
    """For those who fetched the hash in a call of their own."""
    notes = {name: read_pause(raw) for name, raw in fields.items()}
    return {name: note for name, note in notes.items() if not over(note, now)}


def over(note: Pause, now: float | None) -> bool:
    """Whether it has ended by itself. Its field stays until the next resume or sweep."""
    return note.until is not None and now is not None and note.until <= now


def pause_of(notes: Mapping[str, Pause], name: str) -> Pause | None:
    """What holds the entry `name`, that of all entries first."""
    return notes.get(ALL) or notes.get(name)


# -- how each last went


def note_each(store: Store, lasts: Mapping[str, Last]) -> None:
    """How several went, in one call or two. A tick that was skipped does not take the place of the last one that ran."""
    ran, skips = dict[str, str](), dict[str, str]()
    for entry, one in lasts.items():
        (skips if one.outcome == "skipped" else ran)[entry] = msgspec.json.encode(one).decode()
    _put(store, keys.SCHEDULE_LAST, ran)
    _put(store, keys.SCHEDULE_SKIPPED, skips)


def last(store: Store) -> dict[str, Last]:
    """Entry -> its last run, of whatever entry is remembered. What is not readable is left out."""
    return read_last(store.fields(keys.SCHEDULE_LAST))


def skipped(store: Store) -> dict[str, Last]:
    """Entry -> the last of its ticks at which nothing was run, and why."""
    return read_last(store.fields(keys.SCHEDULE_SKIPPED))


def read_last(fields: Mapping[str, bytes]) -> dict[str, Last]:
    found = {name: _read(raw) for name, raw in fields.items()}
    return {name: one for name, one in found.items() if one is not None}


def _read(raw: bytes) -> Last | None:
    try:
        return _decoder.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


# -- where the claims stand


def ticked(store: Store) -> dict[str, float]:
    """Field of the hash of claims -> unix seconds of the last tick that was decided."""
    found = {name: read_field(raw) for name, raw in store.fields(keys.TICKS).items()}
    return {name: field.at / 1000 for name, field in found.items() if field is not None}


class Field(NamedTuple):
    """at: the last tick that was decided, unix ms; token: of the claim that did it; mark: of its entry's timing then."""

    at: int
    token: str
    mark: str


def written_field(field: Field) -> bytes:
    """`<ms> <token> <mark>`."""
    return f"{field.at} {field.token} {field.mark}".encode("utf-8", "surrogatepass")


def read_field(raw: bytes) -> Field | None:
    """None: nothing of ours."""
    at, _, rest = raw.decode("utf-8", "replace").partition(" ")
    token, _, mark = rest.partition(" ")
    return Field(int(at), token, mark) if at.isdecimal() and len(at) < 16 else None


# -- what nobody declares any more


def sweep(store: Store, declared: Collection[str], now: float) -> int:
    """Forget entries that are not `declared` and were not heard of for 400 days, and pauses that are over. Returns how many
    fields went. A scheduler calls it when it starts."""
    gone = 0
    for key in (keys.SCHEDULE_LAST, keys.SCHEDULE_SKIPPED):
        found = {name: _read(raw) for name, raw in store.fields(key).items() if name not in declared}
        gone += len(_take(store, key, [name for name, one in found.items() if one is None or old(one.ended, now)]))
    notes = {name: read_pause(raw) for name, raw in store.fields(keys.SCHEDULE_PAUSED).items()}
    kept = {ALL, *declared}
    ended = [n for n, note in notes.items() if over(note, now) or (n not in kept and old(note.at or now, now))]
    return gone + len(_take(store, keys.SCHEDULE_PAUSED, ended))


def old(at: float, now: float) -> bool:
    return now - at > FORGOTTEN


# -- fields


def _put(store: Store, key: str, fields: Mapping[str, str]) -> None:
    names = list(fields)
    for start in range(0, len(names), BATCH):
        some = names[start : start + BATCH]
        store.step("hash_put", [key], *[word for name in some for word in (name, fields[name])])


def _take(store: Store, key: str, names: Collection[str]) -> dict[str, bytes]:
    """Delete them. Returns what was there."""
    found: dict[str, bytes] = {}
    every = list(names)
    for start in range(0, len(every), BATCH):
        some = every[start : start + BATCH]
        were = store.step("hash_take", [key], *some)
        found.update({name: raw for name, raw in zip(some, were, strict=True) if raw is not None})
    return found
