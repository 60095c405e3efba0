"""The job of an entry, made again at each tick as dispatch() would: payload hooks, signature, limits, locks, keys.

User code that runs in the scheduler's own process (listeners, payload hooks) may raise or hang; Guard limits it to a few
seconds, so that it neither ends nor delays the scheduler.
"""

from __future__ import annotations

import signal
from _signal import signal as handle  # type: ignore[import-not-found]  # signal.signal builds an enum member at each call
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import TypeVar

from qd.app import Qd
from qd.dispatch.composite import Chain
from qd.dispatch.dispatcher import outgoing, sends_itself
from qd.dispatch.route import Message
from qd.drivers.types import Outgoing
from qd.errors import EndJob
from qd.jobs.job import literal
from qd.process.shield import in_main_thread, shield
from qd.schedule.entry import Entry, JobTask

T = TypeVar("T")
SECONDS = 5.0  # that a filter, a listener or a payload hook may take
AGAIN = 1.0  # seconds between two interruptions of code that continues after the first


class TooLong(EndJob):
    """Not an Exception, so that an `except Exception` in user code cannot swallow it."""


class UserCodeFailed(Exception):
    """User code raised or hung. Its text is for a log line: "raised X: ..." or "took longer than ..."."""


def raised(error: BaseException) -> str:
    text = ""
    with suppress(Exception):  # __str__ is user code, too
        text = str(error)
    return f"raised {type(error).__name__}: {text}" if text else f"raised {type(error).__name__}"


class Guard:
    """Uses SIGALRM in the main thread; in other threads nothing ends code that hangs."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self.before: Callable[[float], object] = float  # called with the seconds that the user code may take
        self._inside = False

    def run(self, body: Callable[[], T]) -> T:
        """Returns the result of `body`. Raises UserCodeFailed."""
        self.before(self.seconds)
        try:
            return self._timed(body) if in_main_thread() else body()
        except TooLong:
            raise UserCodeFailed(f"took longer than {self.seconds:g} s") from None
        except BaseException as error:
            raise UserCodeFailed(raised(error)) from error

    def _timed(self, body: Callable[[], T]) -> T:
        before = handle(signal.SIGALRM, self._ring)
        try:
            self._inside = True
            # It rings again: an exception raised in a finalizer, or one that the user code catches, is lost.
            signal.setitimer(signal.ITIMER_REAL, self.seconds, AGAIN)
            try:
                return body()
            finally:
                self._inside = False
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            handle(signal.SIGALRM, before)
            shield.overdue = None

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if not self._inside:
            return
        if shield.depth:  # do not interrupt a call to a server
            shield.overdue = self._raise
        else:
            self._raise()

    def _raise(self) -> None:
        if self._inside:
            raise TooLong


class EntryJob:
    """after_commit has no effect here, as no transaction is open. A job whose class has a send() of its own is sent by that,
    after the claim."""

    def __init__(self, app: Qd, entry: Entry, task: JobTask, guard: Guard) -> None:
        self._send, self._guard, self._task = app._send, guard, task
        if entry.alone and not isinstance(task.call, Chain):
            # without_overlapping(): a unique job, made once so that its plan is computed once
            unique = str(literal(f"schedule:{entry.name}"))
            self._task = JobTask(task.call.using(unique=unique, unique_until="done"))

    def home(self) -> tuple[str, str]:
        """The connection and the queue it is sent to. Raises ConfigError."""
        route = self._send.route(self._task.plan)
        return route.connection, route.queue

    def message(self) -> Message:
        """The payload of one tick. Raises UserCodeFailed."""
        if self._send.hooks:
            return self._guard.run(self._task.message)
        try:
            return self._task.message()
        except Exception as error:
            raise UserCodeFailed(raised(error)) from error

    def early(self, at: int) -> Message | None:
        """The payload of a future tick, unix ms. None if it must be made (or its error reported) when the tick is due."""
        try:
            return None if self._send.hooks else self._task.early(at / 1000)
        except Exception:
            return None

    def outgoing(self, message: Message) -> Outgoing | None:
        """The job to send in the step of the claim. None if its class has a send() of its own."""
        return None if sends_itself(message) else outgoing(message)

    def send_itself(self, message: Message) -> None:
        """Call its send(). Raises UserCodeFailed."""
        self._guard.run(lambda: self._send._hand_over(message))


def job_of(app: Qd, entry: Entry, guard: Guard) -> EntryJob | None:
    """None if the entry sends no job: the scheduler that takes its tick runs it."""
    return EntryJob(app, entry, entry.task, guard) if isinstance(entry.task, JobTask) else None
