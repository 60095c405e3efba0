"""The unit of a payload (unit.py), wherever it stands, and keys of ours that another program has scattered when it wrote the
payload again: they are found, taken out, and what they said is kept. For reserving.py, byte for byte as unit.lua.

In JSON the text "attempts" before a colon can only be a key when its quote is not behind a backslash; only its depth is in
question.

What a reserve writes into a payload, for drivers whose server runs no script of ours: `reserved_text`.

It is unit.lua in Python, byte for byte: the unit stands where Laravel's top-level `attempts` stands.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from qd.payload.reservation import Ending

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


_FIRST = re.compile(rb"\s*\{")
_LAST = re.compile(rb"\}\s*\Z")
_EMPTY = re.compile(rb"\s*\{\s*\}")
_N = re.compile(r"[0-9]*\Z")


class Spliced(NamedTuple):
    """text: the payload with its unit, of `length` bytes from `start` on; before: what stood there; attempts: this one, 1
    for the first."""

    text: bytes
    mark: str
    start: int
    length: int
    before: bytes
    attempts: int


def reserved_text(
    payload: bytes,
    base: str,
    *,
    attempts: int | None = None,
    crashes: int | None = None,
    exceptions: int | None = None,
    held: int | None = None,
) -> Spliced | None:
    """`payload` reserved under a mark that begins with `base` ("<token>.<slot>.<turn>"). None: it is no object, or its
    attempts are no count.

    The counts given stand in it; those that are not (None) follow from what stands there: one attempt more, or, where the
    reservation before was never answered, one crash more. Put `before` back, and the pushed bytes are whole again.
    """
    if attempts in (None, 1) and not (crashes or exceptions or held) and (fresh := _fresh(payload, base)) is not None:
        return fresh
    if not _FIRST.match(payload) or not _LAST.search(payload, max(0, len(payload) - 65)):
        return None
    found = _with_a_place(payload)
    if found is None:
        return None
    text, unit, got, comma = found
    count, counts = _counted(unit, got)
    for key, value in zip(COUNTS, (crashes, exceptions, held), strict=True):
        counts[key] = counts[key] if value is None else value
    count = count if attempts is None else attempts
    mark = f"{base}.{count}"
    said = comma + b'"attempts":%d' % count
    said += b"".join([b',"%b":%d' % (key, value) for key, value in counts.items() if value > 0])
    said += b',"rsv":"%b"' % mark.encode()
    # What was written is one piece: from the first hole or the unit to the last hole or the unit.
    start = unit.start if got.start < 0 else min(got.start, unit.start)
    behind = len(text) - unit.end if got.behind < 0 else min(got.behind, len(text) - unit.end)
    text = text[: unit.start] + said + text[unit.end :]
    return Spliced(text, mark, start, len(text) - behind - start, payload[start : len(payload) - behind], count)


def _with_a_place(payload: bytes) -> tuple[bytes, Unit, Gathered, bytes] | None:
    """The payload without scattered keys of ours, its unit, what those keys said, and the comma that a new unit needs. Where
    there is none its place is before the closing brace. None: attempts that are no count."""
    text, unit, got = payload, in_tail(payload), Gathered()
    if scattered(payload, unit):
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


def _counted(unit: Unit, got: Gathered) -> tuple[int, dict[bytes, int]]:
    """Which attempt this one is, and the other counts, as what stands there tells them."""
    count, crashed = _attempts_of(unit, unit.rsv or got.rsv)
    counts = {key: unit.counts.get(key, got.counts.get(key, 0)) for key in COUNTS}
    if crashed:
        counts[b"crashes"] = _more(counts[b"crashes"])
    return count, counts


def _fresh(payload: bytes, base: str) -> Spliced | None:
    """The usual payload, as Laravel and qd push it: attempts 0 at the end, and never reserved before."""
    at = payload.find(b',"attempts":0', max(0, len(payload) - 27))
    if at < 0 or payload[at + 13 :] not in (b',"delay":null}', b"}"):
        return None
    if payload[:1] != b"{" or b'rsv"' in payload:
        return None
    mark = base + ".1"
    said = b'"attempts":1,"rsv":"%b"' % mark.encode()
    text = payload[: at + 1] + said + payload[at + 13 :]
    return Spliced(text, mark, at + 1, len(said), b'"attempts":0', 1)


def _more(count: int) -> int:
    """One more; 2^53 is the end of counting, as in a script."""
    return int(float(count) + 1)


def _attempts_of(unit: Unit, mark: str) -> tuple[int, bool]:
    """Which attempt this one is, and whether the one before was never answered: then it was a crash."""
    found = _N.search(mark)
    if mark and found is not None and found[0] == str(unit.attempts):
        return unit.attempts, True
    return _more(unit.attempts), False
