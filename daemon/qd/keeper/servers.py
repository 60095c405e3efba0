"""No job is taken by a user who could not answer for it: the rights of workers are tried before they may look for one.

Servers of a cluster that are away while the others answer, and queues that a server refuses while it has the others: each
is told once, and once when it is back.

The server of `url = "embedded:"`: if it was killed, the keeper starts it again. Its append-only file has kept the jobs.

A server that `qd embedded stop` has stopped stays down. Two keepers, or a keeper and a command, never start two servers: the
folder has a lock.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from qd.drivers.base import KeeperConnector
from qd.errors import ConfigError, ConnectionLost
from qd.log import Log
from qd.process.scoreboard import H, Scoreboard

if TYPE_CHECKING:
    from qd.config.settings import Settings


AGAIN = 1.0  # seconds between two tries while a right is missing
REFUSALS = ("NOPERM", "can't run this command", "has no permissions")  # of a call; in a script since 7; in one before
WAY = "no job is taken: `qd doctor` says how to grant what is missing"


class Permissions:
    def __init__(self, queue: KeeperConnector, name: str, board: Scoreboard, log: Log) -> None:
        """name: the queue beside whose keys they are tried."""
        self.queue, self.name, self.board, self.log = queue, name, board, log
        self.missing: set[str] = set()
        self._tried_at = 0.0

    def look(self, fresh: bool) -> None:
        """fresh: nothing was heard of this server yet, or since it was away. Raises as the wire."""
        at = time.monotonic()
        if not fresh and not (self.missing and at - self._tried_at >= AGAIN):
            return
        self._tried_at = at
        before = self.missing
        self.missing = self.queue.missing_rights(self.name)
        if self.missing:
            self.board.set_header(H.KEEPER_CONTACT, 0)  # which is what workers look at
        if self.missing != before:
            self._say()

    def explain(self, error: Exception) -> bool:
        """Whether it is said already why the server refused this."""
        return bool(self.missing) and any(word in str(error) for word in REFUSALS)

    def _say(self) -> None:
        user = self.queue.user()
        if self.missing:
            self.log.error(
                f"{self.queue.settings.driver}.refused",
                user=user,
                missing=" ".join(sorted(self.missing)).upper(),
                reason=WAY,
            )
        else:
            self.log.info(f"{self.queue.settings.driver}.granted", user=user)


T = TypeVar("T")


def each_of(things: Iterable[T], act: Callable[[T], None]) -> None:
    """Where the server of one is away, those of the others may not be: raises what it said when all others are done."""
    why: ConnectionLost | None = None
    for thing in things:
        try:
            act(thing)
        except ConnectionLost as error:
            why = error
    if why is not None:
        raise why


class ServerHealth:
    def __init__(self, log: Log, server: str) -> None:
        """server: its word in the log."""
        self.log, self.server = log, server
        self.what = "node" if server == "redis" else "queue"
        self._since: dict[str, float] = {}

    @property
    def are_away(self) -> bool:
        """Some of them, by the last beat."""
        return bool(self._since)

    def tell(self, away: Sequence[tuple[str, str]]) -> None:
        """away: those that did not answer the last beat, with what is wrong."""
        if not away and not self._since:
            return
        at, wrong = time.monotonic(), dict(away)
        for node in wrong.keys() - self._since.keys():
            self._since[node] = at
            self.log.warning(f"{self.server}.away", **{self.what: node}, error=wrong[node])
        for node in self._since.keys() - wrong.keys():
            self.log.info(f"{self.server}.back", **{self.what: node}, after=at - self._since.pop(node))


REST = (1.0, 30.0)  # seconds between two starts: at first, and at most


class EmbeddedServer:
    """Of the worked connection or the control connection, if one of them is embedded."""

    def __init__(self, settings: Settings, log: Log) -> None:
        names = (settings.work.connection, settings.control)
        urls = [settings.connections[name].url or "" for name in names]
        self.root = settings.root if any(url.startswith("embedded:") for url in urls) else None
        self.log = log
        self._rest, self._not_before = 0.0, 0.0

    def look(self, away: bool) -> None:
        """away: the last call of the server failed."""
        if self.root is None:
            return
        if not away:
            self._rest = 0.0
        elif time.monotonic() >= self._not_before:
            self._start()

    def _start(self) -> None:
        from qd.drivers import embedded  # only a project that has one

        assert self.root is not None
        try:
            pid = embedded.revive(self.root)
        except (ConfigError, OSError, subprocess.SubprocessError) as error:
            self._next()
            self.log.error("embedded.not_started", error=str(error), retry_in=self._rest)
            return
        if pid is not None:
            self._next()
            self.log.warning("embedded.started", pid=pid, reason="it was killed")

    def _next(self) -> None:
        self._rest = min(REST[1], max(REST[0], self._rest * 2))
        self._not_before = time.monotonic() + self._rest
