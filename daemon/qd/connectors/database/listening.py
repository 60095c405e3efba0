"""The wait for a push: PostgreSQL notifies who waits (LISTEN), the other databases are polled in growing pauses.

A PHP producer sends no notification, and a pooler may lose one, so a waiter on PostgreSQL looks once a second as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from qd.connectors.database.link import Link
from qd.connectors.database.servers import digest
from qd.process.descriptors import ready_of

NOTIFIED = 1.0  # seconds between two looks where the server notifies
SHORTEST, LONGEST, MORE = 0.01, 0.3, 1.3  # seconds between two polls, and how much longer each pause is than the last


def channel_of(name: bytes) -> str:
    """The channel that a push onto the list `name` notifies."""
    return f"qd_{digest(name):x}"


def channel(table: str, queue: str) -> str:
    """The channel that a push into a queue notifies."""
    return channel_of(f"jobs {table} {queue}".encode("utf-8", "surrogateescape"))


class Listening:
    """One waiter on one connection."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._by: Any = None  # the driver's connection that listens
        self._to = set[str]()
        self._pause = SHORTEST

    def worked(self) -> None:
        """There was a job: the next one may come soon."""
        self._pause = SHORTEST

    def wait(self, channels: set[str], seconds: float, wake: int) -> bool:
        """Wait until a channel is notified, `seconds` are over, or the next look is due. False: the descriptor `wake` ended
        the wait. Raises ConnectionLost."""
        if self.link.kind == "postgresql":
            if self._listen(channels):
                return True  # a push may have come before: look at once
            return self.link.rest(min(seconds, NOTIFIED), wake)
        pause, self._pause = min(seconds, self._pause), min(LONGEST, self._pause * MORE)
        return wake not in ready_of([wake], pause)

    def _listen(self, channels: set[str]) -> bool:
        """Whether the connection did not listen to all of them before."""
        raw = self.link.raw
        if raw is not self._by:
            self._by, self._to = raw, set()
        new = channels - self._to
        self._to |= new  # before the calls: an alarm may ring right after one of them
        try:
            for each in sorted(new):
                self.link.say(f'LISTEN "{each}"').close()
        except BaseException:
            self._by = None  # listen to all of them again
            raise
        return bool(new)

    def end(self) -> None:
        """Listen to none of the channels any more."""
        if self._to and self.link.raw is self._by:
            for each in sorted(self._to):
                self.link.say(f'UNLISTEN "{each}"').close()
        self._to.clear()

    def abort(self) -> None:
        """Close the connection if it listens: an error has ended the wait, and the server must not notify it for ever."""
        if self._to:
            self.link.close()


def popped(link: Link, take: Callable[[bytes], bool], name: bytes, seconds: float, wake: int) -> bool:
    """Keyspace.pop on the list `name`. take: removes the first item and returns at once, False if there is none."""
    until, listening, found = time.monotonic() + seconds, Listening(link), True
    try:
        while not take(name):
            left = until - time.monotonic()
            if left <= 0 or not listening.wait({channel_of(name)}, left, wake):
                found = False
                break
    except BaseException:
        listening.abort()
        raise
    listening.end()
    return found
