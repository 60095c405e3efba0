"""The alarm of a job in a lane: ends its attempt from outside, only inside user code.

a task       is cancelled until it ends (lanes.py)
a thread     has an exception raised in it, once. Python does not raise it in a blocking call of C: such a job ends with
             its worker
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import TypeVar, cast

from qd.errors import EndJob
from qd.jobs.context import RunningJob
from qd.process import shield
from qd.process.scoreboard import Fails, L, Lane, Why, now
from qd.process.shield import in_main_thread
from qd.worker.timeout import MISSING, Alarm, error_for

T = TypeVar("T")


class LaneAlarm(Alarm):
    """begun: called with the deadline of what begins. raised: an EndJob was raised in a thread."""

    def __init__(self, words: Lane, begun: Callable[[int], None]) -> None:
        self.words, self._begun = words, begun
        self.raised = False
        self.cancel: Callable[[], object] | None = None
        self.ended_by: EndJob | None = None
        self.job: RunningJob | None = None
        self.deadline = 0
        self._seconds = 0.0
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._inside = self._overdue = False
        self._flying = False  # Python has the exception and has not raised it yet
        self._thread = self._depth = 0

    def open(self) -> None:
        """It needs no signal."""

    def begins(self, seconds: float) -> None:
        """User code begins, in this thread or on the loop."""
        self.ended_by, self._seconds = None, seconds
        self._flying = self._overdue = False
        self._depth, self._thread = 0, threading.get_ident()
        self.words[L.THREAD] = 0 if in_main_thread() else self._thread
        self.deadline = self.words[L.DEADLINE] = now() + int(seconds * 1e9) if seconds else 0
        self._inside = True
        if seconds:
            self._begun(self.deadline)

    def moved(self, ns: int) -> None:
        """The loop was blocked by another job for so long."""
        with self._lock:
            if self._inside and self.deadline and not self.words[L.THREAD]:
                self.deadline = self.words[L.DEADLINE] = self.deadline + ns

    def ends(self) -> None:
        with self._lock:
            self._inside = False
            self._drop()
        if os.getpid() == self._pid:
            self.words[L.DEADLINE] = self.deadline = 0
            if self.ended_by is not None:
                self.words[L.OVER] = self.words.state[0]

    def guard(self, body: Callable[[], T], seconds: float) -> T:
        thread, result = threading.get_ident(), MISSING
        self.begins(seconds)
        shield.threads[thread] = self
        try:
            try:
                result = body()
            finally:
                try:
                    self.ends()
                except EndJob:  # raised in the lines above
                    self.ends()
        except EndJob as raised:
            if result is MISSING:
                raise (self.ended_by or raised).with_traceback(raised.__traceback__) from None
        finally:
            shield.threads.pop(thread, None)
        return cast(T, result)

    def note_hooks(self, fails: Fails = Fails.HOOKS) -> None:
        if os.getpid() == self._pid:
            self.words[L.FAILS] = fails

    def lease_lost(self) -> None:
        self.end(Why.LEASE)

    def end(self, why: Why) -> None:
        """End the attempt, if user code runs. Repeat it for a thread that was in a block of the shield. From any thread."""
        with self._lock:
            if not self._inside or (why is Why.TIMEOUT and not self._late):
                return
            if self.ended_by is None:
                self.ended_by = error_for(why, self._seconds)
                if self.job is not None:
                    self.job.ended_by = self.ended_by
                if self.cancel is None:
                    self.raised = self._overdue = True
            if self.cancel is not None:
                self.cancel()
            elif self._overdue and not self._depth:
                self._overdue, self._flying = False, True
                raise_in(self._thread, self._exception(self.ended_by))

    @property
    def _late(self) -> bool:
        return 0 < self.deadline <= now()

    def _exception(self, error: EndJob) -> type[EndJob]:
        """A class, because Python raises only classes in other threads. It is made when its exception is raised."""
        kind, text = type(error), str(error)

        def __init__(made: EndJob) -> None:
            kind.__init__(made, text)
            self._flying = False

        return type(kind.__name__, (kind,), {"__init__": __init__, "__module__": kind.__module__})

    def _drop(self) -> None:
        if self._flying:
            raise_in(self._thread, None)
            self._flying = False

    # -- blocks of the shield, in the job's thread

    def shielded(self) -> None:
        with self._lock:
            if not self._flying:
                self._depth += 1
                return
            self._drop()  # it would be raised inside the block
        self._raise()

    def unshielded(self, *, rings: bool = True) -> None:
        with self._lock:
            self._depth -= 1
            due = rings and self._overdue and not self._depth and self._inside
            self._overdue = self._overdue and not due
        if due:
            self._raise()

    def depth_set(self, depth: int) -> int:
        with self._lock:
            before, self._depth = self._depth, depth
        return before

    def _raise(self) -> None:
        if self.ended_by is not None:
            raise self.ended_by


def raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Raise an exception in another thread, when Python gets to it. None: not any more."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind))
