"""The master's sign of life in a file, written from its own loop: when the loop hangs, the file grows old."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from qd.log import Log
from qd.process import live, vitals

EACH = 2.0  # seconds between two signs


class Liveness:
    def __init__(self, pool: str, log: Log, environ: Mapping[str, str]) -> None:
        self._pool, self._log, self._environ = pool, log, environ
        self._start = vitals.start_time(os.getpid())
        self._next_at, self._was_ready = 0.0, False
        self._complained = False

    def tell(self, workers: int, ready: bool, keeper_silent: float) -> None:
        at = time.monotonic()
        if at < self._next_at and ready == self._was_ready:
            return
        self._next_at, self._was_ready = at + EACH, ready
        try:
            live.write(
                live.Live(os.getpid(), self._start, self._pool, workers, ready, round(keeper_silent, 1)), self._environ
            )
            self._complained = False
        except OSError as error:  # a comfort for health checks: it harms nothing but them
            if not self._complained:
                self._log.warning("liveness.write_failed", error=str(error), unseen="qd health --live")
            self._complained = True

    def end(self) -> None:
        live.remove(self._pool, os.getpid(), self._environ)
