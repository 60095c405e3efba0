"""No job is taken by a user who could not answer for it: the rights of workers are tried before they may look for one."""

from __future__ import annotations

import time

from qd.connectors.keeping import Keeping
from qd.log import Log
from qd.process.scoreboard import H, Scoreboard

AGAIN = 1.0  # seconds between two tries while a right is missing
REFUSALS = ("NOPERM", "can't run this command", "has no permissions")  # of a call; in a script since 7; in one before
WAY = "no job is taken: `qd doctor` says how to grant what is missing"


class Rights:
    def __init__(self, queue: Keeping, name: str, board: Scoreboard, log: Log) -> None:
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
