"""Servers of a cluster that are away while the others answer: each is told once, and once when it is back."""

from __future__ import annotations

import time
from collections.abc import Sequence

from qd.log import Log


class Parts:
    def __init__(self, log: Log) -> None:
        self.log = log
        self._since: dict[str, float] = {}

    def tell(self, away: Sequence[tuple[str, str]]) -> None:
        """away: those that did not answer the last beat, with what is wrong."""
        if not away and not self._since:
            return
        at, wrong = time.monotonic(), dict(away)
        for node in wrong.keys() - self._since.keys():
            self._since[node] = at
            self.log.warning("redis.away", node=node, error=wrong[node])
        for node in self._since.keys() - wrong.keys():
            self.log.info("redis.back", node=node, after=at - self._since.pop(node))
