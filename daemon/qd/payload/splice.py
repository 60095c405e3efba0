"""Writes a reservation into a payload, for drivers whose server runs no script: reservation.lua in Python.

    _fresh      the usual payload, as Laravel and qd push it
    _in_tail    one that was reserved before: its fields (the "unit", reservation.py) are in one piece near the end
    _rewritten  another program has rewritten it, and our keys may be anywhere: the object is written again, with the fields
                at its end, and with the bytes of every other value

The result is what reservation.lua writes, byte for byte; in the last case the order of keys and the white space between
them may differ. In JSON the text "attempts" before a colon can only be a key if no backslash precedes its quote; only its
depth is in question.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from qd.errors import Malformed
from qd.payload.build import object_of
from qd.payload.format import LIMIT, pairs_of, read
from qd.payload.reservation import Ending
from qd.process import SLOTS

COUNTS = (b"crashes", b"exceptions", b"held")
OURS = frozenset({"attempts", "crashes", "exceptions", "held", "rsv"})
SAVED = 90_000  # bytes that a checkpoint may fill

_MARK = rb'"([0-9A-Za-z]+\.[0-9]+\.[0-9]+\.[0-9%b]+)"' % re.escape("".join(Ending)).encode()
_NUMBER = rb"(0|[1-9][0-9]{0,15})"
_ATTEMPTS = re.compile(rb'"attempts"\s*:\s*%b(?=[\s,}])' % _NUMBER)
_COUNT = {key: re.compile(rb',"%b":%b(?=[,}])' % (key, _NUMBER)) for key in COUNTS}
_RSV = re.compile(rb',"rsv":' + _MARK)
_WHOLE_MARK = re.compile(_MARK)
_FLAT_TAIL = re.compile(rb"[^{}\[\]]*\}\s*\Z")
_FIRST = re.compile(rb"\s*\{")
_LAST = re.compile(rb"\}\s*\Z")
_EMPTY = re.compile(rb"\s*\{\s*\}")
_N = re.compile(r"\.0?([0-9]+)\Z")


@dataclass(slots=True)
class Unit:
    """The reservation fields at bytes `start` to before `end`. New fields are written there between `opening` and
    `closing`."""

    start: int
    end: int
    attempts: int = 0
    counts: dict[bytes, int] = field(default_factory=dict)
    rsv: str = ""
    opening: bytes = b""
    closing: bytes = b""


class Spliced(NamedTuple):
    """A reserved payload. `length` bytes from `start` on replace `before`. attempts: 1 for the first attempt."""

    text: bytes
    mark: str
    start: int
    length: int
    before: bytes
    attempts: int


def reserved_text(payload: bytes, base: str, *, attempts: int | None = None) -> Spliced | None:
    """`payload` reserved under a mark that begins with `base` ("<token>.<slot>.<turn>"). None if it is not an object, or
    attempts is not a count. Any other malformed payload is reserved: its worker reports what is wrong. The counts follow
    from the payload: one attempt more (unless `attempts` is given), and one crash more if the previous reservation was
    never answered and the job was alone in its worker. Putting `before` back restores the pushed bytes."""
    if attempts in (None, 1) and (fresh := _fresh(payload, base)) is not None:
        return fresh
    first, last = _FIRST.match(payload), _LAST.search(payload, max(0, len(payload) - 65))
    if first is None or last is None:
        return None
    unit = _in_tail(payload)
    if _may_be_scattered(payload, unit):
        try:
            unit = _rewritten(payload, first.end() - 1, last.start() + 1, unit)
        except Malformed as error:
            if str(error).startswith("attempts: "):
                return None
    if unit is None:
        unit = Unit(last.start(), last.start(), opening=b"" if _EMPTY.match(payload) else b",")
    count, counts = _counted(unit)
    count = count if attempts is None else attempts
    mark = f"{base}.{count}"
    fields = b'%b"attempts":%d' % (unit.opening, count)
    fields += b"".join([b',"%b":%d' % (key, value) for key, value in counts.items() if value > 0])
    fields += b',"rsv":"%b"%b' % (mark.encode(), unit.closing)
    text = payload[: unit.start] + fields + payload[unit.end :]
    return Spliced(text, mark, unit.start, len(fields), payload[unit.start : unit.end], count)


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


def _in_tail(payload: bytes) -> Unit | None:
    """The unit at the last "attempts" of the tail, if no bracket follows: it is then on the top level. A checkpoint may
    follow it."""
    saved = payload.find(b'","saved":"', max(0, len(payload) - SAVED - 1))
    end = len(payload) if saved < 0 else saved + 1
    at = payload.rfind(b'"attempts"', max(0, min(len(payload), end) - 512))
    if at < 0 or payload[at - 1 : at] == b"\\" or not _FLAT_TAIL.match(payload, at):
        return None
    found = _ATTEMPTS.match(payload, at)
    if found is None or int(found[1]) > LIMIT:
        return None
    unit = Unit(at, found.end(), int(found[1]))
    for key in COUNTS:
        if (more := _COUNT[key].match(payload, unit.end)) and int(more[1]) <= LIMIT:
            unit.end, unit.counts[key] = more.end(), int(more[1])
    if more := _RSV.match(payload, unit.end):
        unit.end, unit.rsv = more.end(), more[1].decode()
    return unit


def _may_be_scattered(payload: bytes, unit: Unit | None) -> bool:
    """Whether our keys may be outside the unit, because another program has rewritten the payload."""
    marked = unit is not None and bool(unit.rsv)
    end = unit.end if unit is not None and marked else 0
    if payload.find(b'rsv"', end) >= 0:
        return True
    if marked and any(payload.find(b'"%b"' % key, end) >= 0 for key in COUNTS):
        return True
    return unit is None and b'"attempts"' in payload


def _rewritten(payload: bytes, start: int, end: int, unit: Unit | None) -> Unit | None:
    """The unit of a payload whose object is at bytes `start` to before `end`: it replaces the whole object if one of our
    keys is outside `unit`. Raises Malformed."""
    job, pairs = read(payload), pairs_of(payload)
    ours = OURS & pairs.keys()
    if not ours or (unit is not None and ours == {"attempts"}):
        return unit
    counts = dict(zip(COUNTS, (job.crashes, job.exceptions, job.held), strict=True))
    mark = _WHOLE_MARK.fullmatch(pairs.get("rsv", b""))
    others = object_of({key: value for key, value in pairs.items() if key not in OURS})[:-1]
    comma = b"" if others == b"{" else b","
    return Unit(start, end, job.attempts, counts, mark[1].decode() if mark else "", others + comma, b"}")


def _counted(unit: Unit) -> tuple[int, dict[bytes, int]]:
    """The number of this attempt, and the other counts."""
    counts = {key: unit.counts.get(key, 0) for key in COUNTS}
    found = _N.search(unit.rsv)
    if unit.rsv and found is not None and found[1] == str(unit.attempts):  # never answered: a crash if it was alone
        if int(unit.rsv.split(".")[1]) < SLOTS:
            counts[b"crashes"] = min(counts[b"crashes"] + 1, LIMIT)
        return unit.attempts, counts
    return min(unit.attempts + 1, LIMIT), counts
