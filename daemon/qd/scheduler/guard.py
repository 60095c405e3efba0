"""User code in the scheduler's own process: listeners, what makes a payload. It may raise or hang; neither ends or
holds up the scheduler for more than a few seconds."""

from __future__ import annotations

import signal
from _signal import signal as handle  # type: ignore[import-not-found]  # signal.signal builds an enum member at each call
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import TypeVar

from qd.errors import EndJob
from qd.process.shield import in_main_thread, shield

T = TypeVar("T")
SECONDS = 5.0  # that a filter, a listener or a payload may take


class TooLong(EndJob):
    """It is not an Exception: an `except Exception` of the user's cannot swallow it."""


class Broke(Exception):
    """The user's code raised or hung; its text says which, for a log line."""


def said(error: BaseException) -> str:
    text = ""
    with suppress(Exception):  # its words are the user's code, too
        text = str(error)
    return f"raised {type(error).__name__}: {text}" if text else f"raised {type(error).__name__}"


class Guard:
    """Uses the alarm of the main thread; elsewhere nothing ends what hangs."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self.before: Callable[[float], object] = float  # called with the seconds that the next piece of it may take
        self._inside = False

    def run(self, body: Callable[[], T]) -> T:
        """What body returns. Raises Broke."""
        self.before(self.seconds)
        try:
            return self._timed(body) if in_main_thread() else body()
        except TooLong:
            raise Broke(f"took longer than {self.seconds:g} s") from None
        except BaseException as error:
            raise Broke(said(error)) from error

    def _timed(self, body: Callable[[], T]) -> T:
        before = handle(signal.SIGALRM, self._ring)
        try:
            self._inside = True
            signal.setitimer(signal.ITIMER_REAL, self.seconds)
            result = body()
            self._inside = False
            return result
        finally:
            self._inside = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            handle(signal.SIGALRM, before)
            shield.overdue = None

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if not self._inside:
            return
        if shield.depth:  # a call to a server must not be torn apart
            shield.overdue = self._raise
        else:
            self._raise()

    def _raise(self) -> None:
        if self._inside:
            self._inside = False
            raise TooLong
