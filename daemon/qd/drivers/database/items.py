"""The items of a name in the keyspace: rows of qd_items, read and changed. Keeps the name's size up to date.

Arguments of commands as Redis reads them, and replies as it writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sql

from qd.drivers.database import schema
from qd.drivers.database.schema import key_of
from qd.drivers.database.transaction import CHUNK, Name, Step
from qd.drivers.keyspace.base import Arg, chunked
from qd.errors import ServerRefused

_items = schema.items.c
_all = sql.select(_items.item, _items.whole, _items.score, _items.value)
_mine = _items.name == sql.bindparam("name")
_these = _items.item.in_(sql.bindparam("keys", expanding=True))
_SOME = _all.where(_mine, _these)
_TAKEN = sql.delete(schema.items).where(_mine, _these)
_FIRST = _all.where(_mine).order_by(_items.item).limit(sql.bindparam("most"))
_AFTER = _FIRST.where(_items.item > sql.bindparam("after"))
_BY_RANK = _all.where(_mine).limit(sql.bindparam("most")).offset(sql.bindparam("first"))
_UP = _BY_RANK.order_by(_items.score, _items.item)
_DOWN = _BY_RANK.order_by(_items.score.desc(), _items.item.desc())


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


def item_of(row: Any) -> Item:
    whole = row.item if row.whole is None else row.whole
    return Item(bytes(whole), row.score, None if row.value is None else bytes(row.value))


def read(step: Step, name: Name, query: sql.Select[Any], **values: Any) -> Sequence[Any]:
    """Rows of its items; an empty name needs no query."""
    return step.execute(query, {"name": key_of(name.name), **values}).all() if name.size else ()


def some(step: Step, name: Name, members: Iterable[bytes]) -> dict[bytes, Item]:
    """Those of `members` that exist."""
    keys, found = [key_of(each) for each in dict.fromkeys(members)], list[Item]()
    for chunk in chunked(keys, CHUNK) if name.size else ():
        found += map(item_of, read(step, name, _SOME, keys=chunk))
    return {each.item: each for each in found}


def length(step: Step, name: Name, member: bytes) -> int:
    """Bytes of a value, without reading it; 0 if it does not exist."""
    size = sql.func.length(_items.value) if step.connection.kind == "sqlite" else sql.func.octet_length(_items.value)
    found = read(step, name, sql.select(size).where(_mine, _items.item == key_of(member)))
    return int(found[0][0] or 0) if found else 0


def after(step: Step, name: Name, key: bytes | None, most: int) -> list[tuple[bytes, Item]]:
    """At most `most` items with their keys, in the order of keys, after `key` (None: from the first)."""
    query, more = (_FIRST, {}) if key is None else (_AFTER, {"after": key})
    return [(bytes(row.item), item_of(row)) for row in read(step, name, query, most=most, **more)]


def every(step: Step, name: Name) -> list[Item]:
    return [item_of(row) for row in read(step, name, _all.where(_mine).order_by(_items.item))]


def put(step: Step, name: Name, rows: Mapping[bytes, tuple[float, bytes | None]]) -> int:
    """Insert or replace items: member -> score and value. Returns how many are new."""
    old = take(step, name, rows) if name.size else 0
    add(step, name, rows)
    return len(rows) - old


def add(step: Step, name: Name, rows: Mapping[bytes, tuple[float, bytes | None]]) -> None:
    """Insert items that do not exist yet."""
    made = []
    for member, (score, value) in rows.items():
        key = key_of(member)
        whole = None if key == member else member
        made.append({"name": key_of(name.name), "item": key, "whole": whole, "score": score, "value": value})
    for chunk in chunked(made, CHUNK):
        step.execute(schema.items.insert(), chunk)
    name.size += len(made)


def take(step: Step, name: Name, members: Iterable[bytes]) -> int:
    """Delete items. Returns how many existed."""
    keys, gone = [key_of(each) for each in dict.fromkeys(members)], 0
    for chunk in chunked(keys, CHUNK) if name.size else ():
        gone += step.execute(_TAKEN, {"name": key_of(name.name), "keys": chunk}).rowcount
    name.size -= gone
    return gone


# -- in the order of their scores


def ranks(first: int, last: int, size: int) -> tuple[int, int]:
    """A range as in Redis: from 0, or from the end if negative, both included. Returns the first place and the count."""
    first = max(0, first + size if first < 0 else first)
    last = min(size - 1, last + size if last < 0 else last)
    return first, max(0, last - first + 1)


def by_rank(step: Step, name: Name, first: int, last: int) -> list[Item]:
    first, most = ranks(first, last, name.size)
    behind = name.size - first - most
    if not most:
        return []
    if behind < first:  # counted from the nearer end
        return [item_of(row) for row in read(step, name, _DOWN, most=most, first=behind)][::-1]
    return [item_of(row) for row in read(step, name, _UP, most=most, first=first)]


def within(low: Bound, high: Bound) -> list[sql.ColumnElement[bool]]:
    found = list[sql.ColumnElement[bool]]()
    if low.score == float("inf") or high.score == float("-inf"):
        return [sql.false()]
    if low.score != float("-inf"):
        found.append(_items.score > low.score if low.exclusive else _items.score >= low.score)
    if high.score != float("inf"):
        found.append(_items.score < high.score if high.exclusive else _items.score <= high.score)
    return found


def by_score(
    step: Step, name: Name, low: Bound, high: Bound, first: int = 0, most: int | None = None, *, down: bool = False
) -> list[Item]:
    """Items between the bounds. most: None for all."""
    order: Sequence[Any] = (_items.score.desc(), _items.item.desc()) if down else (_items.score, _items.item)
    query = _all.where(_mine, *within(low, high)).order_by(*order)
    if most is not None or first:
        query = query.limit(2**31 - 1 if most is None else most).offset(first)
    return [item_of(row) for row in read(step, name, query)]


def take_by_score(step: Step, name: Name, low: Bound, high: Bound) -> int:
    if not name.size:
        return 0
    gone = step.execute(sql.delete(schema.items).where(_mine, *within(low, high)), {"name": key_of(name.name)}).rowcount
    name.size -= gone
    return gone


def rank_of(step: Step, name: Name, item: Item) -> int:
    before = sql.or_(_items.score < item.score, sql.and_(_items.score == item.score, _items.item < key_of(item.item)))
    ((count,),) = read(step, name, sql.select(sql.func.count()).select_from(schema.items).where(_mine, before))
    return int(count)


# -- lists: their places are their scores


def ends(step: Step, name: Name) -> tuple[float, float]:
    """The first and the last place; (0, -1) of an empty list."""
    found = read(step, name, sql.select(sql.func.min(_items.score), sql.func.max(_items.score)).where(_mine))
    return tuple(found[0]) if found else (0.0, -1.0)


def equal(step: Step, name: Name, value: bytes, most: int, *, down: bool) -> list[Item]:
    """At most `most` items (0: all) with this value, from the first or (down) from the last."""
    query = _all.where(_mine, _items.value == value).order_by(_items.score.desc() if down else _items.score)
    return [item_of(row) for row in read(step, name, query.limit(most) if most else query)]


NUMBER, FLOAT = "ERR value is not an integer or out of range", "ERR value is not a valid float"
SYNTAX = "ERR syntax error"


class StatusReply(bytes):
    """A status reply: OK, the reply of TYPE. A script sees it as a table with the field ok."""


OK = StatusReply(b"OK")
Words = Sequence[bytes]
Run = Callable[[Step, Words], Any]


class RedisCommand(NamedTuple):
    """names: how many of the first words are names; -1: all. least: the fewest words it accepts."""

    run: Run
    writes: bool
    names: int = 1
    least: int = 1


Commands = Mapping[str, RedisCommand]


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
