"""The threads that renew the locks with renew=True: one a connection, so that a server which hangs costs those of another
nothing; there while there is something to renew.

A copy that was forked has no such thread and renews nothing; locks that it takes itself get a thread of its own.
"""

from __future__ import annotations

import os
import threading
import time
from operator import attrgetter

from qd.locks.hold import LEAST, Hold
from qd.process.shield import shield


class Renewals:
    """Those of one connection."""

    def __init__(self) -> None:
        self._holds: set[Hold] = set()
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None

    def add(self, hold: Hold) -> None:
        """Also when it is due at another moment than before."""
        with shield, self._changed:
            self._holds.add(hold)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="qd-locks", daemon=True)
                self._thread.start()
            self._changed.notify()

    def drop(self, hold: Hold) -> None:
        with shield, self._changed:
            self._holds.discard(hold)
            if not self._holds:
                self._changed.notify()

    def _run(self) -> None:
        while (hold := self._next()) is not None:
            if hold.renew(self._room(hold)):
                continue
            with self._changed:
                self._holds.discard(hold)
            if hold.lost:  # whoever hears of it may take long, and others are due
                threading.Thread(target=hold.tell, name="qd-lock-lost", daemon=True).start()

    def _next(self) -> Hold | None:
        """The next one, when it is due. None: there is none, and the thread ends."""
        with self._changed:
            while self._holds:
                hold = min(self._holds, key=attrgetter("due"))
                left = hold.due - time.monotonic()
                if left <= 0:
                    return hold
                self._changed.wait(left)
            self._thread = None
            return None

    def _room(self, hold: Hold) -> float:
        """Seconds that a call about this one may take, so that there is as long for the next of the others."""
        with self._changed:
            ends = min((other.until for other in self._holds if other is not hold), default=float("inf"))
        return max(LEAST, (ends - time.monotonic()) / 2)


_known: dict[tuple[int, object], Renewals] = {}


def renewals(hold: Hold) -> Renewals:
    """Those of its connection, in this process."""
    key = (os.getpid(), hold.server)
    return _known.get(key) or _known.setdefault(key, Renewals())
