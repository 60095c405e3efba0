"""The bytes of a failed payload as it is sent again: as it was pushed, and as if it were pushed now.

    attempts 0, and none of the keys beside it that a reserve has written (unit.py); what the job saved stays
    createdAt now, retryUntil so much later as it was after createdAt: the time it was given begins anew
    failures "COUNT FIRST": how often it has failed permanently by now, and when first, in unix seconds

Spliced, never written anew: no other byte changes, wherever those keys stand. They are looked for on the top level only.

The payload of a link (a job that was made to be sent later) as it is when its turn has come.

Its bytes are those that were made, but for three things: createdAt and retryUntil count from now, and its ties say what
comes behind it. dispatch/chain.py makes links, drivers/types.py has them sent; dispatch/batch.py asks for the moments.
"""

from __future__ import annotations

import re

import msgspec

from qd.errors import Malformed
from qd.payload.format import FAILURES, NOTHING, ChainedJob, Payload, Relations, read, written

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


def sent_again(raw: bytes, now: float, failed_at: float | None = None) -> bytes:
    """`raw` as it goes back to ready. now, failed_at: unix seconds. Raises Malformed: it cannot be run, now or ever."""
    before = read(raw)
    news = _news(before, now)
    count, first = before.failed_before
    if failed_at is not None and (count or before.failures is NOTHING):  # else the key is another program's
        news[_FAILURES] = b'"%d %.3f"' % (count + 1, failed_at if first is None else first)
    return _spliced(raw, before, news)


def as_pushed(raw: bytes) -> bytes:
    """`raw` without what reserves have written; its time is left as it is. Raises Malformed."""
    return _spliced(raw, read(raw), {b'"attempts"': b"0"})


def _spliced(raw: bytes, before: Payload, news: dict[bytes, bytes]) -> bytes:
    text, end, found = bytearray(), 0, _ours(raw)
    if _FAILURES in news and not any(key == _FAILURES for _, _, key, _ in found):
        end = raw.index(b"{") + 1
        text += raw[:end] + b"%b:%b," % (_FAILURES, news[_FAILURES])
    for start, stop, key, value in found:
        if key in _TIMES and key not in news:
            continue
        if key in news:
            text += raw[end:value] + news[key]
        else:
            kept = raw[end:start].rstrip()
            comma = _COMMA.match(raw, stop)
            if kept.endswith(b","):
                text += kept[:-1]
            elif key == _FAILURES and comma:  # the first key, as it was written here
                text, stop = text + kept, comma.end()
            else:  # the first key: it stays, and says nothing
                text += raw[end:value] + (b'""' if key in _TEXTS else b"0")
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
        elif (
            depth == 1
            and text in _OURS
            and (value := _VALUE.match(raw, token.end()))
            and (text != _FAILURES or FAILURES.fullmatch(value[1]))
        ):
            found.append((token.start(), value.end(), text, value.start(1)))
    return found


_UNTIL = re.compile(rb'"retryUntil":(\d+)')
_CREATED = re.compile(rb',"createdAt":(\d+)')
_TIES, _ID, _DATA = b',"qd":', b',"id":', b'"data":'


def linked(link: ChainedJob, now: int, rest: tuple[ChainedJob, ...] = (), catch: tuple[ChainedJob, ...] = ()) -> bytes:
    """The payload of `link`, sent now, with `rest` behind it. One that nobody of ours has made is sent as it is: a worker
    that takes it sees what is wrong with it."""
    text = link.payload.encode()
    try:
        payload = read(text)
        text = stamped(text, payload, now)
        return retied(text, payload, chain=rest, catch=catch) if rest or catch else text
    except ValueError:
        return text


def stamped(text: bytes, payload: Payload, now: int) -> bytes:
    """As if it had been made now: the time it has to be retried in has not begun before."""
    later = now - int(payload.createdAt or now)
    for start, end in reversed(stamps(text, payload)):
        text = b"%b%d%b" % (text[:start], int(text[start:end]) + later, text[end:])
    return text


def stamps(text: bytes, payload: Payload) -> list[tuple[int, int]]:
    """Where its moments stand, the first one first: retryUntil in front of the arguments, createdAt right behind them."""
    data = text.find(_DATA)
    found = [_UNTIL.search(text, 0, data), _CREATED.match(text, data + len(_DATA) + len(payload.data))]
    return [match.span(1) for match in found if match is not None]


def retied(text: bytes, payload: Payload, **more: object) -> bytes:
    """The same payload with `more` among its ties. Behind its id stand plain values only, so the last id is its own."""
    ties = msgspec.structs.replace(payload.qd or Relations(), **more)
    at = text.rindex(_ID)
    start = at if payload.qd is None else text.rindex(_TIES, 0, at)
    return text[:start] + written(ties) + text[at:]
