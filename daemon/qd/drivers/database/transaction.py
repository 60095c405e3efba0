"""What stands between the keyspace of a database and its table of jobs: names of queues are no names of its own.

`queues:Q`, `queues:Q:delayed`, `queues:Q:reserved` and `queues:Q:notify` are rows of the jobs table. A command on such a
name, from a step (keyspace/scripts) or alone, becomes calls of a Rows inside the transaction that runs (queued.py), so
that a step and the change of a row happen both or not at all.

A step of the keyspace on tables: the names that it touches, locked and read once, and written once at its end.

The commands (strings.py, hashes.py, lists.py, sorted.py) work on a Step. A reading one stands outside of a transaction and
locks nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import sqlalchemy as sql
from sqlalchemy import CursorResult, Executable

from qd.drivers.database import schema
from qd.drivers.database.connection import DatabaseConnection, channel_of
from qd.drivers.database.schema import key_of
from qd.errors import ServerRefused

Spot = Literal["ready", "delayed", "reserved"]


class Placed(NamedTuple):
    """What stands in a row. score: unix seconds at which it is due, or its lease runs out; 0 of a ready one."""

    payload: bytes
    score: float


class Running(Protocol):
    """The transaction of a step, or a single command outside of one."""

    @property
    def now(self) -> float:
        """Unix seconds by the database's clock, the same for a whole step."""

    def execute(self, statement: Executable, values: Any = None) -> CursorResult[Any]:
        """values: a mapping, or a list of them for many. Raises ConnectionLost, ServerBusy or ServerRefused."""


class Rows(Protocol):
    """The jobs of one table. Nobody has locked anything for these calls: who needs a row locked does it (a step that asks
    for the score of a reserved payload takes it away next, or adds beside it)."""

    def queues(self, run: Running) -> list[str]:
        """Those that have a row."""

    def add(self, run: Running, queue: str, payloads: Sequence[bytes], due_at: float | None, *, head: bool) -> None:
        """due_at: None for ready ones, at the tail, or put one by one at the head. The order is that of `payloads`."""

    def count(self, run: Running, queue: str, spot: Spot) -> int: ...

    def page(self, run: Running, queue: str, spot: Spot, first: int, most: int, *, tail: bool) -> list[Placed]:
        """At most so many from place `first` (0: the next in line, or the first due), in order. tail: counted from the
        other end, and in that order."""

    def until(self, run: Running, queue: str, spot: Spot, moment: float, most: int) -> list[Placed]:
        """At most so many whose score is not over `moment`, by score."""

    def score(self, run: Running, queue: str, spot: Spot, payload: bytes) -> float | None:
        """None: it does not stand there."""

    def lease(self, run: Running, queue: str, payload: bytes, until: float) -> bool:
        """Set the end of the lease of a reserved payload. False: it is not reserved; nothing is done then."""

    def remove(self, run: Running, queue: str, spot: Spot, payload: bytes, *, tail: bool) -> bool:
        """Take one row of exactly these bytes away, the first or (tail) the last of equal ones. False: none is there."""

    def cut(self, run: Running, queue: str, spot: Spot, count: int, *, tail: bool) -> None:
        """Take so many away from the front or (tail) from the end."""

    def wake(self, run: Running, queue: str) -> None:
        """Tell those who wait for this queue, once the transaction is committed (a NOTIFY where there is one)."""


WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
CHUNK = 1000  # values that one statement carries

_names = schema.names.c
_STALE = sql.delete(schema.items).where(schema.items.c.name.in_(sql.bindparam("keys", expanding=True)))
_GONE = sql.delete(schema.names).where(_names.name.in_(sql.bindparam("keys", expanding=True)))
_CHANGED = (
    sql.update(schema.names)
    .where(_names.name == sql.bindparam("key"))
    .values({each: sql.bindparam("new_" + each) for each in ("kind", "size", "expires_at", "value")})
)


@dataclass(slots=True)
class Name:
    """A name as the step sees it. kind "": nothing stands there. stale: what its row tells has expired, and its items are
    still there. expires_at: unix microseconds."""

    name: bytes
    kind: str = ""
    size: int = 0
    expires_at: int | None = None
    value: bytes | None = None
    stored: bool = False
    stale: bool = False


