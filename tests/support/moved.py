"""A real redis-server whose clock is set by the test: libfaketime moves what it reads as the time of the day."""

from __future__ import annotations

import time
from datetime import datetime

from tests.support.peers import missing
from tests.support.schedulers import FAKETIME
from tests.support.server import Server


class MovedServer(Server):
    """Its clock shows `start` at the start, and goes on from there. Only the clock of the day: waiting is not faked."""

    def __init__(self, start: str) -> None:
        if not FAKETIME.exists():
            missing("faketime")
        # libc before jemalloc: that asks for the time before libfaketime is ready, for ever
        super().__init__(
            LD_PRELOAD=f"{FAKETIME} libc.so.6", FAKETIME_CACHE_DURATION="1", FAKETIME_DONT_FAKE_MONOTONIC="1"
        )
        self._file = self.folder / "clock"
        self.env["FAKETIME_TIMESTAMP_FILE"] = str(self._file)
        self.set(start)

    def set(self, moment: str) -> None:
        """The clock shows this (ISO, with its offset), within a second."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{datetime.fromisoformat(moment).timestamp() - time.time():+.3f}s\n")
        fresh.rename(self._file)
