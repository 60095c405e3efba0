"""failed() and listeners of an attempt: user code too, under a timeout of their own. What they raise changes nothing.

attempt.py and judge.py beside this file call them.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from qd import events
from qd.bus.running import RunningJob
from qd.connectors.base import Reserved
from qd.errors import JobTimeout, Settled
from qd.jobs import Declared
from qd.limits import Limits
from qd.listeners import Listeners
from qd.payload import Payload
from qd.process import child
from qd.process.scoreboard import Fails
from qd.traces import shown
from qd.worker.alarm import Alarm

HOOK_SECONDS = 60.0  # what failed() and its listeners may take when the job itself has no timeout


class Attempt(NamedTuple):
    """One attempt of one job: what was read, what this app knows of it, and what its code sees of it."""

    reserved: Reserved
    payload: Payload
    declared: Declared
    limits: Limits
    job: RunningJob


class Hooks:
    def __init__(self, listeners: Listeners, alarm: Alarm) -> None:
        self.listeners, self.alarm, self._pid = listeners, alarm, os.getpid()
        listeners.worker = self._pid

    def hear(self, seconds: float, event: Callable[..., events.Event], *facts: Any) -> None:
        """Tell the listeners of `event`, where there are any. seconds: the timeout of the job."""
        if self.listeners.has(event):  # type: ignore[arg-type]
            self.run(seconds, lambda: self.emit(event, *facts))

    def emit(self, event: Callable[..., events.Event], *facts: Any) -> None:
        """From code that is guarded already."""
        if self.listeners.has(event):  # type: ignore[arg-type]
            self.listeners.emit(event(*facts))

    def over(self, attempt: Attempt, error: BaseException | None, *told: events.Event) -> None:
        """The attempt has ended, and the job has not failed for good: what is told of that, and then JobAttempted."""
        heard = [event for event in (*told, events.JobAttempted(attempt.job, error)) if self.listeners.has(type(event))]
        for event in heard:
            self.run(attempt.limits.timeout, partial(self.listeners.emit, event))

    def fail(self, attempt: Attempt, error: BaseException, *, crashed: bool, killed: bool, begins: bool) -> None:
        """The job has failed for good: failed(), then the listeners. killed: this attempt did not begin, the one before
        was killed for its timeout. begins: it is judged before its code ran, and nothing is told of it yet."""
        job, timed_out = attempt.job, killed or isinstance(error, JobTimeout)

        def hooks() -> None:
            if begins:
                with suppress(Settled):  # it is settled already
                    self.emit(events.JobPopped, job)
                    self.emit(events.JobProcessing, job)
            try:
                if crashed:
                    self.emit(events.JobCrashed, job, attempt.payload.crashes)
                attempt.declared.on_failed(bytes(attempt.payload.data), error)
            finally:
                self.emit(events.JobFailed, job, error)
                if timed_out:
                    self.emit(events.JobTimedOut, job)
                else:
                    self.emit(events.JobExceptionOccurred, job, error)
                self.emit(events.JobAttempted, job, error)

        self.alarm.hooks_run(Fails.HOOKS_BEFORE if killed else Fails.HOOKS)
        self.run(attempt.limits.timeout, hooks)

    def run(self, seconds: float, hooks: Callable[[], object]) -> None:
        try:
            self.alarm.guard(hooks, seconds or HOOK_SECONDS)
        except BaseException as raised:
            self.only_here(raised)
            logging.getLogger("qd.worker").exception("failed() or a listener raised")
        self.only_here()

    def only_here(self, error: BaseException | None = None) -> None:
        """A copy of this process that the job has forked, and that came back from the job, ends here."""
        if os.getpid() == self._pid:
            return
        if isinstance(error, SystemExit):
            child.leave(child.code_of(error))
        if error is not None:
            sys.stderr.write(shown(error))
        child.leave(int(error is not None))
