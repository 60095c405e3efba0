"""The outcome of an attempt, and the user code that belongs to it.

Outcome    Done, Back, Failed, Lost or Cancelled; settle.py answers it
Outcomes   which outcome follows if an attempt did not simply succeed or must not begin (the rules: jobs/policy.py). It
           calls failed() and listeners, under a timeout of their own; errors they raise change nothing
"""

from __future__ import annotations

import logging
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec

from qd import errors, events
from qd.drivers.types import Reserved
from qd.events import Listeners
from qd.jobs.context import RunningJob
from qd.jobs.policy import GiveUp, JobLimits, Release, after_error
from qd.jobs.registry import Declared, Registry
from qd.log import cut
from qd.payload.format import OF_PHP, Payload
from qd.payload.reservation import Ending, ending_of
from qd.process import fork
from qd.process.exit_codes import OVER_TIMEOUT
from qd.process.scoreboard import Fails
from qd.traces import shown, without_message
from qd.worker.timeout import Alarm

HOOK_SECONDS = 60.0  # limit for failed() and its listeners if the job itself has no timeout


class Attempt(NamedTuple):
    """One attempt of one job. job: what the job's code sees."""

    reserved: Reserved
    payload: Payload
    declared: Declared
    limits: JobLimits
    job: RunningJob


class Death(NamedTuple):
    """How the worker of the previous attempt died: as text (followed by its last stack), and as facts."""

    text: str = ""
    facts: Mapping[str, object] | None = None


class Done(msgspec.Struct, frozen=True):
    """The job is done. For a job with relations: its result, and whether it was skipped because its batch was cancelled."""

    result: object = None
    skipped: bool = False


class Missing(Done, frozen=True):
    """The job did not run: an argument is no longer in the database, and delete_when_missing is set."""

    why: str = ""


class Back(msgspec.Struct, frozen=True):
    """The job is released. spends: whether the attempt counts. held: since when it could not run, kept in the payload.
    unroutable: no code here can run it; it fails after unroutable_ttl."""

    delay: float
    why: str
    spends: bool = True
    head: bool = False
    exceptions: int | None = None
    held: int = 0
    error: BaseException | None = None
    unroutable: bool = False


class Failed(msgspec.Struct, frozen=True):
    """The job has failed permanently. attempts: the count in its record."""

    error: BaseException
    attempts: int = 0
    death: Death | None = None


class Lost(msgspec.Struct, frozen=True):
    """The lease is lost: there is nothing left to answer."""

    error: BaseException


class Cancelled(msgspec.Struct, frozen=True):
    """The job was cancelled: it is dropped, and counts as failed for its relations."""

    error: BaseException


Outcome = Done | Back | Failed | Lost | Cancelled
DONE = Done()


def died(kind: type[BaseException], reason: str, death: Death) -> BaseException:
    """The error of a job whose worker died: the reason, and how the worker died."""
    how, _, stack = death.text.partition("\n")
    error = kind(f"{reason}{': ' + how if how else ''}")
    if stack:
        error.add_note(stack)
    return error


def unknown_job(registry: Registry, payload: Payload) -> errors.UnknownJob:
    name = payload.job
    if (declared := registry.get(name)) is not None:
        fact = f"this app declares version {declared.version} of job '{cut(name)}', and the payload has version"
        return errors.NewerVersion(f"{fact} {payload.job_version} (deploy the newer code, then `qd restart`)")
    near = registry.near(name)
    if "\\" in name and not near:
        return errors.UnknownJob(f"no job '{cut(name)}' is declared in this app ({OF_PHP})")
    way = "add its module to `imports`, or `qd restart --rolling`"
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"{len(registry.names())} declared; {way}"
    return errors.UnknownJob(f"no job '{cut(name)}' is declared in this app ({hint})")


def misfit(declared: Declared, payload: Payload) -> str:
    """Why a worker that has this code puts the job back because of its parameters; "" if it does not."""
    if payload.job_version == declared.version and not declared.options.encrypted:
        try:
            declared.decode(bytes(payload.data))
        except errors.UnknownParameters as error:
            return str(error)
        except errors.QdError:
            pass  # a worker fails it, and does not put it back
    return ""


BY_THE_JOB = "released by the job"
LUCK = random.Random()  # for jitter: jobs seed the one that the module shares
os.register_at_fork(after_in_child=LUCK.seed)


