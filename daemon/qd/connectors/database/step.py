"""A step of the keyspace on tables: the names that it touches, locked and read once, and written once at its end.

The commands (strings.py, hashes.py, lists.py, sorted.py) work on a Step. A reading one stands outside of a transaction and
locks nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sql

from qd.connectors.database import tables
from qd.connectors.database.link import Link
from qd.connectors.database.listening import channel_of
from qd.connectors.database.rows import Rows
from qd.connectors.database.tables import key_of
from qd.errors import ServerRefused

WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
CHUNK = 1000  # values that one statement carries

_names = tables.names.c
_STALE = sql.delete(tables.items).where(tables.items.c.name.in_(sql.bindparam("keys", expanding=True)))
_GONE = sql.delete(tables.names).where(_names.name.in_(sql.bindparam("keys", expanding=True)))
_CHANGED = (
    sql.update(tables.names)
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

    def __init__(self, link: Link, rows: Rows | None = None, prefix: bytes = b"", *, locks: bool = True) -> None:
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
            self.execute(tables.names.insert(), new)
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
        _statements[clock] = sql.select(now.c.now, *columns).select_from(now.outerjoin(tables.names, wanted))
    return _statements[clock]
