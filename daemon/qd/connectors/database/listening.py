"""The wait for a job: PostgreSQL notifies the worker (LISTEN), the other databases are polled.

A PHP producer sends no notification, so a worker on PostgreSQL looks once a second as well.
"""

from __future__ import annotations

from typing import Any

from qd.connectors.database.link import Link
from qd.connectors.database.tokens import channel_of
from qd.process.descriptors import ready_of

NOTIFIED = 1.0  # seconds between two looks where the server notifies
SHORTEST, LONGEST, MORE = 0.01, 0.3, 1.3  # seconds between two polls, and how much longer each pause is than the last


def channel(table: str, queue: str) -> str:
    """Where a push into a queue is told."""
    return channel_of(f"jobs {table} {queue}".encode("utf-8", "surrogateescape"))


class Listening:
    def __init__(self, link: Link, table: str) -> None:
        self.link, self.table = link, table
        self._by: Any = None  # the driver's connection that listens
        self._to = set[str]()
        self._pause = SHORTEST

    def worked(self) -> None:
        """There was a job: the next one may come soon."""
        self._pause = SHORTEST

    def wait(self, queues: set[str], seconds: float, wake: int) -> None:
        """Until a push was told, `seconds` are over, `wake` can be read, or a look is due. Raises ConnectionLost."""
        if self.link.kind == "postgresql":
            if not self._listen(queues):  # else a push may have come before: look at once
                self.link.rest(min(seconds, NOTIFIED), wake)
            return
        pause, self._pause = min(seconds, self._pause), min(LONGEST, self._pause * MORE)
        ready_of([wake], pause)

    def _listen(self, queues: set[str]) -> bool:
        """Whether it was not listening to all of them before."""
        raw = self.link.raw
        if raw is not self._by:
            self._by, self._to = raw, set()
        new = queues - self._to
        for queue in sorted(new):
            self.link.say(f'LISTEN "{channel(self.table, queue)}"').close()
            self._to.add(queue)
        return bool(new)
