"""The server of `url = "embedded:"`: if it was killed, the keeper starts it again. Its append-only file has kept the jobs.

A server that `qd embedded stop` has stopped stays down. Two keepers, or a keeper and a command, never start two servers: the
folder has a lock.
"""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

from qd.errors import ConfigError
from qd.log import Log

if TYPE_CHECKING:
    from qd.config import Settings

REST = (1.0, 30.0)  # seconds between two starts: at first, and at most


class Private:
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
        from qd import embedded  # only a project that has one

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
