"""Keeps the job in hand reserved: a thread of the worker that touches it, since only the connection that has reserved a job
may do so. There from the first job on.

Code that holds the GIL for longer than the time to run holds this thread up, too: then beanstalkd hands the job out once
more. Who is given it, of qd's workers, sees whose it is, and puts it back.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

PART = 3  # of the time to run: how often it is touched in that
LEAST = 0.1  # seconds between two looks, at least


class Touched(NamedTuple):
    """A job, which connection has reserved it, and seconds after which it is not any more if nobody touches it."""

    job: int
    life: int
    seconds: float


class Toucher:
    def __init__(self, touch: Callable[[Touched], bool]) -> None:
        """touch: False, or an error: there is nothing to keep any more."""
        self._touch = touch
        self._held: Touched | None = None
        self._since = 0.0
        self._longest = 0.0  # the shortest time to run that was seen: how often there is something to look at
        self._wake = threading.Condition(threading.Lock())
        self._pid = 0

    def hold(self, held: Touched | None) -> None:
        self._since, self._held = time.monotonic(), held
        if held is None:
            return
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._longest = held.seconds
            self._wake = threading.Condition(threading.Lock())
            threading.Thread(target=self._run, name="qd-touch", daemon=True).start()
        elif held.seconds < self._longest:
            with self._wake:
                self._longest = held.seconds
                self._wake.notify()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())  # they are the main thread's
        while True:
            with self._wake:
                self._wake.wait(max(LEAST, self._longest / PART / 2))
            held, since = self._held, self._since
            if held is not None and time.monotonic() - since >= held.seconds / PART / 2:
                self._keep(held)

    def _keep(self, held: Touched) -> None:
        try:
            kept = self._touch(held)
        except Exception:
            kept = False
        if self._held is held:
            if kept:
                self._since = time.monotonic()
            else:
                self._held = None