class Outcomes:
    def __init__(self, listeners: Listeners, alarm: Alarm, keep_messages: bool = False) -> None:
        self.listeners, self.alarm, self._pid = listeners, alarm, os.getpid()
        self._keep_messages = keep_messages
        listeners.worker = self._pid

    def for_record(self, job: RunningJob, error: BaseException) -> BaseException:
        """The error for the log and the failed store: of an encrypted job without its message, which may contain values."""
        encrypted = job.declared is not None and job.declared.options.encrypted
        if not encrypted or self._keep_messages:
            return error
        return without_message(error, str(error) if isinstance(error, errors.EndJob) else "")

    def by_job(self, attempt: Attempt) -> Outcome:
        """The job, or middleware around it, has called release() or fail(), or raised Retry or Fail."""
        requested, job = attempt.job.outcome, attempt.job
        if isinstance(requested, Release):
            reason = requested.reason or BY_THE_JOB
            self._ended(attempt, None, events.JobReleased(job, requested.delay, reason))
            return Back(requested.delay, reason, spends=requested.counts)
        assert isinstance(requested, GiveUp)
        return self.fail(attempt, requested.error or errors.JobFailure(requested.reason))

    def after(self, attempt: Attempt, error: BaseException) -> Outcome:
        """The job has raised an error, or was ended from outside."""
        payload, limits, job = attempt.payload, attempt.limits, attempt.job
        if isinstance(error, errors.LeaseLost):
            self._ended(attempt, error, events.LeaseLost(job))
            return Lost(error)
        if isinstance(error, errors.JobCancelled):
            return self.cancelled(attempt, error)
        if isinstance(error, errors.ModelGone):
            delete = attempt.payload.deleteWhenMissingModels
            if not (attempt.declared.options.delete_when_missing if delete is None else delete):
                return self.fail(attempt, error)  # trying again would not bring the row back
            self._ended(attempt, error)
            return Missing(why=str(self.for_record(job, error)))
        if isinstance(error, errors.JobInterrupted):
            self._ended(attempt, error, events.JobHandedBack(job))
            return Back(0.0, "the worker stops", spends=False, head=True)
        timed_out = isinstance(error, errors.JobTimeout)
        exceptions, raised, luck = payload.exceptions + 1, None if timed_out else error, LUCK.random()
        decision = after_error(limits, payload, time.time(), exceptions=exceptions, error=raised, luck=luck)
        if isinstance(decision, GiveUp):
            return self.fail(attempt, error)
        ended = events.JobTimedOut(job) if timed_out else events.JobExceptionOccurred(job, error)
        self._ended(attempt, error, ended, events.JobReleasedAfterException(job, decision.delay))
        return Back(decision.delay, "will be retried", exceptions=exceptions, error=self.for_record(job, error))

    def cancelled(self, attempt: Attempt, error: BaseException) -> Cancelled:
        self._ended(attempt, error, events.JobCancelled(attempt.job))
        return Cancelled(error)

    def exceeded(self, attempt: Attempt, reason: str, death: Death) -> Outcome:
        """Too many attempts or crashes, or too late: the job fails without running."""
        error, payload = died(errors.AttemptsExceeded, reason, death), attempt.payload
        if 0 < attempt.limits.max_crashes < payload.crashes:  # its hooks, too, have crashed a worker or a host
            return Failed(error, payload.attempts, death)
        return self.fail(attempt, error, death=death, begins=True)

    def killed(self, attempt: Attempt, death: Death) -> Outcome:
        """The last attempt was killed; or the job had failed, and its hooks crashed their worker: they are not run again.
        The attempt that the reserve has counted does not begin."""
        payload = msgspec.structs.replace(attempt.payload, attempts=attempt.payload.attempts - 1)
        attempt.job.attempt = payload.attempts
        if ending_of(attempt.reserved.before) is Ending.DIED_IN_HOOKS:
            reason = "it had failed, and its worker died in failed() or in a listener"
            error = died(errors.AttemptsExceeded, reason, death)
            return Failed(error, payload.attempts, death)
        known = death._replace(text=death.text.removeprefix(OVER_TIMEOUT))
        error = died(errors.JobTimeout, "it ran longer than its timeout and was killed", known)
        return self.fail(attempt._replace(payload=payload), error, death=death, killed=True)

    def fail(
        self,
        attempt: Attempt,
        error: BaseException,
        death: Death | None = None,
        killed: bool = False,
        begins: bool = False,
    ) -> Failed:
        """The job has failed permanently: failed(), then the listeners. killed: this attempt did not begin, the previous
        one was killed for its timeout. begins: the job's code did not run, and no event was emitted yet."""
        job, timed_out, emit = attempt.job, killed or isinstance(error, errors.JobTimeout), self.listeners.emit

        def hooks() -> None:
            if begins:
                with suppress(errors.Settled):  # the outcome is decided already
                    emit(events.JobPopped(job))
                    emit(events.JobProcessing(job))
            try:
                if death is not None and attempt.payload.crashes > 0:
                    emit(events.JobCrashed(job, attempt.payload.crashes))
                attempt.declared.on_failed(attempt.job.current_data, error)
            finally:
                emit(events.JobFailed(job, error))
                emit(events.JobTimedOut(job) if timed_out else events.JobExceptionOccurred(job, error))
                emit(events.JobAttempted(job, error))

        self.alarm.note_hooks(Fails.HOOKS_BEFORE if killed else Fails.HOOKS)
        self._run(job, attempt.limits.timeout, hooks)
        return Failed(self.for_record(job, error) if death is None else error, attempt.payload.attempts, death)

    # -- user code

    def _ended(self, attempt: Attempt, error: BaseException | None, *ending: events._OfJob) -> None:
        """The attempt has ended, and the job has not failed permanently: emit the events, and then JobAttempted."""
        for event in (*ending, events.JobAttempted(attempt.job, error)):
            self.notify(attempt.limits.timeout, event)

    def notify(self, seconds: float, event: events._OfJob) -> None:
        """Emit `event` if it has listeners. seconds: the timeout of the job; 0: none of its own."""
        if self.listeners.has(type(event)):
            self._run(event.job, seconds, partial(self.listeners.emit, event))

    def _run(self, job: RunningJob, seconds: float, hooks: Callable[[], object]) -> None:
        try:
            self.alarm.guard(hooks, seconds or HOOK_SECONDS)
        except BaseException as raised:
            self.exit_if_copy(job, raised)
            logging.getLogger("qd.worker").error("failed() or a listener raised", exc_info=self.for_record(job, raised))
        self.exit_if_copy(job)

    def exit_if_copy(self, job: RunningJob, error: BaseException | None = None) -> None:
        """Exit if this is a copy of the worker that the job has forked and that has returned from the job."""
        if os.getpid() == self._pid:
            return
        if isinstance(error, SystemExit):
            fork.leave(fork.code_of(error))
        if error is not None:
            sys.stderr.write(shown(self.for_record(job, error)))
        fork.leave(int(error is not None))
