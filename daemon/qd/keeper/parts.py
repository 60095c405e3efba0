"""Servers of a cluster that are away while the others answer, and queues that a server refuses while it has the others: each
is told once, and once when it is back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from qd.errors import ConnectionLost
from qd.log import Log

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


class Parts:
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
