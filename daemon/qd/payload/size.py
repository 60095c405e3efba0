"""How large and how deep a payload may be: asked before it is sent, and by the worker before it is decoded (its size is
looked at by the reserve script already). 0 is no bound.
"""

from __future__ import annotations

import re
import sys
from array import array
from itertools import accumulate

import msgspec

from qd.errors import ArgumentError

_OPEN, _CLOSE = b"[{", b"]}"
_OTHER = bytes(set(range(256)) - set(_OPEN + _CLOSE + b'"'))
_STRING = re.compile(rb'"[^"]*"?')
_STEPS = bytes.maketrans(_OPEN + _CLOSE, b"\x01\x01\xff\xff")  # as signed bytes: one down, one up


def harmless(max_payload: int, max_depth: int) -> int:
    """Bytes that a payload may have and needs no look: it is not too large, and has no room for that many brackets."""
    return min(max_payload or sys.maxsize, 2 * max_depth or sys.maxsize)


def check(payload: bytes, job: str | None, max_payload: int, max_depth: int, data: bytes = b"") -> None:
    """Raises ArgumentError naming the limit, the job and what it would take. job None: a raw payload. data: the arguments
    in it, of which the largest is named."""
    if max_payload and len(payload) > max_payload:
        raise ArgumentError(
            f"{what(job)} has {len(payload)} bytes{largest(data)}, more than max_payload = {max_payload}: keep what is "
            "large elsewhere and send where it is, or raise max_payload for producers and workers"
        )
    if too_deep(payload, max_depth):
        raise ArgumentError(
            f"{what(job)} is nested {depth(payload)} deep, more than max_depth = {max_depth}: send it flatter, or raise "
            "max_depth for producers and workers (PHP reads 512)"
        )


def what(job: str | None) -> str:
    return f"a payload of job '{job}'" if job else "this raw payload"


def largest(data: bytes) -> str:
    """The largest of several arguments, for the error: " (the argument 'text' 1048578 of them)"."""
    try:
        found = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:  # a raw job's
        return ""
    if len(found) < 2:
        return ""
    name, value = max(found.items(), key=lambda item: len(bytes(item[1])))
    return f" (the argument {name[:80]!r} {len(bytes(value))} of them)"


def too_deep(payload: bytes, most: int) -> bool:
    """Whether it is nested deeper than `most`. As a rule it is too short for that, or has too few brackets."""
    if not most or len(payload) <= 2 * most or payload.count(b"{") + payload.count(b"[") <= most:
        return False
    return depth(payload) > most


def depth(payload: bytes) -> int:
    """How many brackets are open at once, as PHP counts: `{"a":[]}` is 2. What stands in texts does not count.

    In time and memory of the order of the payload, whatever the bytes are; for what is no JSON it is some number.
    """
    bare = payload.replace(rb"\\", b"").replace(rb"\"", b"")  # now each quote begins or ends a text
    bare = bare.translate(None, _OTHER).replace(b'""', b"")
    steps = array("b", _STRING.sub(b"", bare).translate(_STEPS))
    return max(accumulate(steps, initial=0))
