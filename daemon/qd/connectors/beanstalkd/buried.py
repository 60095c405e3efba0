"""What somebody has buried in a tube: for `qd failed kick`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import greenstalk

from qd.connectors.beanstalkd.target import refused_name
from qd.connectors.beanstalkd.wire import Wire

if TYPE_CHECKING:
    from qd.config import ConnectionSettings


class Buried:
    """On the connection `at`; patience: seconds to connect, and for each answer. Every call may raise ConnectionLost."""

    def __init__(self, at: ConnectionSettings, patience: float) -> None:
        self.wire = Wire(at.url or "")
        self.wire.patience(patience, patience)

    def count(self, queue: str) -> int:
        if refused_name(queue):
            return 0
        with suppress(greenstalk.NotFoundError), self.wire.said() as client:
            return int(client.stats_tube(queue)["current-jobs-buried"])
        return 0

    def first(self, queue: str) -> bytes | None:
        """The payload of the one that was buried first: the server shows no other. None: there is none."""
        with suppress(greenstalk.NotFoundError), self.wire.said() as client:
            self.wire.use(client, queue)
            return client.peek_buried().body
        return None

    def kick(self, queue: str, most: int) -> int:
        """Make so many ready, the first ones first. Returns how many. Each by its number: a server that is told to kick
        some, and has none buried any more, kicks those that are delayed."""
        kicked = 0
        with suppress(greenstalk.NotFoundError), self.wire.said() as client:
            self.wire.use(client, queue)
            for _ in range(most):
                job = client.peek_buried()
                with suppress(greenstalk.NotFoundError):  # somebody else was faster
                    client.kick_job(job)
                    kicked += 1
        return kicked

    def close(self) -> None:
        self.wire.close()
