"""A name of the keyspace, and its items: rows of qd_names and qd_items. A list keeps its places as the scores of its items.

The last functions read arguments of commands as Redis does, and write replies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sql

from qd.drivers.database import schema
from qd.drivers.database.schema import key_of
from qd.drivers.keyspace.base import Arg, chunked
from qd.errors import ServerRefused

if TYPE_CHECKING:
    from qd.drivers.database.transaction import Step

CHUNK = 1000  # values per statement
MOST = 2**31 - 1

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


class Name:
    """A name as a step sees it. kind: "" if it has no value. expires_at: unix microseconds. stale: it has expired, and its
    items still exist. stored: the columns of its row, None if there is none."""

    kind: str = ""
    size: int = 0
    expires_at: int | None = None
    value: bytes | None = None

    def __init__(self, step: Step, name: bytes, row: Any = None) -> None:
        self.step, self.name, self.key = step, name, key_of(name)
        self.stale = row is not None and row.expires_at is not None and row.expires_at <= step.now_us
        if row is not None and not self.stale:
            self.kind, self.size, self.expires_at, self.value = row.kind, row.size, row.expires_at, value_of(row)
        self.stored = None if row is None else {} if self.stale else self.columns()

    def columns(self) -> dict[str, Any]:
        return {"kind": self.kind, "size": self.size, "expires_at": self.expires_at, "value": self.value}

    def clear(self) -> bool:
        """Delete its value. Returns False if it had none."""
        was = bool(self.kind)
        if self.stale or self.kind not in ("", "string"):
            self.step.sweep([self])
        self.kind, self.size, self.value, self.expires_at = "", 0, None, None
        return was

    def count(self) -> int:
        """How many items it has; 1 of a string."""
        return self.size

    # -- items

    def _rows(self, query: sql.Select[Any], **values: Any) -> Sequence[Any]:
        """An empty name needs no query."""
        return self.step.execute(query, {"name": self.key, **values}).all() if self.size else ()

    def _items(self, query: sql.Select[Any], **values: Any) -> list[Item]:
        found = self._rows(query, **values)
        return [Item(bytes(row.whole or row.item), row.score, value_of(row)) for row in found]

    def some(self, members: Iterable[bytes]) -> dict[bytes, Item]:
        """Those of `members` that exist."""
        keys = [key_of(each) for each in dict.fromkeys(members)] if self.size else []
        found = [each for chunk in chunked(keys, CHUNK) for each in self._items(_SOME, keys=chunk)]
        return {each.item: each for each in found}

    def length(self, member: bytes) -> int:
        """Bytes of a value, without reading it; 0 if it does not exist."""
        query = sql.select(sql.func.length(_columns.value)).where(_mine, _columns.item == key_of(member))
        found = self._rows(query)
        return int(found[0][0] or 0) if found else 0

    def after(self, key: bytes | None, most: int) -> tuple[bytes | None, list[Item]]:
        """At most `most` items in the order of their keys, after `key` (None: from the first). Returns the last key, too;
        None: there are no more."""
        query, more = (_FIRST, {}) if key is None else (_AFTER, {"after": key})
        found = self._items(query, most=most, **more)
        return key_of(found[-1].item) if len(found) == most else None, found

    def every(self) -> list[Item]:
        return self._items(_all.where(_mine).order_by(_columns.item))

    def put(self, rows: Mapping[bytes, tuple[float, bytes | None]]) -> int:
        """Insert or replace items: member -> score and value. Returns how many are new."""
        old = self.take(rows)
        self.add(rows)
        return len(rows) - old

    def add(self, rows: Mapping[bytes, tuple[float, bytes | None]]) -> None:
        """Insert items that do not exist yet."""
        made = [
            {"name": self.key, **keyed("item", member), "score": score, "value": value}
            for member, (score, value) in rows.items()
        ]
        for chunk in chunked(made, CHUNK):
            self.step.execute(schema.items.insert(), chunk)
        self.size += len(made)

    def take(self, members: Iterable[bytes]) -> int:
        """Delete items. Returns how many existed."""
        keys = [key_of(each) for each in dict.fromkeys(members)]
        return sum(self._delete(_TAKEN, keys=chunk) for chunk in chunked(keys, CHUNK))

    def _delete(self, query: sql.Delete, **values: Any) -> int:
        gone = self.step.execute(query, {"name": self.key, **values}).rowcount if self.size else 0
        self.size -= gone
        return gone

    # -- in the order of their scores

    def by_rank(self, first: int, last: int) -> list[Item]:
        first, most = ranks(first, last, self.size)
        behind = self.size - first - most
        if behind < first:  # counted from the nearer end
            return self._items(_DOWN, most=most, first=behind)[::-1] if most else []
        return self._items(_UP, most=most, first=first) if most else []

    def by_score(self, low: Bound, high: Bound, first: int, most: int, *, down: bool) -> list[Item]:
        return self._items((_DOWN if down else _UP).where(*within(low, high)), most=most, first=first)

    def take_by_score(self, low: Bound, high: Bound) -> int:
        return self._delete(sql.delete(schema.items).where(_mine, *within(low, high)))

    def rank_of(self, item: Item) -> int:
        at, key = _columns.score, _columns.item
        before = sql.or_(at < item.score, sql.and_(at == item.score, key < key_of(item.item)))
        return int(self._rows(sql.select(sql.func.count()).select_from(schema.items).where(_mine, before))[0][0])

    def rescore(self, added: Sequence[tuple[bytes, bytes]], *, only_old: bool, only_new: bool) -> tuple[int, int]:
        """Set the scores of members, given as text. Returns how many are new, and how many are new or have another score."""
        # If a member is given twice, the last score counts; with only_new the first, since it is not new any more.
        scores = {member: real(score) for score, member in (reversed(added) if only_new else added)}
        old = self.some(scores)
        new = {
            member: (score, None)
            for member, score in scores.items()
            if (not only_new and old[member].score != score if member in old else not only_old)
        }
        return self.put(new), len(new)

    def cut(self, first: int, last: int) -> int:
        """Delete the items of these ranks. Returns how many."""
        return self.take([each.item for each in self.by_rank(first, last)])

    # -- lists

    def push(self, values: Sequence[bytes], *, head: bool) -> int:
        """Returns its new size."""
        found = self._rows(sql.select(sql.func.min(_columns.score), sql.func.max(_columns.score)).where(_mine))
        first, last = found[0] if found else (0.0, -1.0)
        places = [first - number if head else last + number for number in range(1, len(values) + 1)]
        self.add({b"%.0f" % place: (place, value) for place, value in zip(places, values, strict=True)})
        self.step.notify(self.name)
        return self.size

    def remove(self, value: bytes, most: int, *, down: bool) -> int:
        """Delete at most `most` items with this value, from the first or (down) from the last. Returns how many."""
        found = self._items((_DOWN if down else _UP).where(_columns.value == value), most=most, first=0)
        return self.take([each.item for each in found])

    def trim(self, first: int, last: int) -> None:
        """Keep the items of these ranks only."""
        first, most = ranks(first, last, self.size)
        if not most:
            self.clear()
        elif most < self.size:
            low, high = (self.by_rank(at, at)[0].score for at in (first, first + most - 1))
            self.take_by_score(LOWEST, Bound(low, True))
            self.take_by_score(Bound(high, True), HIGHEST)


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