class Step:
    """Belongs to one transaction of `link`, or (locks False) to one reading command or several."""

    def __init__(
        self, link: DatabaseConnection, rows: Rows | None = None, prefix: bytes = b"", *, locks: bool = True
    ) -> None:
        self.link, self.rows, self.prefix, self.locks = link, rows, prefix, locks
        self.now_us = 0
        self._woken: set[str] = set()
        self._known: dict[bytes, Name] = {}
        self._stored: dict[bytes, Name] = {}  # as their rows are

    @property
    def now(self) -> float:
        return self.now_us / 1_000_000

    @property
    def dialect(self) -> str:
        return self.link.kind

    def execute(self, statement: sql.Executable, values: Any = None) -> sql.CursorResult[Any]:
        return self.link.execute(statement, values)

    @property
    def broken(self) -> bool:
        """Nothing more can be done in it."""
        return self.locks and self.link.broken

    def woken(self, name: bytes) -> None:
        """Who waits for an item of this list is told at the end, where the database can."""
        if self.link.kind == "postgresql":
            self._woken.add(channel_of(name))

    # -- names

    def open(self, names: Iterable[bytes]) -> None:
        """Lock and read those that are not known yet; the first of all reads the clock, too."""
        new = [name for name in dict.fromkeys(names) if name not in self._known]
        for at in range(0, len(new), CHUNK) if new else range(not self.now_us):
            self._read(new[at : at + CHUNK])

    def _read(self, names: Sequence[bytes]) -> None:
        if self.locks:
            self.link.lock([key_of(name) for name in names])
        found = self.execute(_looked(self.link.server.clock), {"keys": [key_of(name) for name in names]}).all()
        self.now_us = self.now_us or int(found[0].now)
        rows = {bytes(row.name): row for row in found if row.name is not None}
        for name in names:
            self._known[name] = self._as_read(name, rows.get(key_of(name)))
            self._stored[name] = replace(self._known[name])

    def _as_read(self, name: bytes, row: Any) -> Name:
        if row is None:
            return Name(name)
        if row.expires_at is not None and row.expires_at <= self.now_us:
            return Name(name, stored=True, stale=True)
        value = None if row.value is None else bytes(row.value)
        return Name(name, row.kind, row.size, row.expires_at, value, stored=True)

    def look(self, name: bytes, kind: str = "") -> Name:
        """For who reads. Raises ServerRefused when it is of another kind; "": of any."""
        self.open((name,))
        found = self._known[name]
        if kind and found.kind not in ("", kind):
            raise ServerRefused(WRONGTYPE)
        return found

    def change(self, name: bytes, kind: str) -> Name:
        """For who adds to it: what had expired is taken away first."""
        found = self.look(name, kind)
        if found.stale:
            self._sweep([found])
        found.kind = kind
        return found

    def remove(self, name: bytes) -> bool:
        """Everything under it. False: nothing was there."""
        found = self.look(name)
        was = bool(found.kind)
        if found.stale or found.kind not in ("", "string"):
            self._sweep([found])
        found.kind, found.size, found.value, found.expires_at = "", 0, None, None
        return was

    def _sweep(self, found: Sequence[Name]) -> None:
        self.execute(_STALE, {"keys": [key_of(each.name) for each in found]})
        for each in found:
            each.stale = False

    def sweep(self, names: Iterable[bytes]) -> None:
        """Take away what has expired under these names, as far as it still has."""
        self.open(names)
        stale = [each for each in self._known.values() if each.stale]
        if stale:
            self._sweep(stale)

    # -- the end

    def flush(self) -> None:
        """Write the rows of the names that have changed. What holds nothing any more is no name."""
        gone, new, changed = list[bytes](), list[dict[str, Any]](), list[dict[str, Any]]()
        for name, now in self._known.items():
            if now.size == 0:
                now.kind, now.value, now.expires_at = "", None, None
            if now == self._stored[name]:
                continue
            facts = {"kind": now.kind, "size": now.size, "expires_at": now.expires_at, "value": now.value}
            if now.stored and not now.kind:
                gone.append(key_of(name))
            elif now.stored:
                changed.append({"key": key_of(name), **{"new_" + each: value for each, value in facts.items()}})
            elif now.kind:
                whole = None if key_of(name) == name else name
                new.append({"name": key_of(name), "whole": whole, **facts})
            now.stored = bool(now.kind)
            self._stored[name] = replace(now)
        if gone:
            self.execute(_GONE, {"keys": gone})
        if changed:
            self.execute(_CHANGED, changed)
        if new:
            self.execute(schema.names.insert(), new)
        for channel in self._woken:
            self.execute(sql.select(sql.func.pg_notify(channel, "")))
        self._woken.clear()

    def forget(self) -> None:
        """What was done has been rolled back: nothing is known any more but the clock."""
        self._known.clear()
        self._stored.clear()
        self._woken.clear()


_statements: dict[str, sql.Select[Any]] = {}


def _looked(clock: str) -> sql.Select[Any]:
    """The clock, and the rows of the names that are there: one row at least."""
    if clock not in _statements:
        now = sql.select(sql.literal_column(clock).label("now")).subquery()
        wanted = _names.name.in_(sql.bindparam("keys", expanding=True))
        columns = (_names.name, _names.kind, _names.size, _names.expires_at, _names.value)
        _statements[clock] = sql.select(now.c.now, *columns).select_from(now.outerjoin(schema.names, wanted))
    return _statements[clock]
