"""What the store keeps of the schedule for people to read. No tick waits for it: where the server takes nothing, that is
said once, and tried again later and later."""

from __future__ import annotations

import time
from collections.abc import Callable

from qd.errors import ServerBusy, ServerRefused
from qd.log import Log

LONGEST = 60.0  # seconds between two tries


class Keeping:
    """Writes one key."""

    def __init__(self, log: Log, key: str) -> None:
        self._log, self._key = log, key
        self._delay = self._again_at = 0.0

    def done(self, write: Callable[[], object]) -> bool:
        """False: it is still to be written, by a later call. Raises ConnectionLost."""
        at = time.monotonic()
        if at < self._again_at:
            return False
        try:
            write()
        except (ServerBusy, ServerRefused) as error:
            if not self._delay:
                self._log.warning("schedule.not_kept", key=self._key, error=str(error))
            self._delay = min(LONGEST, self._delay * 2 or 1.0)
            self._again_at = at + self._delay
            return False
        self._delay = 0.0
        return True
