"""A lock in hand: extended, renewed, given back, or found to be lost. Used by lock.py, and by the thread that renews."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from qd.errors import ConnectionLost, LockLost
from qd.locks.places import PATIENCE, Place
from qd.process.shield import shield
from qd.store.mutex import Mutex

log = logging.getLogger("qd.locks")


class Hold:
    """`token` of the lock of `mutex`, taken at the monotonic moment `began` for `ttl` seconds. tell: called once with the
    reason when it is found to be lost. until: the moment to which it is certainly ours, as far as is known here."""

    def __init__(
        self, place: Place, mutex: Mutex, ttl: float, token: int, began: float, tell: Callable[[], object]
    ) -> None:
        self._place, self._mutex, self._tell = place, mutex, tell
        self.ttl, self.token, self.began, self.until = ttl, token, began, began + ttl
        self.pid = os.getpid()
        self.lost = ""  # why
        self._ended = False
        self._busy = threading.Lock()  # one call about it at a time: a renewal does not come behind a release

    @property
    def ours(self) -> bool:
        """Whether this process took it; False in a copy that was forked from it."""
        return self.pid == os.getpid()

    @property
    def due(self) -> float:
        """The monotonic moment at which it is to be renewed: a third of the ttl after it was held for a ttl."""
        return self.until - self.ttl * 2 / 3

    def extend(self, seconds: float) -> None:
        """Raises LockLost, ConnectionLost."""
        with shield, self._busy:
            self._extend(seconds, PATIENCE)
        self.check()

    def _extend(self, seconds: float, patience: float) -> None:
        began = time.monotonic()
        if self._place.ask(lambda store: self._mutex.extend(store, seconds), patience):
            self.until = began + seconds
        else:
            self.lose()

    def renew(self) -> float | None:
        """The next moment at which this is to be called. None: never."""
        with self._busy:
            if self._ended or self.lost:
                return None
            if time.monotonic() < self.due:  # it was extended
                return self.due
            try:
                self._extend(self.ttl, min(PATIENCE, max(0.2, self.ttl / 3)))
            except Exception as error:  # the thread that renews the others goes on
                return self._again(error)
        return None if self.lost else self.due

    def _again(self, error: Exception) -> float | None:
        now = time.monotonic()
        if now < self.until:
            if not isinstance(error, ConnectionLost):
                log.warning("the lock '%s' could not be renewed: %s", self._mutex.name, error)
            return min(self.until, now + min(1.0, self.ttl / 10))
        self.lose(f"for {self.ttl:g} s it could not be renewed: {error}")
        return None

    def give(self) -> None:
        """Raises LockLost; ConnectionLost: it may be ours until its ttl is over, and this can be called again."""
        with shield, self._busy:
            self._ended = True
            if not self._place.ask(self._mutex.give):
                self.lose()  # also when an answer was lost and the same call then said no: none is missed
        self.check()

    def look(self) -> bool:
        """Whether it was lost, as far as is known here; no server is asked."""
        if not self.lost and not self._ended and time.monotonic() >= self.until:
            self.lose()
        return bool(self.lost)

    def lose(self, why: str = "") -> None:
        """It is not ours any more: told once."""
        if self.lost:
            return
        over = time.monotonic() >= self.until
        self.lost = why or (
            f"its ttl of {self.ttl:g} s was over (a longer ttl, extend() or renew=True)"
            if over
            else f"somebody deleted it, or the server has lost it, {time.monotonic() - self.began:.1f} s after it was taken"
        )
        log.warning("the lock '%s' was lost (token %d): %s", self._mutex.name, self.token, self.lost)
        self._tell()

    def check(self) -> None:
        if self.lost:
            raise LockLost(
                f"the lock '{self._mutex.name}' was lost while it was held: {self.lost}; another may have had it since"
            )
