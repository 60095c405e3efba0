"""The bytes of a failed payload as it is sent again: as it was pushed, and as if it were pushed now.

    attempts 0, and none of the keys beside it that a reserve has written (unit.py); what the job saved stays
    createdAt now, retryUntil so much later as it was after createdAt: the time it was given begins anew

Spliced, never written anew: no other byte changes, wherever those keys stand. They are looked for on the top level only.
"""

from __future__ import annotations

import re

from qd.errors import Malformed
from qd.payload import Payload, read

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_TOKEN = re.compile(rb"[{}\[\]]|" + _STRING, re.DOTALL)
_VALUE = re.compile(rb"\s*:\s*(" + _STRING + rb"|[^\s,}\]]+)", re.DOTALL)
_COUNTS = (b'"crashes"', b'"exceptions"', b'"held"')
_MARK = b'"rsv"'
_TIMES = (b'"createdAt"', b'"retryUntil"', b'"timeoutAt"')
_OURS = (b'"attempts"', *_COUNTS, _MARK, *_TIMES)


def sent_again(raw: bytes, now: float) -> bytes:
    """`raw` as it goes back to ready. now: unix seconds. Raises Malformed: it cannot be run, now or ever."""
    before = read(raw)
    return _spliced(raw, before, _news(before, now))


def as_pushed(raw: bytes) -> bytes:
    """`raw` without what reserves have written; its time is left as it is. Raises Malformed."""
    return _spliced(raw, read(raw), {b'"attempts"': b"0"})


def _spliced(raw: bytes, before: Payload, news: dict[bytes, bytes]) -> bytes:
    text, end = bytearray(), 0
    for start, stop, key, value in _ours(raw):
        if key in _TIMES and key not in news:
            continue
        if key in news:
            text += raw[end:value] + news[key]
        else:
            kept = raw[end:start].rstrip()
            if kept.endswith(b","):
                text += kept[:-1]
            else:  # the first key: it stays, and says nothing
                text += raw[end:value] + (b'""' if key == _MARK else b"0")
        end = stop
    made = bytes(text + raw[end:])
    after = read(made)
    if after.attempts or after.crashes or after.exceptions or after.held or bytes(after.data) != bytes(before.data):
        raise Malformed("its count of attempts cannot be set back")
    return made


def _news(payload: Payload, now: float) -> dict[bytes, bytes]:
    news = {b'"attempts"': b"0", b'"timeoutAt"': b"null"}  # the last before Laravel 8, which does not say since when
    if payload.createdAt is not None:
        news[b'"createdAt"'] = b"%d" % now
        if payload.retryUntil:
            news[b'"retryUntil"'] = b"%d" % -(-(now + max(0.0, payload.retryUntil - payload.createdAt)) // 1)
    news.setdefault(b'"retryUntil"', b"null")  # nobody knows how long it was given
    return news


def _ours(raw: bytes) -> list[tuple[int, int, bytes, int]]:
    """The keys of the top level that are ours: (start, end, key with its quotes, start of the value)."""
    if not any(key in raw for key in _OURS):
        return []
    found, depth = [], 0
    for token in _TOKEN.finditer(raw):
        text = token[0]
        if text in b"{[":
            depth += 1
        elif text in b"}]":
            depth -= 1
        elif depth == 1 and text in _OURS and (value := _VALUE.match(raw, token.end())):
            found.append((token.start(), value.end(), text, value.start(1)))
    return found
