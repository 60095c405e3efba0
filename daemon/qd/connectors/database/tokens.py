"""Waits for a token in a list of the keyspace: PostgreSQL tells of one, the others are asked in growing steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from qd.connectors.database.link import Link
from qd.connectors.database.servers import digest

LOOKS = 0.01, 0.25  # seconds between two looks where the database cannot tell: the first, the longest
TOLD = 1.0  # where it can: what it tells may not reach us (a pooler between)


def channel_of(name: bytes) -> str:
    """Where a push onto the list `name` is told."""
    return f"qd_{digest(name):x}"


def popped(link: Link, take: Callable[[bytes], bool], name: bytes, seconds: float, wake: int) -> bool:
    """As Keyspace.pop. take: takes the first item away at once, False where there is none."""
    until, pause = time.monotonic() + seconds, LOOKS[0]
    with listening(link, channel_of(name)):
        while not take(name):
            left = until - time.monotonic()
            if left <= 0 or not link.rest(min(left, TOLD if link.kind == "postgresql" else pause), wake):
                return False
            pause = min(2 * pause, LOOKS[1])
    return True


@contextmanager
def listening(link: Link, channel: str) -> Iterator[None]:
    """Whatever ends it from outside ends the connection, too: it would be told of this for ever."""
    if link.kind != "postgresql":
        yield
        return
    link.say(f'LISTEN "{channel}"')
    try:
        yield
    except BaseException:
        link.close()
        raise
    link.say(f'UNLISTEN "{channel}"')
