"""Writes a reservation into a payload, for drivers whose server runs no script: unit.lua in Python, byte for byte.

The reservation fields (the "unit", reservation.py) take the place of Laravel's top-level `attempts`. If another program has
rewritten the payload, our keys may be scattered outside the unit: they are found, removed, and their values kept.

In JSON the text "attempts" before a colon can only be a key if no backslash precedes its quote; only its depth is in
question.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from qd.payload.reservation import Ending

COUNTS = (b"crashes", b"exceptions", b"held")
LARGEST = b"9007199254740992"  # 2^53; compared as text
MOST = 8  # scattered keys that are removed at most
SAVED = 90_000  # bytes that a checkpoint may fill

_MARK = rb'"([0-9A-Za-z]+\.[0-9]+\.[0-9]+\.[0-9%b]+)"' % re.escape("".join(Ending)).encode()
_ATTEMPTS = re.compile(rb'"attempts"\s*:\s*([0-9]+)(?=[\s,}])')
_COUNT = {key: re.compile(rb',"%b":([0-9]+)(?=[,}])' % key) for key in COUNTS}
_RSV = re.compile(rb',"rsv":' + _MARK)
_KEY = re.compile(rb'"([0-9A-Za-z]+)"\s*:\s*')
_VALUE = {b"rsv": re.compile(_MARK)}
_NUMBER = re.compile(rb"[0-9]+")
_ENDED = re.compile(rb"\s*[,}]")
_FLAT_TAIL = re.compile(rb"[^{}\[\]]*\}\s*\Z")
_BRACKET = re.compile(rb'["{}\[\]]')
_COMMA = re.compile(rb"\s*,")
_COLON = re.compile(rb"\s*:")
_SPACE = b" \t\n\v\f\r"
_FIRST = re.compile(rb"\s*\{")
_LAST = re.compile(rb"\}\s*\Z")
_EMPTY = re.compile(rb"\s*\{\s*\}")
_N = re.compile(r"[0-9]*\Z")


@dataclass(slots=True)
class Unit:
    """The reservation fields at bytes `start` to before `end`; start -1: there are none, and attempts is 0."""

    start: int = -1
    end: int = -1
    attempts: int = 0
    counts: dict[bytes, int] = field(default_factory=dict)
    rsv: str = ""


@dataclass(slots=True)
class Scattered:
    """The values of scattered keys. start: of the first hole; behind: bytes after the last hole; -1: no hole. stays: a key
    has a value that we never write, and was left unchanged."""

    counts: dict[bytes, int] = field(default_factory=dict)
    rsv: str = ""
    start: int = -1
    behind: int = -1
    stays: bool = False


def count_of(digits: bytes) -> int | None:
    """An integer from 0 to 2^53, else None."""
    if len(digits) > 16 or (len(digits) == 16 and digits > LARGEST) or (len(digits) > 1 and digits[:1] == b"0"):
        return None
    return int(digits)


def unit_at(payload: bytes, at: int) -> Unit | None:
    """The unit that begins at `at`. None if attempts is not a count."""
    found = _ATTEMPTS.match(payload, at)
    attempts = count_of(found[1]) if found else None
    if found is None or attempts is None:
        return None
    unit = Unit(at, found.end(), attempts)
    for key in COUNTS:
        more = _COUNT[key].match(payload, unit.end)
        number = count_of(more[1]) if more else None
        if more is not None and number is not None:
            unit.end, unit.counts[key] = more.end(), number
    if more := _RSV.match(payload, unit.end):
        unit.end, unit.rsv = more.end(), more[1].decode()
    return unit


def in_tail(payload: bytes) -> Unit | None:
    """The unit at the last "attempts" of the tail, if no bracket follows: it is then on the top level. A checkpoint may
    follow it."""
    saved = payload.find(b'","saved":"', max(0, len(payload) - SAVED - 1))
    end = len(payload) if saved < 0 else saved + 1
    at = payload.rfind(b'"attempts"', max(0, min(len(payload), end) - 512))
    if at < 0 or payload[at - 1 : at] == b"\\" or not _FLAT_TAIL.match(payload, at):
        return None
    return unit_at(payload, at)


def may_be_scattered(payload: bytes, unit: Unit | None) -> bool:
    """Whether our keys may be outside the unit, because another program has rewritten the payload."""
    marked = unit is not None and bool(unit.rsv)
    end = unit.end if unit is not None and marked else 0
    if payload.find(b'rsv"', end) >= 0:
        return True
    if marked and any(payload.find(b'"%b"' % key, end) >= 0 for key in COUNTS):
        return True
    return unit is None and b'"attempts"' in payload


# -- scattered keys: removed from the last one to the first


def gathered(payload: bytes) -> tuple[bytes, Unit | None, Scattered] | None:
    """The payload without scattered keys, its unit, and their values. None if attempts is not a count."""
    at, places = top_level(payload)
    unit = unit_at(payload, at) if at >= 0 else None
    if at >= 0 and unit is None:
        return None
    got, text = Scattered(stays=len(places) > MOST), payload
    for place in () if got.stays else reversed(places):
        if unit is not None and unit.start <= place < unit.end:
            continue
        found = key_at(text, place)
        if found is None:
            got.stays = True
            continue
        key, end, value = found
        length = len(text)
        text, got.start = cut(text, place, end)
        if got.behind < 0:
            got.behind = len(text) - got.start
        if isinstance(value, str):
            got.rsv = got.rsv or value
        else:
            got.counts.setdefault(key, value)
        if unit is not None and place < unit.start:
            unit.start, unit.end = unit.start + len(text) - length, unit.end + len(text) - length
    return text, unit, got


def top_level(payload: bytes) -> tuple[int, list[int]]:
    """The positions of the last top-level "attempts" (-1: none) and of our other top-level keys. The depth of each is
    counted from the nearer end of the payload, so that large arguments without such a key are not scanned."""
    places, on_top = keys_at(payload), dict[int, bool]()
    k, i, depth = 0, 0, 0
    while k < len(places) and 2 * (places[k] + 1) <= len(payload):
        depth, i = depth + opened(payload, i, places[k]), places[k]
        on_top[i], k = depth == 1, k + 1
    i, depth = len(payload), 0
    for place in reversed(places[k:]):
        depth, i = depth - opened(payload, place, i), place
        on_top[i] = depth == 1
    at, ours = -1, list[int]()
    for place in places:
        if on_top[place] and payload[place + 1] == ord("a"):
            at = place
        elif on_top[place]:
            ours.append(place)
    return at, ours


def keys_at(payload: bytes) -> list[int]:
    places = []
    for name in (b"attempts", b"rsv", *COUNTS):
        at = payload.find(b'"%b"' % name)
        while at >= 0:
            if payload[at - 1 : at] != b"\\" and _COLON.match(payload, at + len(name) + 2):
                places.append(at)
            at = payload.find(b'"%b"' % name, at + 1)
    return sorted(places)


def opened(payload: bytes, start: int, end: int) -> int:
    """The brackets opened minus those closed from `start` to before `end`, outside strings."""
    depth = 0
    while (found := _BRACKET.search(payload, start)) and found.start() < end:
        start = found.start() + 1
        if found[0] == b'"':
            start = string_end(payload, found.start()) + 1
            if not start:
                return depth
        else:
            depth += 1 if found[0] in (b"{", b"[") else -1
    return depth


def string_end(payload: bytes, start: int) -> int:
    """The end of the string that starts at `start`; -1: it has none."""
    end = start
    while (end := payload.find(b'"', end + 1)) >= 0:
        k = end - 1
        while payload[k] == ord("\\"):
            k -= 1
        if (end - k) % 2 == 1:
            return end
    return -1


def key_at(text: bytes, at: int) -> tuple[bytes, int, int | str] | None:
    """Our key at `at`, its end and its value. None for a value that we never write."""
    named = _KEY.match(text, at)
    found = _VALUE.get(named[1], _NUMBER).match(text, named.end()) if named else None
    if named is None or found is None or not _ENDED.match(text, found.end()):
        return None
    value = found[1].decode() if named[1] == b"rsv" else count_of(found[0])
    return None if value is None else (named[1], found.end(), value)


def cut(text: bytes, start: int, end: int) -> tuple[bytes, int]:
    """`text` without the bytes from `start` to before `end` and one comma, and the position of the hole."""
    comma = _COMMA.match(text, end)
    k = start - 1
    while text[k] in _SPACE:
        k -= 1
    if text[k] == ord(","):
        start = k
    elif comma:
        end = comma.end()
    return text[:start] + text[end:], start


class Spliced(NamedTuple):
    """A reserved payload. text has its unit in `length` bytes from `start` on, in place of `before`; attempts: 1 for the
    first attempt."""

    text: bytes
    mark: str
    start: int
    length: int
    before: bytes
    attempts: int


def reserved_text(
    payload: bytes, base: str, *, attempts: int | None = None, crashes: int | None = None, exceptions: int | None = None,
    held: int | None = None,
) -> Spliced | None:  # fmt: skip
    """`payload` reserved under a mark that begins with `base` ("<token>.<slot>.<turn>"). None if it is not an object, or
    attempts is not a count.

    Counts that are not given (None) follow from the payload: one attempt more, and one crash more if the
    previous reservation was never answered. Putting `before` back restores the pushed bytes.
    """
    if attempts in (None, 1) and not (crashes or exceptions or held) and (fresh := _fresh(payload, base)) is not None:
        return fresh
    if not _FIRST.match(payload) or not _LAST.search(payload, max(0, len(payload) - 65)):
        return None
    found = _with_unit(payload)
    if found is None:
        return None
    text, unit, got, comma = found
    count, counts = _counted(unit, got)
    for key, value in zip(COUNTS, (crashes, exceptions, held), strict=True):
        counts[key] = counts[key] if value is None else value
    count = count if attempts is None else attempts
    mark = f"{base}.{count}"
    fields = comma + b'"attempts":%d' % count
    fields += b"".join([b',"%b":%d' % (key, value) for key, value in counts.items() if value > 0])
    fields += b',"rsv":"%b"' % mark.encode()
    # The change is one piece: from the first hole or the unit to the last hole or the unit.
    start = unit.start if got.start < 0 else min(got.start, unit.start)
    behind = len(text) - unit.end if got.behind < 0 else min(got.behind, len(text) - unit.end)
    text = text[: unit.start] + fields + text[unit.end :]
    return Spliced(text, mark, start, len(text) - behind - start, payload[start : len(payload) - behind], count)


def _with_unit(payload: bytes) -> tuple[bytes, Unit, Scattered, bytes] | None:
    """The payload without scattered keys, its unit (a new one goes before the closing brace), the values of those keys, and
    the comma that a new unit needs. None if attempts is not a count."""
    text, unit, got = payload, in_tail(payload), Scattered()
    if may_be_scattered(payload, unit):
        found = gathered(payload)
        if found is None:
            return None
        text, unit, got = found
    unit = unit or Unit()
    if not got.stays and unit.start >= 0:
        return text, unit, got, b""
    closing = _LAST.search(text, max(0, len(text) - 65))
    assert closing is not None
    unit.start = unit.end = closing.start()
    return text, unit, got, b"" if _EMPTY.match(text) else b","


def _counted(unit: Unit, got: Scattered) -> tuple[int, dict[bytes, int]]:
    """The number of this attempt, and the other counts."""
    mark = unit.rsv or got.rsv
    found = _N.search(mark)
    counts = {key: unit.counts.get(key, got.counts.get(key, 0)) for key in COUNTS}
    if mark and found is not None and found[0] == str(unit.attempts):  # never answered: a crash
        counts[b"crashes"] = _plus_one(counts[b"crashes"])
        return unit.attempts, counts
    return _plus_one(unit.attempts), counts


def _fresh(payload: bytes, base: str) -> Spliced | None:
    """The usual payload, as Laravel and qd push it: attempts 0 at its end, and never reserved."""
    at = payload.find(b',"attempts":0', max(0, len(payload) - 27))
    if at < 0 or payload[at + 13 :] not in (b',"delay":null}', b"}"):
        return None
    if payload[:1] != b"{" or b'rsv"' in payload:
        return None
    mark = base + ".1"
    fields = b'"attempts":1,"rsv":"%b"' % mark.encode()
    text = payload[: at + 1] + fields + payload[at + 13 :]
    return Spliced(text, mark, at + 1, len(fields), b'"attempts":0', 1)


def _plus_one(count: int) -> int:
    """2^53 is the largest count, as in a script."""
    return int(float(count) + 1)
