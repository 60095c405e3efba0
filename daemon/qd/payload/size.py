"""Limits for the size and nesting of payloads: checked before sending, and by the worker before decoding (the reserve script
has checked the size). 0 is no limit.
"""

from __future__ import annotations

import re
import sys
from array import array
from itertools import accumulate

from qd.errors import ArgumentError, Malformed
from qd.payload.format import pairs_of

_OPEN, _CLOSE = b"[{", b"]}"
_OTHER = bytes(set(range(256)) - set(_OPEN + _CLOSE + b'"'))
_STRING = re.compile(rb'"[^"]*"?')
_STEPS = bytes.maketrans(_OPEN + _CLOSE, b"\x01\x01\xff\xff")  # as signed bytes: one level down, one level up


def harmless(max_payload: int, max_depth: int) -> int:
    """A payload of up to this many bytes needs no check: it is not too large, and too short for that many brackets."""
    return min(max_payload or sys.maxsize, 2 * max_depth or sys.maxsize)


def check(payload: bytes, job: str | None, max_payload: int, max_depth: int, data: bytes = b"") -> None:
    """Raises ArgumentError naming the limit, the job and the excess. job: None for a raw payload. data: its arguments; the
    message names the largest one."""
    if max_payload and len(payload) > max_payload:
        raise ArgumentError(
            f"{_title(job)} has {len(payload)} bytes{_largest(data)}, more than max_payload = {max_payload}: store large "
            "data elsewhere and send a reference, or raise max_payload for producers and workers"
        )
    if too_deep(payload, max_depth):
        raise ArgumentError(
            f"{_title(job)} is nested {depth(payload)} deep, more than max_depth = {max_depth}: flatten it, or raise "
            "max_depth for producers and workers (PHP reads 512)"
        )


def _title(job: str | None) -> str:
    return f"a payload of job '{job}'" if job else "this raw payload"


def _largest(data: bytes) -> str:
    """The largest of several arguments, for the message: " (the argument 'text' 1048578 of them)"."""
    try:
        found = pairs_of(data)
    except Malformed:  # data of a raw job
        return ""
    if len(found) < 2:
        return ""
    name, value = max(found.items(), key=lambda item: len(item[1]))
    return f" (the argument {name[:80]!r} {len(value)} of them)"


def too_deep(payload: bytes, most: int) -> bool:
    """Whether it is nested deeper than `most`. Most payloads are too short for that, or have too few brackets."""
    if not most or len(payload) <= 2 * most or payload.count(b"{") + payload.count(b"[") <= most:
        return False
    return depth(payload) > most


def depth(payload: bytes) -> int:
    """The nesting depth as PHP counts it: `{"a":[]}` is 2. Brackets inside strings do not count.

    Time and memory are linear in the payload, whatever the bytes are; the result for invalid JSON is arbitrary.
    """
    bare = payload.replace(rb"\\", b"").replace(rb"\"", b"")  # now each quote begins or ends a string
    bare = bare.translate(None, _OTHER).replace(b'""', b"")
    steps = array("b", _STRING.sub(b"", bare).translate(_STEPS))
    return max(accumulate(steps, initial=0))
