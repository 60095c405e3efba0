"""Waiting for a lock, in line.

    take    it is ours for a moment, or we stand in line and are told when it falls free by itself
    keep    we heard of it in time: it is ours for its ttl. A take that a slow server does when nobody waits for the answer
            any more is over by itself soon
    wait    until it is handed to us (a token in a list of our own), and half a second at most
    take    again: so the others see that we are still there; who does not ask for 1.5 s is passed over

Whatever ends the wait, an alarm or Ctrl-C, leaves the line, and gives back what was handed to us meanwhile.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import NamedTuple

from qd.errors import ConnectionLost, ServerRefused
from qd.locks.places import AWAY, PATIENCE, Place
from qd.store.mutex import THERE, Answer, Mutex

BETWEEN = 0.2  # seconds between two tries to reach a server that is away
COURTESY = 0.2  # seconds that leaving the line may take: should it fail, we are passed over soon
MOMENT = 1.5  # seconds for which a lock is taken at first
APART = 0.02  # seconds between those who look whether a lock has fallen free by itself: the first one is to find it


class Taken(NamedTuple):
    """token: of this taking. began: monotonic seconds from which its ttl is reckoned; the server's begins later."""

    token: int
    began: float


class Cancel:
    """Ends a wait from another thread."""

    def __init__(self) -> None:
        self.reads, self._writes = os.pipe()
        self.told = False

    def tell(self) -> None:
        self.told = True
        os.write(self._writes, b"x")

    def close(self) -> None:
        os.close(self.reads)
        os.close(self._writes)


class Patience:
    """How long one waits, and how long a server may be away meanwhile. timeout: seconds, None: without end."""

    def __init__(self, timeout: float | None) -> None:
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._away: float | None = None
        self._asked = False

    @property
    def left(self) -> float:
        return float("inf") if self._deadline is None else self._deadline - time.monotonic()

    @property
    def call(self) -> float:
        """Seconds that a call to the server may take."""
        return min(PATIENCE, max(0.5, self.left))

    def answered(self) -> None:
        self._asked, self._away = True, None

    def bear(self, error: ConnectionLost) -> None:
        """Raise it when the server has never answered, when the wait is over, and after AWAY seconds; else pause."""
        self._away = self._away or time.monotonic()
        if not self._asked or self.left <= 0 or time.monotonic() - self._away > AWAY:
            raise error
        time.sleep(min(BETWEEN, max(0.001, self.left)))


class Wait:
    """One wait of one owner for `seconds` of a lock."""

    def __init__(
        self, place: Place, mutex: Mutex, seconds: float, timeout: float | None, cancel: Cancel | None
    ) -> None:
        self._place, self._mutex, self._seconds, self._cancel = place, mutex, seconds, cancel
        self._patience = Patience(timeout)
        self._came = 0

    def over(self) -> Taken | Answer:
        """The lock, or why not. Raises ConnectionLost, ServerRefused, and whatever ends the wait; `leave` is next then."""
        while True:
            try:
                if (answer := self._step()) is not None:
                    return answer
            except ConnectionLost as error:
                self._patience.bear(error)

    def leave(self) -> None:
        """Out of the line, and out of the lock where we have it."""
        with suppress(ConnectionLost, ServerRefused):
            self._place.ask(self._mutex.give, COURTESY)

    def _step(self) -> Taken | Answer | None:
        """None: not yet."""
        stay = self._patience.left > 0 and not (self._cancel and self._cancel.told)
        began, moment = time.monotonic(), min(MOMENT, self._seconds)
        answer = self._place.ask(
            lambda store: self._mutex.take(store, moment, stay=stay, came=self._came), self._patience.call
        )
        self._patience.answered()
        if answer.token:
            return Taken(answer.token, began) if moment == self._seconds else self._kept(answer.token)
        if not stay:
            return answer
        self._came = answer.came
        wake = self._cancel.reads if self._cancel else -1
        with self._place.within(self._patience.call):
            self._mutex.wait(self._place.store, self._pause(answer), wake)
        return None

    def _kept(self, token: int) -> Taken | None:
        """None: the moment was over already; it is taken again. Is there no answer, it is over as well: that is waited for,
        so that nobody prolongs it who is late."""
        began = time.monotonic()
        ours = self._place.ask(lambda store: self._mutex.extend(store, self._seconds), max(MOMENT, self._patience.call))
        return Taken(token, began) if ours else None

    def _pause(self, answer: Answer) -> float:
        """Seconds until we ask again."""
        pause = THERE / 3
        if answer.left is not None:
            pause = min(pause, answer.left + 0.001 + APART * min(answer.front, 10))
        return max(0.001, min(pause, self._patience.left))
