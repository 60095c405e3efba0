"""One step: the names that it touches are locked and read once, and written once at its end.

A step that only reads is outside of a transaction and locks nothing. The commands (commands.py) work on it.

`queues:Q`, `queues:Q:delayed`, `queues:Q:reserved` and `queues:Q:notify` are rows of the table of jobs (queue_keys.py). A
command on one of them is part of the same transaction: the step and the change of a row happen both or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sql

from qd.drivers.database import schema
from qd.drivers.database.connection import DatabaseConnection, channel_of
from qd.drivers.database.names import CHUNK, Name, keyed
from qd.drivers.database.queue_keys import place_of
from qd.drivers.database.schema import key_of
from qd.drivers.database.sql import JobSql
from qd.errors import ServerRefused

WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"

_names = schema.names.c
_STALE = sql.delete(schema.items).where(schema.items.c.name.in_(sql.bindparam("keys", expanding=True)))
_GONE = sql.delete(schema.names).where(_names.name.in_(sql.bindparam("keys", expanding=True)))
_CHANGED = (
    sql.update(schema.names)
    .where(_names.name == sql.bindparam("key"))
    .values({each: sql.bindparam("new_" + each) for each in ("kind", "size", "expires_at", "value")})
)


class Step:
    """Belongs to one transaction of `connection`, or (without locks) to reading commands."""

    def __init__(
        self, connection: DatabaseConnection, jobs: JobSql | None = None, prefix: bytes = b"", *, locks: bool = True
    ) -> None:
        self.connection, self.jobs, self.prefix, self.locks = connection, jobs, prefix, locks
        self.execute = connection.execute
        self.now_us = 0
        self._notified: set[str] = set()
        self._known: dict[bytes, Name] = {}

    @property
    def broken(self) -> bool:
        """Whether the transaction has failed."""
        return self.locks and self.connection.broken

    def notify(self, name: bytes) -> None:
        """Wake the clients that wait for an item of this list when the step ends, if the database can."""
        if self.connection.kind == "postgresql":
            self._notified.add(channel_of(name))

    def open(self, names: Iterable[bytes]) -> None:
        """Lock and read the names that are not known yet; the first call also reads the clock."""
        new = [name for name in dict.fromkeys(names) if name not in self._known and place_of(self, name) is None]
        for at in range(0, len(new), CHUNK) if new else range(not self.now_us):
            self._read(new[at : at + CHUNK])

    def _read(self, names: Sequence[bytes]) -> None:
        if self.locks:
            self.connection.lock([key_of(name) for name in names])
        found = self.execute(_reading(self.connection.server.clock), {"keys": [key_of(name) for name in names]}).all()
        self.now_us = self.now_us or int(found[0].now)
        rows = {bytes(row.name): row for row in found if row.name is not None}
        self._known |= {name: Name(self, name, rows.get(key_of(name))) for name in names}

    def get(self, name: bytes, kind: str = "") -> Name:
        """The name, to read it. Raises ServerRefused if it has another kind than `kind` ("": any)."""
        self.open((name,))
        found = self._known.get(name) or place_of(self, name) or Name(self, name)
        if kind and found.kind not in ("", kind):
            raise ServerRefused(WRONGTYPE)
        return found

    def change(self, name: bytes, kind: str) -> Name:
        """The name, to add to it; expired items are deleted first."""
        found = self.get(name, kind)
        if found.stale:
            self.sweep([found])
        found.kind = kind
        return found

    def sweep(self, found: Sequence[Name]) -> None:
        """Delete all items of these names."""
        self.execute(_STALE, {"keys": [each.key for each in found]})
        for each in found:
            each.stale = False

    def sweep_expired(self, names: Iterable[bytes]) -> None:
        """Delete the items of these names if they have expired."""
        self.open(names)
        if stale := [each for each in self._known.values() if each.stale]:
            self.sweep(stale)

    def flush(self) -> None:
        """Write the rows of changed names; an empty name is deleted."""
        gone, new, changed = list[bytes](), list[dict[str, Any]](), list[dict[str, Any]]()
        for each in self._known.values():
            if each.size == 0:
                each.kind, each.value, each.expires_at = "", None, None
            columns = each.columns()
            if each.stale or columns == each.stored:
                continue
            if each.stored is None and each.kind:
                new.append({**keyed("name", each.name), **columns})
            elif each.kind:
                changed.append({"key": each.key, **{"new_" + name: value for name, value in columns.items()}})
            elif each.stored is not None:
                gone.append(each.key)
            each.stored = columns if each.kind else None
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
        self._notified.clear()


@cache
def _reading(clock: str) -> sql.Select[Any]:
    """Selects the clock, and the rows of the names that exist: at least one row."""
    now = sql.select(sql.literal_column(clock).label("now")).subquery()
    wanted = _names.name.in_(sql.bindparam("keys", expanding=True))
    columns = (_names.name, _names.kind, _names.size, _names.expires_at, _names.value)
    return sql.select(now.c.now, *columns).select_from(now.outerjoin(schema.names, wanted))
