"""SIGALRM, the only signal whose handler may raise: it ends a job from outside, and only inside user code.

    alarm.guard(body, seconds) -> the result of body; raises JobTimeout, JobInterrupted, JobCancelled or LeaseLost

The worker sets the timer; the master sends the same signal, with its meaning in the slot. An alarm that arrives outside
user code is ignored: the job has already ended. So is one before the deadline without a meaning: a thread of a job has
sent it or set the timer. Async jobs are cancelled instead. Of several jobs in one worker, each has a LaneAlarm.
"""

from __future__ import annotations

import os
import signal
import threading
from _signal import getsignal  # type: ignore[import-not-found]  # signal.getsignal builds an enum member at each call, 8 us
from collections.abc import Callable
from types import FrameType
from typing import TypeVar, cast

from qd.errors import EndJob, JobCancelled, JobInterrupted, JobTimeout, LeaseLost
from qd.jobs.context import RunningJob, note_end
from qd.options.kinds import span_text
from qd.process.scoreboard import Fails, L, Lane, W, Why, Words, now
from qd.process.shield import in_main_thread, shield, threads

T = TypeVar("T")
ENDS: dict[int, tuple[type[EndJob], str]] = {
    Why.TIMEOUT: (JobTimeout, "ran longer than its timeout"),
    Why.INTERRUPT: (JobInterrupted, "the worker stops"),
    Why.LEASE: (LeaseLost, "the reservation is gone"),
    Why.CANCEL: (JobCancelled, "the job was cancelled"),
}
MISSING = object()


def error_for(why: int, seconds: float) -> EndJob:
    """What ends the job. why: a Why; any other value is a timeout. seconds: its timeout."""
    kind, text = ENDS.get(why) or ENDS[Why.TIMEOUT]
    return kind(f"{text} of {span_text(seconds)}" if kind is JobTimeout else text)


class Alarm:
    """raised: an EndJob was raised in this process; it must not take another job."""

    fails = W.FAILS

    def __init__(self, slot: Words) -> None:
        self.raised = False
        self.cancel: Callable[[], object] | None = None  # set while an async job runs
        self.ended_by: EndJob | None = None
        self._slot, self._inside, self._pid = slot, False, os.getpid()
        self._handler = self._ring  # one object, to be recognized later
        self._deadline = 0  # a copy of the word in the slot, which a job could overwrite
        self._seconds = 0.0  # the limit of what runs now
        self._lost = False  # a checkpoint of the job has found its lease lost

    def open(self) -> None:
        signal.signal(signal.SIGALRM, self._handler)

    def guard(self, body: Callable[[], T], seconds: float) -> T:
        """Run user code for at most `seconds`; 0: no limit. If there is a result, a late alarm is ignored."""
        if getsignal(signal.SIGALRM) is not self._handler:  # an earlier job has replaced the handler
            self.open()
        self.ended_by, self._lost, shield.overdue = None, False, None
        result: object = MISSING
        self._seconds = seconds
        self._deadline = now() + int(seconds * 1e9) if seconds else 0
        if seconds:
            self._slot.words[W.DEADLINE] = self._deadline
            signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            try:
                self._inside = True
                result = body()
                self._inside = False
            except EndJob:
                self._inside = False
                if result is MISSING:
                    raise
            finally:
                self._inside = False  # an alarm may arrive before this line; its exception passes through the next one
        finally:
            if seconds and os.getpid() == self._pid:  # not in a copy that the job has forked: the slot is not its own
                signal.setitimer(signal.ITIMER_REAL, 0)
                self._slot.words[W.DEADLINE] = 0
            if self.ended_by is not None and os.getpid() == self._pid:
                self._slot[W.OVER] = self._slot[W.TURN]
        return result  # type: ignore[return-value]

    def note_hooks(self, fails: Fails = Fails.HOOKS) -> None:
        """The job has failed: if failed() or a listener ends this process, the job is buried without running them again."""
        if os.getpid() == self._pid:
            self._slot[self.fails] = fails

    def lease_lost(self) -> None:
        """Another worker may have the job by now: end it as any alarm does. May be called from any thread of the job."""
        self._lost = True
        if in_main_thread():
            self._ring(signal.SIGALRM, None)
        else:
            os.kill(os.getpid(), signal.SIGALRM)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if not shield.depth and shield.ring():
            return  # an earlier alarm that the shield had deferred
        why, turn = self._slot[W.WHY] & 0xFF, self._slot[W.WHY] >> 8
        self._slot[W.WHY] = 0
        lost, self._lost = self._lost, False
        if lost:
            why = Why.LEASE
        elif turn != self._slot[W.TURN] & 0xFFFFFFFF:
            why = 0  # meant for the previous job
        if not why and self._early():
            return
        if not self._inside:
            return
        self.ended_by = error_for(why, self._seconds)
        note_end(self.ended_by)
        if shield.depth:
            shield.overdue = self._raise
        else:
            self._raise()

    def _early(self) -> bool:
        """Whether the deadline has not passed. The sender may have used up the timer, so it is set again."""
        left = self._deadline - now()
        if self._inside and self._deadline and left > 0:
            signal.setitimer(signal.ITIMER_REAL, left / 1e9)
        return not self._deadline or left > 0

    def _raise(self) -> None:
        if not self._inside or self.ended_by is None:
            return
        self.raised = True
        if self.cancel is not None:
            self.cancel()
        else:
            self._inside = False
            raise self.ended_by


class LaneAlarm(Alarm):
    """The alarm of a job in a lane, without a signal.

        a task       is cancelled until it ends (lanes.py)
        a thread     has an exception raised in it, once. Python does not raise it in a blocking call of C: such a job ends
                     with its worker

    begun: called with the deadline of what begins. raised: an EndJob was raised in a thread.
    """

    fails = L.FAILS

    def __init__(self, words: Lane, begun: Callable[[int], None]) -> None:
        super().__init__(words)
        self.words, self._begun = words, begun
        self.job: RunningJob | None = None
        self.deadline = 0
        self._lock = threading.Lock()
        self._overdue = False
        self._flying = False  # Python has the exception and has not raised it yet
        self._thread = self._depth = 0

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
        threads[thread] = self
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
            threads.pop(thread, None)
        return cast(T, result)

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
    import ctypes  # every process of `qd work` has loaded it, but the commands that load the app have not

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind))
