"""The unit of a payload (unit.py), wherever it stands, and keys of ours that another program has scattered when it wrote the
payload again: they are found, taken out, and what they said is kept. For reserving.py, byte for byte as unit.lua.

In JSON the text "attempts" before a colon can only be a key when its quote is not behind a backslash; only its depth is in
question.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from qd.unit import Ending

COUNTS = (b"crashes", b"exceptions", b"held")
LARGEST = b"9007199254740992"  # 2^53; compared as text
MOST = 8  # keys of ours that are taken out of a payload which another program has written again
SAVED = 90_000  # bytes that what a job saves may fill

_MARK = rb'"([0-9A-Za-z]+\.[0-9]+\.[0-9]+\.[0-9%b]+)"' % re.escape("".join(Ending)).encode()
_ATTEMPTS = re.compile(rb'"attempts"\s*:\s*([0-9]+)(?=[\s,}])')
_COUNT = {key: re.compile(rb',"%b":([0-9]+)(?=[,}])' % key) for key in COUNTS}
_RSV = re.compile(rb',"rsv":' + _MARK)
_SAID = re.compile(rb'"([0-9A-Za-z]+)"\s*:\s*')
_VALUE = {b"rsv": re.compile(_MARK)}
_NUMBER = re.compile(rb"[0-9]+")
_ENDED = re.compile(rb"\s*[,}]")
_FLAT_TAIL = re.compile(rb"[^{}\[\]]*\}\s*\Z")
_BRACKET = re.compile(rb'["{}\[\]]')
_COMMA = re.compile(rb"\s*,")
_COLON = re.compile(rb"\s*:")
_SPACE = b" \t\n\v\f\r"


@dataclass(slots=True)
class Unit:
    """From `start` to before `end`; -1: there is none, attempts is 0."""

    start: int = -1
    end: int = -1
    attempts: int = 0
    counts: dict[bytes, int] = field(default_factory=dict)
    rsv: str = ""


@dataclass(slots=True)
class Gathered:
    """What scattered keys said. start: of the first hole, behind: how much stands behind the last; -1: there is none.
    stays: one does not say what we write and was left as it is."""

    counts: dict[bytes, int] = field(default_factory=dict)
    rsv: str = ""
    start: int = -1
    behind: int = -1
    stays: bool = False


def count_of(digits: bytes) -> int | None:
    """An integer from 0 to 2^53, None for what is none."""
    if len(digits) > 16 or (len(digits) == 16 and digits > LARGEST) or (len(digits) > 1 and digits[:1] == b"0"):
        return None
    return int(digits)


def unit_at(payload: bytes, at: int) -> Unit | None:
    """The unit that begins at `at`. None when attempts is no count."""
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
    """The last "attempts" of the tail, when nothing is opened behind it: then it stands on the top level. What the job has
    saved may stand between it and the end."""
    saved = payload.find(b'","saved":"', max(0, len(payload) - SAVED - 1))
    end = len(payload) if saved < 0 else saved + 1
    at = payload.rfind(b'"attempts"', max(0, min(len(payload), end) - 512))
    if at < 0 or payload[at - 1 : at] == b"\\" or not _FLAT_TAIL.match(payload, at):
        return None
    return unit_at(payload, at)


def scattered(payload: bytes, unit: Unit | None) -> bool:
    """Whether keys of ours may stand outside of the unit: another program has written the payload again."""
    marked = unit is not None and bool(unit.rsv)
    end = unit.end if unit is not None and marked else 0
    if payload.find(b'rsv"', end) >= 0:
        return True
    if marked and any(payload.find(b'"%b"' % key, end) >= 0 for key in COUNTS):
        return True
    return unit is None and b'"attempts"' in payload


# -- keys that another program has scattered: they are taken out, the last one first, and what they said is kept


def gathered(payload: bytes) -> tuple[bytes, Unit | None, Gathered] | None:
    """The payload without them, its unit, and what they said. None: attempts that are no count."""
    at, places = top_level(payload)
    unit = unit_at(payload, at) if at >= 0 else None
    if at >= 0 and unit is None:
        return None
    got, text = Gathered(stays=len(places) > MOST), payload
    for place in () if got.stays else reversed(places):
        if unit is not None and unit.start <= place < unit.end:
            continue
        said = said_at(text, place)
        if said is None:
            got.stays = True
            continue
        key, end, value = said
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
    """Where the last "attempts" of the top level stands (-1: nowhere), and where the other keys of ours do. The depth of
    each is told from the nearer end of the payload, so that large arguments are not walked through as long as no such key is
    in them."""
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
    """How many brackets are opened, less those that are closed, from `start` to before `end`; strings are passed over."""
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
    """Where the string that is opened at `start` is closed; -1: nowhere."""
    end = start
    while (end := payload.find(b'"', end + 1)) >= 0:
        k = end - 1
        while payload[k] == ord("\\"):
            k -= 1
        if (end - k) % 2 == 1:
            return end
    return -1


def said_at(text: bytes, at: int) -> tuple[bytes, int, int | str] | None:
    """The key of ours at `at`, where it ends and what it says. None: not what we write there."""
    named = _SAID.match(text, at)
    found = _VALUE.get(named[1], _NUMBER).match(text, named.end()) if named else None
    if named is None or found is None or not _ENDED.match(text, found.end()):
        return None
    value = found[1].decode() if named[1] == b"rsv" else count_of(found[0])
    return None if value is None else (named[1], found.end(), value)


def cut(text: bytes, start: int, end: int) -> tuple[bytes, int]:
    """`text` without what stands from `start` to before `end`, and one comma. And where the hole is."""
    comma = _COMMA.match(text, end)
    k = start - 1
    while text[k] in _SPACE:
        k -= 1
    if text[k] == ord(","):
        start = k
    elif comma:
        end = comma.end()
    return text[:start] + text[end:], start
