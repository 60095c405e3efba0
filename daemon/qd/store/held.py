"""Locks and limits as an operator sees them: which exist, who holds them, for how long; and how one is freed.

    kind       made by              key                held by
    lock       app.lock             qd:mutex:{NAME}    a process: host/pid/id
    limit      ConcurrencyLimit     qd:slots:NAME      a job in each place: its uuid
    overlap    WithoutOverlapping   qd:lock:NAME       a job: its uuid
    unique     unique=              qd:unique:NAME     the job that waits or runs: its uuid (and id)

Names are found by SCAN, among at most MOST keys for each kind; a lock whose whole name is given is always found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg, chunked
from qd.store.base import KeyspaceStore
from qd.store.locks import Lease, Mutex, Places

Kind = Literal["lock", "limit", "overlap", "unique"]
KINDS: Sequence[Kind] = get_args(Kind)
KEYS: Mapping[Kind, Callable[[str], str]] = dict(
    zip(KINDS, (keys.mutex, keys.slots, keys.lock, keys.unique), strict=True)
)
MOST = 10_000  # keys that are scanned for each kind
CHUNK = 200  # locks that are read in one round trip


class Held(NamedTuple):
    """owner: as stored, by which `free` knows that it has not changed. holder: of a place, which attempt. since, until: unix
    seconds; None: unknown, or forever. waiting: owners in line for an app.lock."""

    kind: Kind
    name: str
    owner: str
    holder: str = ""
    since: float | None = None
    until: float | None = None
    waiting: int = 0

    def free(self, store: KeyspaceStore) -> bool:
        """Free it, or hand it to the first in line. False: its owner no longer holds it."""
        if self.kind == "lock":
            return Mutex(self.name, self.owner).give(store)
        if self.kind == "unique":
            return Lease(keys.unique(self.name), self.owner, 1.0).free(store)
        return Places(KEYS[self.kind](self.name), 1, 1.0).free(store, self.owner, self.holder)


def find(store: KeyspaceStore, start: str) -> tuple[list[tuple[Kind, str]], bool]:
    """Kind and name of the locks whose names begin with `start`, and whether keys were left out."""
    found, cut = list[tuple[Kind, str]](), False
    for kind in KINDS:
        before, end = KEYS[kind]("\0").split("\0")
        names, more = store.scan(before + start, MOST)
        if more and start and store.space.call("EXISTS", store.prefix + KEYS[kind](start)):
            names.append(KEYS[kind](start))
        cut = cut or more
        found += [
            (kind, name[len(before) : len(name) - len(end)]) for name in dict.fromkeys(names) if name.endswith(end)
        ]
    return found, cut


def read(store: KeyspaceStore, names: Sequence[tuple[Kind, str]], now: float) -> Iterator[Held]:
    """The holders of these; those that nobody holds are left out."""
    for some in chunked(names, CHUNK):
        commands = list[tuple[Arg, ...]]()
        for kind, name in some:
            key, fence, line = (store.prefix + of(name) for of in (KEYS[kind], keys.fence, keys.line))
            plain: list[tuple[Arg, ...]] = [("GET", key), ("PTTL", key)]
            commands += [("HGETALL", key)] if kind in ("limit", "overlap") else plain
            commands += [("GET", fence), ("ZCARD", line)] if kind == "lock" else []
        replies = iter(store.space.call_many(commands))
        for kind, name in some:
            value = next(replies)
            if kind in ("limit", "overlap"):
                yield from places(kind, name, value, now)
                continue
            left = next(replies)
            token, waiting = (next(replies), next(replies)) if kind == "lock" else (None, 0)
            if isinstance(value, bytes):  # else it was freed meanwhile, or the key is of another type
                # The fencing token of an app.lock is the time at which it was taken, in microseconds.
                since = int(token) / 1e6 if isinstance(token, bytes) and token.isdigit() else None
                yield Held(kind, name, text(value), "", since, now + left / 1000 if left >= 0 else None, waiting)


def places(kind: Kind, name: str, flat: Any, now: float) -> Iterator[Held]:
    for owner, value in zip(flat[::2], flat[1::2], strict=True) if isinstance(flat, list) else ():
        until, _, holder = text(value).partition(" ")
        if until.isdecimal() and int(until) / 1000 > now:
            yield Held(kind, name, text(owner), holder, None, int(until) / 1000)


def text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
