"""The thread that renews the locks with renew=True: one a process, there while there is something to renew.

A copy that was forked has no such thread and renews nothing; locks that it takes itself get a thread of its own.
"""

from __future__ import annotations

import os
import threading
import time

from qd.locks.hold import Hold
from qd.process.shield import shield


class Renewals:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self._due: dict[Hold, float] = {}
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None

    def add(self, hold: Hold) -> None:
        with shield, self._changed:
            self._due[hold] = hold.due
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="qd-locks", daemon=True)
                self._thread.start()
            self._changed.notify()

    def drop(self, hold: Hold) -> None:
        with shield, self._changed:
            self._due.pop(hold, None)
            if not self._due:
                self._changed.notify()

    def _run(self) -> None:
        while (hold := self._next()) is not None:
            due = hold.renew()
            with self._changed:
                if due is None:
                    self._due.pop(hold, None)
                elif hold in self._due:
                    self._due[hold] = due

    def _next(self) -> Hold | None:
        """The next one, when it is due. None: there is none, and the thread ends."""
        with self._changed:
            while self._due:
                hold = min(self._due, key=self._due.__getitem__)
                left = self._due[hold] - time.monotonic()
                if left <= 0:
                    return hold
                self._changed.wait(left)
            self._thread = None
            return None


_ours: Renewals | None = None


def renewals() -> Renewals:
    """Those of this process."""
    global _ours
    if _ours is None or _ours.pid != os.getpid():
        _ours = Renewals()
    return _ours
