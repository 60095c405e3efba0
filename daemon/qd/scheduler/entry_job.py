"""User code in the scheduler's own process: listeners, what makes a payload. It may raise or hang; neither ends or
holds up the scheduler for more than a few seconds.

The job of an entry, made anew at each tick as dispatch() would make it: payload hooks, signature, bounds, locks, keys.
"""

from __future__ import annotations

import signal
from _signal import signal as handle  # type: ignore[import-not-found]  # signal.signal builds an enum member at each call
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import TypeVar

from qd.app import Qd
from qd.dispatch.chain import Chain
from qd.dispatch.dispatcher import outgoing, sends_itself
from qd.dispatch.route import Message
from qd.drivers.types import Outgoing
from qd.errors import EndJob
from qd.jobs.job import literal
from qd.process.shield import in_main_thread, shield
from qd.schedule.entry import Entry, JobTask

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


class EntryJob:
    """after_commit means nothing here, where no transaction is open. A job whose class has a send() of its own is sent by
    that, after its tick was taken."""

    def __init__(self, app: Qd, entry: Entry, task: JobTask, guard: Guard) -> None:
        self._send, self._guard = app._send, guard
        self._task = kept_single(entry, task)

    def home(self) -> tuple[str, str]:
        """The connection and the queue it is sent to. Raises ConfigError."""
        route = self._send.route(self._task.plan)
        return route.connection, route.queue

    def parcel(self) -> Message:
        """Raises Broke: it cannot be made, or the user's code that makes it raised."""
        if self._send.hooks:
            return self._guard.run(self._task.parcel)
        try:
            return self._task.parcel()
        except Exception as error:
            raise Broke(said(error)) from error

    def early(self, at: int) -> Message | None:
        """As parcel(), for the tick `at`, unix ms, which is yet to come. None: that is to be made, or what is wrong with it
        to be told, at its moment."""
        try:
            return None if self._send.hooks else self._task.early(at / 1000)
        except Exception:
            return None

    def outgoing(self, parcel: Message) -> Outgoing | None:
        """What is sent in the step that takes the tick. None: it sends itself."""
        return None if sends_itself(parcel) else outgoing(parcel)

    def by_hand(self, parcel: Message) -> None:
        """Raises Broke."""
        self._guard.run(lambda: self._send._hand_over(parcel))


def job_of(app: Qd, entry: Entry, guard: Guard) -> EntryJob | None:
    """None: it sends none, and is run by whoever takes its tick."""
    return EntryJob(app, entry, entry.task, guard) if isinstance(entry.task, JobTask) else None


def kept_single(entry: Entry, task: JobTask) -> JobTask:
    """Of an entry without_overlapping a unique job, made so once: what is known of its plan is kept from tick to tick."""
    if not entry.alone or isinstance(task.call, Chain):
        return task
    return JobTask(task.call.using(unique=str(literal(f"schedule:{entry.name}")), unique_until="done"))
