"""One step: the names that it touches are locked and read once, and written once at its end.

A step that only reads is outside of a transaction and locks nothing. The commands (commands.py) work on it.

`queues:Q`, `queues:Q:delayed`, `queues:Q:reserved` and `queues:Q:notify` are rows of the table of jobs, not names of the
keyspace. A command on one of them (queue_keys.py) is part of the same transaction: the step and the change of a row
happen both or not at all.

The functions after Step read and change the items of a name, and keep its size up to date. The last ones read arguments of
commands as Redis does, and write replies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sql

from qd.drivers.database import schema
from qd.drivers.database.connection import DatabaseConnection, channel_of
from qd.drivers.database.schema import key_of
from qd.drivers.database.sql import JobSql
from qd.drivers.keyspace.base import Arg, chunked
from qd.errors import ServerRefused

WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
CHUNK = 1000  # values per statement
MOST = 2**31 - 1

_names = schema.names.c
_STALE = sql.delete(schema.items).where(schema.items.c.name.in_(sql.bindparam("keys", expanding=True)))
_GONE = sql.delete(schema.names).where(_names.name.in_(sql.bindparam("keys", expanding=True)))
_CHANGED = (
    sql.update(schema.names)
    .where(_names.name == sql.bindparam("key"))
    .values({each: sql.bindparam("new_" + each) for each in ("kind", "size", "expires_at", "value")})
)

_columns = schema.items.c
_all = sql.select(_columns.item, _columns.whole, _columns.score, _columns.value)
_mine = _columns.name == sql.bindparam("name")
_these = _columns.item.in_(sql.bindparam("keys", expanding=True))
_SOME = _all.where(_mine, _these)
_TAKEN = sql.delete(schema.items).where(_mine, _these)
_FIRST = _all.where(_mine).order_by(_columns.item).limit(sql.bindparam("most"))
_AFTER = _FIRST.where(_columns.item > sql.bindparam("after"))
_BY_RANK = _all.where(_mine).limit(sql.bindparam("most")).offset(sql.bindparam("first"))
_UP = _BY_RANK.order_by(_columns.score, _columns.item)
_DOWN = _BY_RANK.order_by(_columns.score.desc(), _columns.item.desc())


class Item(NamedTuple):
    """item: the field or member; in a list, the place as text."""

    item: bytes
    score: float
    value: bytes | None


class Bound(NamedTuple):
    """A bound of a range of scores."""

    score: float
    exclusive: bool = False


LOWEST, HIGHEST = Bound(float("-inf")), Bound(float("inf"))


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
        return Name(name, row.kind, row.size, row.expires_at, value_of(row), stored=True)

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
                new.append({**keyed("name", name), **columns})
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

    # -- items

    def _rows(self, name: Name, query: sql.Select[Any], **values: Any) -> Sequence[Any]:
        """An empty name needs no query."""
        return self.execute(query, {"name": key_of(name.name), **values}).all() if name.size else ()

    def _items(self, name: Name, query: sql.Select[Any], **values: Any) -> list[Item]:
        found = self._rows(name, query, **values)
        return [Item(bytes(row.whole or row.item), row.score, value_of(row)) for row in found]

    def some(self, name: Name, members: Iterable[bytes]) -> dict[bytes, Item]:
        """Those of `members` that exist."""
        keys = [key_of(each) for each in dict.fromkeys(members)] if name.size else []
        found = [each for chunk in chunked(keys, CHUNK) for each in self._items(name, _SOME, keys=chunk)]
        return {each.item: each for each in found}

    def length(self, name: Name, member: bytes) -> int:
        """Bytes of a value, without reading it; 0 if it does not exist."""
        query = sql.select(sql.func.length(_columns.value)).where(_mine, _columns.item == key_of(member))
        found = self._rows(name, query)
        return int(found[0][0] or 0) if found else 0

    def after(self, name: Name, key: bytes | None, most: int) -> list[Item]:
        """At most `most` items in the order of their keys, after `key` (None: from the first)."""
        query, more = (_FIRST, {}) if key is None else (_AFTER, {"after": key})
        return self._items(name, query, most=most, **more)

    def every(self, name: Name) -> list[Item]:
        return self._items(name, _all.where(_mine).order_by(_columns.item))

    def put(self, name: Name, rows: Mapping[bytes, tuple[float, bytes | None]]) -> int:
        """Insert or replace items: member -> score and value. Returns how many are new."""
        old = self.take(name, rows)
        self.add(name, rows)
        return len(rows) - old

    def add(self, name: Name, rows: Mapping[bytes, tuple[float, bytes | None]]) -> None:
        """Insert items that do not exist yet."""
        fixed = {"name": key_of(name.name)}
        made = [
            {**fixed, **keyed("item", member), "score": score, "value": value}
            for member, (score, value) in rows.items()
        ]
        for chunk in chunked(made, CHUNK):
            self.execute(schema.items.insert(), chunk)
        name.size += len(made)

    def take(self, name: Name, members: Iterable[bytes]) -> int:
        """Delete items. Returns how many existed."""
        keys = [key_of(each) for each in dict.fromkeys(members)]
        return sum(self._delete(name, _TAKEN, keys=chunk) for chunk in chunked(keys, CHUNK))

    def _delete(self, name: Name, query: sql.Delete, **values: Any) -> int:
        gone = self.execute(query, {"name": key_of(name.name), **values}).rowcount if name.size else 0
        name.size -= gone
        return gone

    # -- in the order of their scores

    def by_rank(self, name: Name, first: int, last: int) -> list[Item]:
        first, most = ranks(first, last, name.size)
        behind = name.size - first - most
        if behind < first:  # counted from the nearer end
            return self._items(name, _DOWN, most=most, first=behind)[::-1] if most else []
        return self._items(name, _UP, most=most, first=first) if most else []

    def by_score(
        self, name: Name, low: Bound, high: Bound, first: int = 0, most: int = MOST, *, down: bool = False
    ) -> list[Item]:
        """Items between the bounds."""
        query = (_DOWN if down else _UP).where(*within(low, high))
        return self._items(name, query, most=most, first=first)

    def take_by_score(self, name: Name, low: Bound, high: Bound) -> int:
        return self._delete(name, sql.delete(schema.items).where(_mine, *within(low, high)))

    def rank_of(self, name: Name, item: Item) -> int:
        at, key = _columns.score, _columns.item
        before = sql.or_(at < item.score, sql.and_(at == item.score, key < key_of(item.item)))
        return int(self._rows(name, sql.select(sql.func.count()).select_from(schema.items).where(_mine, before))[0][0])

    # -- lists: their places are their scores

    def ends(self, name: Name) -> tuple[float, float]:
        """The first and the last place; (0, -1) of an empty list."""
        found = self._rows(name, sql.select(sql.func.min(_columns.score), sql.func.max(_columns.score)).where(_mine))
        return tuple(found[0]) if found else (0.0, -1.0)

    def equal(self, name: Name, value: bytes, most: int, *, down: bool) -> list[Item]:
        """At most `most` items with this value, from the first or (down) from the last."""
        return self._items(name, (_DOWN if down else _UP).where(_columns.value == value), most=most, first=0)


@cache
def _reading(clock: str) -> sql.Select[Any]:
    """Selects the clock, and the rows of the names that exist: at least one row."""
    now = sql.select(sql.literal_column(clock).label("now")).subquery()
    wanted = _names.name.in_(sql.bindparam("keys", expanding=True))
    columns = (_names.name, _names.kind, _names.size, _names.expires_at, _names.value)
    return sql.select(now.c.now, *columns).select_from(now.outerjoin(schema.names, wanted))


def value_of(row: Any) -> bytes | None:
    return None if row.value is None else bytes(row.value)


def keyed(column: str, name: bytes) -> dict[str, bytes | None]:
    """The columns of a name, field or member: its key, and all of it if that is longer."""
    key = key_of(name)
    return {column: key, "whole": None if key == name else name}


def ranks(first: int, last: int, size: int) -> tuple[int, int]:
    """A range as in Redis: from 0, or from the end if negative, both included. Returns the first place and the count."""
    first = max(0, first + size if first < 0 else first)
    last = min(size - 1, last + size if last < 0 else last)
    return first, max(0, last - first + 1)


def within(low: Bound, high: Bound) -> list[sql.ColumnElement[bool]]:
    found = list[sql.ColumnElement[bool]]()
    if low.score == float("inf") or high.score == float("-inf"):
        return [sql.false()]
    if low.score != float("-inf"):
        found.append(_columns.score > low.score if low.exclusive else _columns.score >= low.score)
    if high.score != float("inf"):
        found.append(_columns.score < high.score if high.exclusive else _columns.score <= high.score)
    return found


# -- arguments and replies

NUMBER, FLOAT = "ERR value is not an integer or out of range", "ERR value is not a valid float"
SYNTAX = "ERR syntax error"


class StatusReply(bytes):
    """A status reply: OK, the reply of TYPE. A script sees it as a table with the field ok."""


OK = StatusReply(b"OK")
Words = Sequence[bytes]


def word(arg: Arg) -> bytes:
    """An argument as bytes, as a Redis client sends it."""
    return arg if isinstance(arg, bytes) else str(arg).encode()


def whole(text: bytes) -> int:
    """Raises ServerRefused if it is not an integer."""
    try:
        number = int(text)
    except ValueError:
        raise ServerRefused(NUMBER) from None
    if not text.strip() == text or not -(2**63) <= number < 2**63:
        raise ServerRefused(NUMBER)
    return number


def real(text: bytes) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ServerRefused(FLOAT) from None
    if number != number or text.strip() != text or b"_" in text:
        raise ServerRefused(FLOAT)
    return number


def bound(text: bytes) -> Bound:
    """A bound of a range of scores: a number, (number, -inf or +inf."""
    try:
        return Bound(real(text[1:]), True) if text[:1] == b"(" else Bound(real(text))
    except ServerRefused:
        raise ServerRefused("ERR min or max is not a float") from None


def score_text(score: float) -> bytes:
    return b"%.17g" % score


def with_scores(found: Iterable[tuple[bytes, float, *tuple[Any, ...]]]) -> list[bytes]:
    """Members, each followed by its score."""
    return [part for each in found for part in (each[0], score_text(each[1]))]


def pairs(words: Words) -> list[tuple[bytes, bytes]]:
    """Raises ServerRefused for an odd number of words."""
    if len(words) % 2 or not words:
        raise ServerRefused("ERR wrong number of arguments")
    return list(zip(words[::2], words[1::2], strict=True))


def cursor_of(text: bytes) -> bytes | None:
    """The key after which a scan continues, or None at its start. A cursor is a number; every key can be written as one."""
    if not text.isdigit():
        raise ServerRefused("ERR invalid cursor")
    number = int(text)
    return number.to_bytes((number.bit_length() + 7) // 8)[1:] if number else None


def cursor_text(key: bytes) -> bytes:
    return b"%d" % int.from_bytes(b"\x01" + key)


def options(words: Words) -> dict[bytes, bytes]:
    """MATCH and COUNT of a scan."""
    found = {name.upper(): value for name, value in zip(words[::2], words[1::2], strict=False)}
    if len(words) % 2 or found.keys() - {b"MATCH", b"COUNT"}:
        raise ServerRefused(SYNTAX)
    return found
