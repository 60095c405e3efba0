"""What a reserve writes into a payload, for connectors whose server runs no script of ours: `reserved_text`.

It is unit.lua in Python, byte for byte: the unit stands where Laravel's top-level `attempts` stands.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from qd.scattered import COUNTS, Gathered, Unit, gathered, in_tail, scattered

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
