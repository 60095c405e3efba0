"""Rewrites a payload that is sent later or again. Every other value keeps its bytes, and every key its place.

sent_again(failed payload), as pushed and as if pushed now:
    attempts     0, without the keys that a reserve wrote next to it (reservation.py); the checkpoint stays
    createdAt    now, also due_ms; retryUntil moves with it, so that the job has as much time again
    failures     "COUNT FIRST": how often it has failed permanently, and when first (unix seconds)
chained_payload(job of a chain, batch or catch), when its turn has come:
    createdAt    now, and retryUntil moves with it; due_ms, now or after its delay
    qd           the jobs that follow it
"""

from __future__ import annotations

import re

import msgspec

from qd.payload.build import with_due
from qd.payload.format import (
    FAILURES,
    LONGEST_TIME,
    NOTHING,
    ChainedJob,
    Payload,
    Relations,
    object_of,
    pairs_of,
    read,
    relations_text,
)

_RESERVED = ("crashes", "exceptions", "held", "rsv")
_UNTIL = re.compile(rb'"retryUntil":(\d+)')
_CREATED = re.compile(rb',"createdAt":(\d+)')
_RELATIONS, _ID, _DATA = b',"qd":', b',"id":', b'"data":'


def sent_again(raw: bytes, now: float, failed_at: float | None = None) -> bytes:
    """`raw` as it goes back to its queue. now, failed_at: unix seconds. Raises Malformed if the job can never run."""
    payload = read(raw)
    # timeoutAt: before Laravel 8, without a createdAt. retryUntil without createdAt: its length is unknown
    times = {"timeoutAt": b"null", "retryUntil": b"null"}
    if payload.createdAt is not None:
        times |= {"createdAt": b"%d" % now, "due_ms": b"%d" % (1000 * now)}
        if payload.retryUntil:
            length = min(max(0.0, payload.retryUntil - payload.createdAt), LONGEST_TIME)
            times["retryUntil"] = b"%d" % -(-(now + length) // 1)
    count, first = payload.failed_before
    failures = b""
    if failed_at is not None and (count or payload.failures is NOTHING):  # else the key is another program's
        failures = b'"%d %.3f"' % (count + 1, failed_at if first is None else first)
    return _unreserved(raw, times, failures)


def as_pushed(raw: bytes) -> bytes:
    """`raw` without what reserves and retries have written; its times stay. Raises Malformed."""
    read(raw)
    return _unreserved(raw, {})


def _unreserved(raw: bytes, times: dict[str, bytes], failures: bytes = b"") -> bytes:
    """times: the new values of keys that exist. failures: the new value of this key, which is then the first one."""
    pairs = pairs_of(raw)
    new = {key: value for key, value in ({"attempts": b"0"} | times).items() if key in pairs}
    kept = {key: value for key, value in (pairs | new).items() if key not in _RESERVED}
    if FAILURES.fullmatch(kept.get("failures", b"")):
        del kept["failures"]
    if failures:
        kept = {"failures": failures, **kept}
    return raw if kept == pairs else object_of(kept)


def chained_payload(
    link: ChainedJob, now: float, rest: tuple[ChainedJob, ...] = (), catch: tuple[ChainedJob, ...] = ()
) -> bytes:
    """The payload of `link` to send now, followed by `rest`. Text that is not a payload is sent unchanged: the worker that
    reserves it reports the error."""
    text = link.payload.encode()
    try:
        payload = read(text)
        later = int(now) - int(payload.createdAt or now)
        for start, end in reversed(time_positions(text, payload)):
            text = b"%b%d%b" % (text[:start], int(text[start:end]) + later, text[end:])
        if rest or catch:
            text = with_more_relations(text, payload, chain=rest, catch=catch)
        return text if payload.createdAt is None else with_due(text, now + link.delay)
    except ValueError:
        return text


def time_positions(text: bytes, payload: Payload) -> list[tuple[int, int]]:
    """The (start, end) of its times, in order: retryUntil before the arguments, createdAt right after them."""
    data = text.find(_DATA)
    found = [_UNTIL.search(text, 0, data), _CREATED.match(text, data + len(_DATA) + len(payload.data))]
    return [match.span(1) for match in found if match is not None]


def with_more_relations(text: bytes, payload: Payload, **more: object) -> bytes:
    """The payload with `more` relations. Only plain values follow its id, so the last "id" is its own."""
    relations = msgspec.structs.replace(payload.qd or Relations(), **more)
    at = text.rindex(_ID)
    start = at if payload.qd is None else text.rindex(_RELATIONS, 0, at)
    return text[:start] + relations_text(relations) + text[at:]
