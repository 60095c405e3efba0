"""Rewrites the bytes of a payload that is sent later or again. Every other byte stays unchanged.

sent_again(failed payload), as pushed and as if pushed now:
    attempts     0, without the keys that a reserve wrote next to it (reservation.py); the checkpoint stays
    createdAt    now; retryUntil moves with it, so that the job has as much time again
    failures     "COUNT FIRST": how often it has failed permanently, and when first (unix seconds)
chained_payload(job of a chain, batch or catch), when its turn has come:
    createdAt    now, and retryUntil moves with it
    qd           the jobs that follow it
"""

from __future__ import annotations

import re

import msgspec

from qd.errors import Malformed
from qd.payload.format import FAILURES, NOTHING, ChainedJob, Payload, Relations, read, relations_text

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_TOKEN = re.compile(rb"[{}\[\]]|" + _STRING, re.DOTALL)
_VALUE = re.compile(rb"\s*:\s*(" + _STRING + rb"|[^\s,}\]]+)", re.DOTALL)
_COMMA = re.compile(rb"\s*,")
_COUNTS = (b'"crashes"', b'"exceptions"', b'"held"')
_MARK = b'"rsv"'
_FAILURES = b'"failures"'
_TEXTS = (_MARK, _FAILURES)
_TIMES = (b'"createdAt"', b'"retryUntil"', b'"timeoutAt"')
_OURS = (b'"attempts"', *_COUNTS, *_TEXTS, *_TIMES)
_UNTIL = re.compile(rb'"retryUntil":(\d+)')
_CREATED = re.compile(rb',"createdAt":(\d+)')
_RELATIONS, _ID, _DATA = b',"qd":', b',"id":', b'"data":'


def sent_again(raw: bytes, now: float, failed_at: float | None = None) -> bytes:
    """`raw` as it goes back to its queue. now, failed_at: unix seconds. Raises Malformed if the job can never run."""
    before = read(raw)
    values = _new_values(before, now)
    count, first = before.failed_before
    if failed_at is not None and (count or before.failures is NOTHING):  # else the key is another program's
        values[_FAILURES] = b'"%d %.3f"' % (count + 1, failed_at if first is None else first)
    return _spliced(raw, before, values)


def as_pushed(raw: bytes) -> bytes:
    """`raw` without what reserves have written; its times stay. Raises Malformed."""
    return _spliced(raw, read(raw), {b'"attempts"': b"0"})


def _spliced(raw: bytes, before: Payload, values: dict[bytes, bytes]) -> bytes:
    text, end, found = bytearray(), 0, _our_keys(raw)
    if _FAILURES in values and not any(key == _FAILURES for _, _, key, _ in found):
        end = raw.index(b"{") + 1
        text += raw[:end] + b"%b:%b," % (_FAILURES, values[_FAILURES])
    for start, stop, key, value in found:
        if key in _TIMES and key not in values:
            continue
        if key in values:
            text += raw[end:value] + values[key]
        else:
            kept = raw[end:start].rstrip()
            comma = _COMMA.match(raw, stop)
            if kept.endswith(b","):
                text += kept[:-1]
            elif key == _FAILURES and comma:  # the first key, as it was written here
                text, stop = text + kept, comma.end()
            else:  # the first key: it stays, with an empty value
                text += raw[end:value] + (b'""' if key in _TEXTS else b"0")
        end = stop
    made = bytes(text + raw[end:])
    after = read(made)
    if after.attempts or after.crashes or after.exceptions or after.held or bytes(after.data) != bytes(before.data):
        raise Malformed("its count of attempts cannot be reset")
    return made


def _new_values(payload: Payload, now: float) -> dict[bytes, bytes]:
    # timeoutAt: before Laravel 8, without a createdAt. retryUntil without createdAt: its length is unknown
    values = {b'"attempts"': b"0", b'"timeoutAt"': b"null", b'"retryUntil"': b"null"}
    if payload.createdAt is not None:
        values[b'"createdAt"'] = b"%d" % now
        if payload.retryUntil:
            values[b'"retryUntil"'] = b"%d" % -(-(now + max(0.0, payload.retryUntil - payload.createdAt)) // 1)
    return values


def _our_keys(raw: bytes) -> list[tuple[int, int, bytes, int]]:
    """Our keys on the top level: (start, end, key with its quotes, start of the value)."""
    if not any(key in raw for key in _OURS):
        return []
    found, depth = [], 0
    for token in _TOKEN.finditer(raw):
        text = token[0]
        if text in b"{[":
            depth += 1
        elif text in b"}]":
            depth -= 1
        elif (
            depth == 1
            and text in _OURS
            and (value := _VALUE.match(raw, token.end()))
            and (text != _FAILURES or FAILURES.fullmatch(value[1]))
        ):
            found.append((token.start(), value.end(), text, value.start(1)))
    return found


def chained_payload(
    link: ChainedJob, now: int, rest: tuple[ChainedJob, ...] = (), catch: tuple[ChainedJob, ...] = ()
) -> bytes:
    """The payload of `link` to send now, followed by `rest`. Text that is not a payload is sent unchanged: the worker that
    reserves it reports the error."""
    text = link.payload.encode()
    try:
        payload = read(text)
        later = now - int(payload.createdAt or now)
        for start, end in reversed(time_positions(text, payload)):
            text = b"%b%d%b" % (text[:start], int(text[start:end]) + later, text[end:])
        return with_more_relations(text, payload, chain=rest, catch=catch) if rest or catch else text
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
