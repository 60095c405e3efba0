"""failed() and listeners of an attempt: user code too, under a timeout of their own. What they raise changes nothing.

attempt.py and judge.py beside this file call them.

What comes of an attempt. attempt.py and judge.py say which, ending.py answers it.

What comes of an attempt that did not simply succeed, or must not begin: tried again, failed, or nobody's any more.

attempt.py asks; limits.py knows the rules. The hooks that belong to an answer (failed(), listeners) run here.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import msgspec

from qd import events
from qd.drivers.types import Reserved
from qd.errors import (
    AttemptsExceeded,
    JobCancelled,
    JobFailure,
    JobInterrupted,
    JobTimeout,
    LeaseLost,
    ModelGone,
    Settled,
    UnknownJob,
)
from qd.events import Listeners
from qd.jobs.context import RunningJob
from qd.jobs.policy import Fail, JobLimits, Release, after_error
from qd.jobs.registry import Declared, Registry
from qd.log import cut
from qd.payload.format import Payload
from qd.payload.reservation import Ending, ending_of
from qd.process import fork
from qd.process.exit_codes import OVER_TIMEOUT
from qd.process.scoreboard import Fails
from qd.traces import shown
from qd.worker.timeout import Alarm

HOOK_SECONDS = 60.0  # what failed() and its listeners may take when the job itself has no timeout


class Attempt(NamedTuple):
    """One attempt of one job: what was read, what this app knows of it, and what its code sees of it."""

    reserved: Reserved
    payload: Payload
    declared: Declared
    limits: JobLimits
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

        self.alarm.note_hooks(Fails.HOOKS_BEFORE if killed else Fails.HOOKS)
        self.run(attempt.limits.timeout, hooks)

    def run(self, seconds: float, hooks: Callable[[], object]) -> None:
        try:
            self.alarm.guard(hooks, seconds or HOOK_SECONDS)
        except BaseException as raised:
            self.exit_if_copy(raised)
            logging.getLogger("qd.worker").exception("failed() or a listener raised")
        self.exit_if_copy()

    def exit_if_copy(self, error: BaseException | None = None) -> None:
        """A copy of this process that the job has forked, and that came back from the job, ends here."""
        if os.getpid() == self._pid:
            return
        if isinstance(error, SystemExit):
            fork.leave(fork.code_of(error))
        if error is not None:
            sys.stderr.write(shown(error))
        fork.leave(int(error is not None))


class Death(NamedTuple):
    """How the worker of the attempt before died: in words (and under them its last stack), and as facts."""

    told: str = ""
    facts: Mapping[str, object] | None = None


class Done(msgspec.Struct, frozen=True):
    """It ran to its end. Of a job that is tied to others: what it returned, and whether it did not run, since its batch was
    cancelled."""

    result: object = None
    skipped: bool = False


class Missing(Done, frozen=True):
    """It did not run: an argument is no longer in the database, and the job says that it is then over, and well."""

    why: str = ""


class Back(msgspec.Struct, frozen=True):
    """It goes back. spends: whether the attempt counts; held: since when it could not be run, kept in the payload."""

    delay: float
    why: str
    spends: bool = True
    head: bool = False
    exceptions: int | None = None
    held: int = 0
    error: BaseException | None = None


class Failed(msgspec.Struct, frozen=True):
    """It has failed for good. attempts: the count its payload is kept with."""

    error: BaseException
    attempts: int = 0
    death: Death | None = None


class Lost(msgspec.Struct, frozen=True):
    """Its lease is gone: there is nothing left to answer."""

    error: BaseException


class Cancelled(msgspec.Struct, frozen=True):
    """Somebody cancelled it: it is dropped, and to those that it is tied to it has failed."""

    error: BaseException


Outcome = Done | Back | Failed | Lost | Cancelled
DONE = Done()


def died(error_class: type[AttemptsExceeded | JobTimeout], reason: str, death: Death) -> AttemptsExceeded | JobTimeout:
    """What it has failed with whose worker is gone: why, and how that died."""
    how, _, stack = death.told.partition("\n")
    error = error_class(f"{reason}{': ' + how if how else ''}")
    if stack:
        error.add_note(stack)
    return error


def unknown_job(registry: Registry, name: str) -> UnknownJob:
    near = registry.near(name)
    known = f"did you mean {' or '.join(map(repr, near))}?" if near else f"{len(registry.names())} are known"
    return UnknownJob(f"no job '{cut(name)}' is declared in this app ({known})")


BY_THE_JOB = "released by the job"


class Verdicts:
    def __init__(self, hooks: Hooks) -> None:
        self.hooks = hooks

    def by_job(self, attempt: Attempt) -> Outcome:
        """release() or fail() was called, by the job or by middleware around it."""
        said, job = attempt.job.outcome, attempt.job
        if isinstance(said, Release):
            reason = said.reason or BY_THE_JOB
            self.hooks.over(attempt, None, events.JobReleased(job, said.delay, reason))
            return Back(said.delay, reason, spends=said.counts)
        assert isinstance(said, Fail)
        return self.fail(attempt, said.error or JobFailure(said.reason))

    def after(self, attempt: Attempt, error: BaseException) -> Outcome:
        """An error, or an end from outside, came out of the job."""
        payload, limits, job = attempt.payload, attempt.limits, attempt.job
        if isinstance(error, LeaseLost):
            self.hooks.over(attempt, error, events.LeaseLost(job))
            return Lost(error)
        if isinstance(error, JobCancelled):
            return self.cancelled(attempt, error)
        if isinstance(error, ModelGone):
            return self._gone(attempt, error)
        if isinstance(error, JobInterrupted):
            self.hooks.over(attempt, error, events.JobHandedBack(job))
            return Back(0.0, "the worker stops", spends=False, head=True)
        timed_out = isinstance(error, JobTimeout)
        exceptions = payload.exceptions + 1
        verdict = after_error(limits, payload, time.time(), exceptions=exceptions, timed_out=timed_out)
        if isinstance(verdict, Fail):
            return self.fail(attempt, error)
        ended = events.JobTimedOut(job) if timed_out else events.JobExceptionOccurred(job, error)
        self.hooks.over(attempt, error, ended, events.JobReleasedAfterException(job, verdict.delay))
        return Back(verdict.delay, "it is tried again", exceptions=exceptions, error=error)

    def _gone(self, attempt: Attempt, error: ModelGone) -> Outcome:
        """Trying again would not bring the row back."""
        said = attempt.payload.deleteWhenMissingModels
        if not (attempt.declared.options.delete_when_missing if said is None else said):
            return self.fail(attempt, error)
        self.hooks.over(attempt, error)
        return Missing(why=str(error))

    def cancelled(self, attempt: Attempt, error: BaseException) -> Cancelled:
        self.hooks.over(attempt, error, events.JobCancelled(attempt.job))
        return Cancelled(error)

    def exceeded(self, attempt: Attempt, reason: str, death: Death) -> Outcome:
        """Too many attempts, too late, or too many crashes: failed without running."""
        error, payload = died(AttemptsExceeded, reason, death), attempt.payload
        if 0 < attempt.limits.max_crashes < payload.crashes:  # its hooks, too, have killed a worker or a host
            return Failed(error, payload.attempts, death)
        return self.fail(attempt, error, death=death, begins=True)

    def killed(self, attempt: Attempt, death: Death) -> Outcome:
        """Its last attempt was killed; or it had failed, and its hooks have killed their worker: they are not asked again.
        The attempt that the reserve has counted does not begin."""
        payload = msgspec.structs.replace(attempt.payload, attempts=attempt.payload.attempts - 1)
        attempt.job.attempt = payload.attempts
        if ending_of(attempt.reserved.before) is Ending.DIED_IN_HOOKS:
            error = died(AttemptsExceeded, "it had failed, and its worker died in failed() or in a listener", death)
            return Failed(error, payload.attempts, death)
        known = death._replace(told=death.told.removeprefix(OVER_TIMEOUT))
        error = died(JobTimeout, "it ran longer than its timeout and was killed", known)
        return self.fail(attempt._replace(payload=payload), error, death=death, killed=True)

    def fail(
        self,
        attempt: Attempt,
        error: BaseException,
        *,
        death: Death | None = None,
        killed: bool = False,
        begins: bool = False,
    ) -> Failed:
        """killed: the attempt before this one was, for its timeout. begins: listeners have not heard of this attempt yet."""
        crashed = death is not None and attempt.payload.crashes > 0
        self.hooks.fail(attempt, error, crashed=crashed, killed=killed, begins=begins)
        return Failed(error, attempt.payload.attempts, death)
