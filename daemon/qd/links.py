"""The payload of a link (a job that was made to be sent later) as it is when its turn has come.

Its bytes are those that were made, but for three things: createdAt and retryUntil count from now, and its ties say what
comes behind it. bus/chain.py makes links, connectors/ends.py has them sent; bus/batch.py asks for the moments.
"""

from __future__ import annotations

import re

import msgspec

from qd.payload import Payload, read
from qd.ties import Link, Ties, written

_UNTIL = re.compile(rb'"retryUntil":(\d+)')
_CREATED = re.compile(rb',"createdAt":(\d+)')
_TIES, _ID, _DATA = b',"qd":', b',"id":', b'"data":'


def linked(link: Link, now: int, rest: tuple[Link, ...] = (), catch: tuple[Link, ...] = ()) -> bytes:
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
    ties = msgspec.structs.replace(payload.qd or Ties(), **more)
    at = text.rindex(_ID)
    start = at if payload.qd is None else text.rindex(_TIES, 0, at)
    return text[:start] + written(ties) + text[at:]
