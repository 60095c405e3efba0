"""One step: the names that it touches are locked and read once, and written once at its end.

A step that only reads is outside of a transaction and locks nothing. The commands (commands.py) work on it.

`queues:Q`, `queues:Q:delayed`, `queues:Q:reserved` and `queues:Q:notify` are rows of the table of jobs, not names of the
keyspace. A command on one of them (queue_keys.py) is part of the same transaction: the step and the change of a row
happen both or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import sqlalchemy as sql

from qd.drivers.database import schema
from qd.drivers.database.connection import DatabaseConnection, channel_of
from qd.drivers.database.schema import key_of
from qd.drivers.database.sql import JobSql
from qd.errors import ServerRefused

WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
CHUNK = 1000  # values per statement

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
    """A name as the step sees it. kind: "" if it has no value. stale: it has expired, and its items still exist.
    expires_at: unix microseconds."""

    name: bytes
    kind: str = ""
    size: int = 0
    expires_at: int | None = None
    value: bytes | None = None
    stored: bool = False
    stale: bool = False


class Step:
    """Belongs to one transaction of `connection`, or (without locks) to reading commands."""

    def __init__(
        self, connection: DatabaseConnection, jobs: JobSql | None = None, prefix: bytes = b"", *, locks: bool = True
    ) -> None:
        self.connection, self.jobs, self.prefix, self.locks = connection, jobs, prefix, locks
        self.now_us = 0
        self._notified: set[str] = set()
        self._known: dict[bytes, Name] = {}
        self._stored: dict[bytes, Name] = {}  # as in their rows

    @property
    def now(self) -> float:
        return self.now_us / 1_000_000

    def execute(self, statement: sql.Executable, values: Any = None) -> sql.CursorResult[Any]:
        return self.connection.execute(statement, values)

    @property
    def broken(self) -> bool:
        """Whether the transaction has failed."""
        return self.locks and self.connection.broken

    def notify(self, name: bytes) -> None:
        """Wake the clients that wait for an item of this list when the step ends, if the database can."""
        if self.connection.kind == "postgresql":
            self._notified.add(channel_of(name))

    # -- names

    def open(self, names: Iterable[bytes]) -> None:
        """Lock and read the names that are not known yet; the first call also reads the clock."""
        new = [name for name in dict.fromkeys(names) if name not in self._known]
        for at in range(0, len(new), CHUNK) if new else range(not self.now_us):
            self._read(new[at : at + CHUNK])

    def _read(self, names: Sequence[bytes]) -> None:
        if self.locks:
            self.connection.lock([key_of(name) for name in names])
        found = self.execute(_reading(self.connection.server.clock), {"keys": [key_of(name) for name in names]}).all()
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

    def get(self, name: bytes, kind: str = "") -> Name:
        """The name, to read it. Raises ServerRefused if it has another kind than `kind` ("": any)."""
        self.open((name,))
        found = self._known[name]
        if kind and found.kind not in ("", kind):
            raise ServerRefused(WRONGTYPE)
        return found

    def change(self, name: bytes, kind: str) -> Name:
        """The name, to add to it; expired items are deleted first."""
        found = self.get(name, kind)
        if found.stale:
            self._sweep([found])
        found.kind = kind
        return found

    def remove(self, name: bytes) -> bool:
        """Delete the name. Returns False if it had no value."""
        found = self.get(name)
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
        """Delete the items of these names if they have expired."""
        self.open(names)
        stale = [each for each in self._known.values() if each.stale]
        if stale:
            self._sweep(stale)

    # -- the end

    def flush(self) -> None:
        """Write the rows of changed names; an empty name is deleted."""
        gone, new, changed = list[bytes](), list[dict[str, Any]](), list[dict[str, Any]]()
        for name, now in self._known.items():
            if now.size == 0:
                now.kind, now.value, now.expires_at = "", None, None
            if now == self._stored[name]:
                continue
            columns = {"kind": now.kind, "size": now.size, "expires_at": now.expires_at, "value": now.value}
            if now.stored and not now.kind:
                gone.append(key_of(name))
            elif now.stored:
                changed.append({"key": key_of(name), **{"new_" + each: value for each, value in columns.items()}})
            elif now.kind:
                whole = None if key_of(name) == name else name
                new.append({"name": key_of(name), "whole": whole, **columns})
            now.stored = bool(now.kind)
            self._stored[name] = replace(now)
        if gone:
            self.execute(_GONE, {"keys": gone})
        if changed:
            self.execute(_CHANGED, changed)
        if new:
            self.execute(schema.names.insert(), new)
        for channel in self._notified:
            self.execute(sql.select(sql.func.pg_notify(channel, "")))
        self._notified.clear()

    def forget(self) -> None:
        """After a rollback: forget everything except the clock."""
        self._known.clear()
        self._stored.clear()
        self._notified.clear()


@cache
def _reading(clock: str) -> sql.Select[Any]:
    """Selects the clock, and the rows of the names that exist: at least one row."""
    now = sql.select(sql.literal_column(clock).label("now")).subquery()
    wanted = _names.name.in_(sql.bindparam("keys", expanding=True))
    columns = (_names.name, _names.kind, _names.size, _names.expires_at, _names.value)
    return sql.select(now.c.now, *columns).select_from(now.outerjoin(schema.names, wanted))
