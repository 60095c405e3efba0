"""A lock in hand: extended, renewed, given back, or found to be lost. Used by lock.py, and by the thread that renews."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from qd.errors import ConnectionLost, EndJob, LockLost, ServerBusy, ServerRefused, Unreachable
from qd.locks.places import PATIENCE, Place
from qd.process.shield import shield
from qd.store.base import Store
from qd.store.mutex import Mutex

log = logging.getLogger("qd.locks")
LEAST = 0.2  # seconds that a call to renew it may take at least


class Hold:
    """`token` of the lock of `mutex`, taken at the monotonic moment `began` for `ttl` seconds. told: called once when it is
    found to be lost. until: the moment to which it is certainly ours, as far as is known here. due: that at which it is to
    be renewed: a third of the ttl after it was held for a ttl."""

    def __init__(
        self, place: Place, mutex: Mutex, ttl: float, token: int, began: float, told: Callable[[int], object]
    ) -> None:
        self._place, self._mutex, self._told = place, mutex, told
        self.ttl, self.token, self.began = ttl, token, began
        self._held_until(began + ttl)
        self.pid = os.getpid()
        self.server = place.server
        self.lost = ""  # why
        self._untold: list[int] = []  # the token of a loss that the listeners have not heard of
        self._ended = self._asked_back = False
        self._busy = threading.Lock()  # one call about it at a time: a renewal does not come behind a release
        self._found = threading.Lock()  # by one: who renews and who looks may both find it lost

    @property
    def ours(self) -> bool:
        """Whether this process took it; False in a copy that was forked from it."""
        return self.pid == os.getpid()

    def extend(self, seconds: float) -> None:
        """Raises LockLost, ConnectionLost."""
        try:
            with shield, self._busy:
                self._extend(seconds, PATIENCE)
        finally:
            self.tell()
        self.check()

    def _extend(self, seconds: float, patience: float) -> None:
        began = time.monotonic()
        if self._place.ask(lambda store: self._mutex.extend(store, seconds), patience):
            self._held_until(began + seconds)
        else:
            self.lose()

    def _held_until(self, moment: float) -> None:
        self.until, self.due = moment, moment - self.ttl * 2 / 3

    def renew(self, patience: float) -> bool:
        """Extend it, when it is due, by a call that takes `patience` seconds at most. False: it is never due again; when
        it was lost, `tell` is next."""
        with self._busy:
            if self._ended or self.lost:
                return False
            if time.monotonic() < self.due:  # it was extended
                return True
            try:
                self._extend(self.ttl, min(PATIENCE, max(LEAST, self.ttl / 3), patience))
            except Exception as error:  # the thread that renews the others goes on
                self._again(error)
            return not self.lost

    def _again(self, error: Exception) -> None:
        now = time.monotonic()
        if now >= self.until:
            return self.lose(f"for {self.ttl:g} s it could not be renewed: {error}")
        if not isinstance(error, ConnectionLost):
            log.warning("the lock '%s' could not be renewed: %s", self._mutex.name, error)
        self.due = min(self.until, now + min(1.0, self.ttl / 10))

    def give(self) -> None:
        """Raises LockLost, of which the listeners hear by `tell`; ConnectionLost: it may be ours until its ttl is over, and
        this can be called again."""
        with shield, self._busy:
            self._ended = True
            if not self._place.ask(self._give):
                self.lose()
        self.check()

    def _give(self, store: Store) -> bool:
        """Whether it was ours until now. A "no" says nothing where it was asked before and the answer was lost: that has
        given it back, unless its ttl was over."""
        try:
            return self._mutex.give(store) or (self._asked_back and time.monotonic() < self.until)
        except (Unreachable, ServerBusy, ServerRefused):
            raise  # nothing was done
        except BaseException:
            self._asked_back = True
            raise

    def look(self) -> bool:
        """Whether it was lost, as far as is known here; no server is asked."""
        if not self.lost and not self._ended and time.monotonic() >= self.until:
            self.lose()
        self.tell()
        return bool(self.lost)

    def lose(self, why: str = "") -> None:
        """It is not ours any more: found once."""
        with shield, self._found:
            if self.lost:
                return
            self.lost = why or self._why()
            self._untold.append(self.token)
        log.warning("the lock '%s' was lost (token %d): %s", self._mutex.name, self.token, self.lost)

    def _why(self) -> str:
        now = time.monotonic()
        if now >= self.until:
            return f"its ttl of {self.ttl:g} s was over (a longer ttl, extend() or renew=True)"
        return f"somebody deleted it, or the server has lost it, {now - self.began:.1f} s after it was taken"

    def tell(self) -> None:
        """Let the listeners hear that it was lost, once. They may do with the lock what they like, and take as long as they
        like: called where nothing is held."""
        try:
            token = self._untold.pop()  # one thread gets it
        except IndexError:
            return
        self._told(token)

    def check(self) -> None:
        if self.lost:
            raise LockLost(
                f"the lock '{self._mutex.name}' was lost while it was held: {self.lost}; another may have had it since"
            )


def surely(act: Callable[[], None]) -> None:
    """Run `act`, which may be run twice, to its end; an alarm that comes on the way is raised after it."""
    try:
        with shield:
            act()
    except (EndJob, KeyboardInterrupt):
        with shield:
            act()
        raise
