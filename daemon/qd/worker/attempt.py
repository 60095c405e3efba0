"""One attempt of one job: limits, alarm, the user's function, and what comes of it.

    Reserved -> read -> known here? -> limits -> arguments -> listeners, function -> Done | Back | Failed

Nothing here talks to a server: the loop settles what is returned. User code runs only inside `alarm.guard`.
"""

from __future__ import annotations

import inspect
import logging
import os
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from qd import events
from qd.app import Qd
from qd.bounds import too_deep
from qd.bus import running
from qd.bus.running import RunningJob
from qd.bus.send import signing_of
from qd.connectors.base import Reserved
from qd.errors import (
    EndJob,
    JobCancelled,
    JobFailure,
    JobInterrupted,
    JobTimeout,
    LeaseLost,
    Malformed,
    Settled,
    SignatureRefused,
    UnknownParameters,
    WrongType,
)
from qd.jobs import Declared
from qd.limits import Fail, Limits, Release, after_error, before, hold_delay, limits_of
from qd.options import WorkOptions
from qd.payload import Payload, read
from qd.process import child
from qd.process.scoreboard import Fails
from qd.signing import Signing
from qd.worker.alarm import Alarm
from qd.worker.coroutines import Coroutines
from qd.worker.outcome import DONE, Back, Cancelled, Death, Failed, Lost, Outcome, exceeded, unknown_job

# How a mark ends that a keeper wrote, see unit.answered.
TIMED_OUT, KILLED_FOR_GOOD, KILLED_IN_HOOKS, CANCELLED = b'.t"', b'.x"', b'.h"', b'.c"'
HOOK_SECONDS = 60.0  # what failed() and its listeners may take when the job itself has no timeout


class Attempts:
    """What stays the same from job to job in this worker."""

    def __init__(
        self, app: Qd, work: WorkOptions, alarm: Alarm, coroutines: Coroutines, keep: Callable[[str, bytes], None]
    ) -> None:
        """keep: takes the checkpoints of the job that was reserved under a mark."""
        self._keep = keep
        self.app, self.work, self.alarm, self.coroutines = app, work, alarm, coroutines
        self._signing, self._max_depth = signing_of(app.settings), app.settings.max_depth
        self._pid = os.getpid()
        self._returned = False  # the job's function has, its listeners may still run
        self._declared_limits: dict[str, Limits] = {}
        self.payload: Payload | None = None  # of the last attempt; None: its payload was not read, or not trusted

    def run(self, reserved: Reserved, begin: Callable[[Payload, Limits], None], death: Callable[[], Death]) -> Outcome:
        """begin: told what is about to run, before any user code. death: how the worker of the last attempt died, asked
        only for a job that is judged."""
        self.payload = None
        try:
            if too_deep(reserved.member, self._max_depth):
                raise Malformed(f"nested deeper than max_depth = {self._max_depth}")
            payload = read(reserved.member)
        except Malformed as error:
            return Failed(error)
        now = time.time()
        if payload.is_laravel_object:
            return self._hold(payload, now, "a Laravel object job: PHP runs it")
        if self._signing is not None:
            try:
                self._signing.check(payload)
                self._signing.opened(payload)
            except SignatureRefused as error:
                return Failed(error, payload.attempts - 1)
        self.payload = payload
        declared = self.app.registry.get(payload.job)
        if declared is None and reserved.before.endswith(CANCELLED):
            return Cancelled(JobCancelled("the job was cancelled"))
        if declared is None:
            return self._unroutable(payload, now, unknown_job(self.app.registry, payload.job))
        limits = self._limits_of(payload, declared)
        begin(payload, limits)
        job = self._running(payload, reserved)
        running.enter(job)
        try:
            if reserved.before.endswith(CANCELLED):
                return self._cancelled(limits, job, JobCancelled("the job was cancelled"))
            if reserved.before.endswith((KILLED_FOR_GOOD, KILLED_IN_HOOKS)):
                return self._killed(declared, payload, limits, job, reserved, death())
            if reserved.before.endswith(TIMED_OUT):
                self._hear(limits, events.JobTimedOut, self._running(payload, reserved, payload.attempts - 1))
                if self.alarm.raised:
                    return Back(0.0, "its worker leaves", spends=False, head=True)
            reason = before(limits, payload, now)
            if reason is not None:
                return self._judged(declared, payload, limits, job, reason, death())
            try:
                call = declared.prepare(bytes(payload.data))
            except UnknownParameters as error:
                return self._unroutable(payload, now, error)
            except WrongType as error:
                return self._fail(declared, payload, limits, job, error)
            return self._fire(declared, payload, limits, job, call)
        finally:
            running.leave()

    def _running(self, payload: Payload, reserved: Reserved, attempt: int | None = None) -> RunningJob:
        known = payload.id or payload.uuid or reserved.mark
        saved, keep = payload.checkpoint, partial(self._keep, reserved.mark)
        if self._signing is not None:
            saved = self._signing.opened(payload)
            keep = partial(self._keep_sealed, self._signing, payload, reserved.mark)
        return RunningJob(known, payload.job, reserved.queue, attempt or payload.attempts, saved, keep)

    def _keep_sealed(self, signing: Signing, payload: Payload, mark: str, state: bytes) -> None:
        self._keep(mark, signing.sealed(payload, state))

    def _limits_of(self, payload: Payload, declared: Declared) -> Limits:
        """Limits of a job that says nothing itself are those of its declaration: worked out once."""
        if payload.says_limits or declared.options.retry_for is not None:
            return limits_of(payload, declared.options, self.work)
        found = self._declared_limits.get(declared.name)
        if found is None:
            found = self._declared_limits[declared.name] = limits_of(payload, declared.options, self.work)
        return found

    # -- what cannot be run here and now

    def _hold(self, payload: Payload, now: float, why: str) -> Back:
        """Back with a growing delay; nothing is spent, and the payload remembers since when."""
        since = payload.held or int(now)
        return Back(hold_delay(payload.held, now), why, spends=False, held=since)

    def _unroutable(self, payload: Payload, now: float, error: Exception) -> Outcome:
        if payload.held and now - payload.held > self.work.unroutable_ttl:
            return Failed(error, payload.attempts - 1)
        return self._hold(payload, now, str(error))

    # -- user code

    def _fire(
        self, declared: Declared, payload: Payload, limits: Limits, job: RunningJob, call: Callable[[], object]
    ) -> Outcome:
        error: BaseException
        self._returned = False
        try:
            self.alarm.guard(lambda: self._body(declared, job, call), limits.timeout)
            self._only_here()
            return DONE if job.outcome is None else self._by_hand(declared, payload, limits, job)
        except Settled:
            self._only_here()
            return self._by_hand(declared, payload, limits, job)
        except SystemExit as leaving:
            self._only_here(leaving)
            raise  # out of the worker too: a job that leaves is a crash
        except BaseException as raised:
            error = raised
        self._only_here(error)
        if job.outcome is not None:
            return self._by_hand(declared, payload, limits, job)
        if self._returned and isinstance(error, EndJob):
            return DONE  # too late for the job: it ended a listener
        return self._after(declared, payload, limits, job, self.alarm.ended_by or error)

    def _body(self, declared: Declared, job: RunningJob, call: Callable[[], object]) -> None:
        listeners = self.app.listeners
        if listeners.has(events.JobProcessing):
            listeners.emit(events.JobProcessing(job))
        result = call()
        if declared.is_async or inspect.iscoroutine(result):
            self.coroutines.run(result, self.alarm)
        self._returned = True
        self._only_here()
        if job.outcome is None and listeners.has(events.JobProcessed):
            listeners.emit(events.JobProcessed(job))

    def _only_here(self, error: BaseException | None = None) -> None:
        """A copy of this process that the job has forked, and that came back from the job, ends here."""
        if os.getpid() == self._pid:
            return
        if isinstance(error, SystemExit):
            child.leave(child.code_of(error))
        if error is not None:
            traceback.print_exception(error)
        child.leave(int(error is not None))

    def _by_hand(self, declared: Declared, payload: Payload, limits: Limits, job: RunningJob) -> Outcome:
        if isinstance(job.outcome, Release):
            self._hear(limits, events.JobReleased, job, job.outcome.delay)
            return Back(job.outcome.delay, "released by the job")
        assert isinstance(job.outcome, Fail)
        return self._fail(declared, payload, limits, job, JobFailure(job.outcome.reason))

    def _after(
        self, declared: Declared, payload: Payload, limits: Limits, job: RunningJob, error: BaseException
    ) -> Outcome:
        """An error, or an end from outside, came out of the job."""
        if isinstance(error, LeaseLost):
            self._hear(limits, events.LeaseLost, job)
            return Lost(error)
        if isinstance(error, JobCancelled):
            return self._cancelled(limits, job, error)
        if isinstance(error, JobInterrupted):
            self._hear(limits, events.JobHandedBack, job)
            return Back(0.0, "the worker stops", spends=False, head=True)
        timed_out = isinstance(error, JobTimeout)
        exceptions = payload.exceptions + 1
        verdict = after_error(limits, payload, time.time(), exceptions=exceptions, timed_out=timed_out)
        if isinstance(verdict, Fail):
            return self._fail(declared, payload, limits, job, error)
        if timed_out:
            self._hear(limits, events.JobTimedOut, job)
        else:
            self._hear(limits, events.JobExceptionOccurred, job, error)
        self._hear(limits, events.JobReleased, job, verdict.delay)
        return Back(verdict.delay, "it is tried again", exceptions=exceptions, error=error)

    def _cancelled(self, limits: Limits, job: RunningJob, error: BaseException) -> Cancelled:
        self._hear(limits, events.JobCancelled, job)
        return Cancelled(error)

    def _judged(
        self, declared: Declared, payload: Payload, limits: Limits, job: RunningJob, reason: str, death: Death
    ) -> Outcome:
        """Too many attempts, too late, or too many crashes: failed without running."""
        error = exceeded(reason, death)
        if 0 < limits.max_crashes < payload.crashes:  # its hooks, too, have killed a worker or a host
            return Failed(error, payload.attempts, death)
        return self._fail(declared, payload, limits, job, error, death=death)

    def _killed(
        self, declared: Declared, payload: Payload, limits: Limits, job: RunningJob, reserved: Reserved, death: Death
    ) -> Outcome:
        """Its last attempt was killed; or it had failed, and its hooks have killed their worker: they are not asked again.
        The attempt that the reserve has counted does not begin."""
        payload = msgspec.structs.replace(payload, attempts=payload.attempts - 1)
        job.attempt = payload.attempts
        if reserved.before.endswith(KILLED_IN_HOOKS):
            error = exceeded("it had failed, and its worker died in failed() or in a listener", death)
            return Failed(error, payload.attempts, death)
        error = exceeded("it ran longer than its timeout and was killed", death)
        return self._fail(declared, payload, limits, job, error, death=death, timed_out=True)

    def _fail(
        self,
        declared: Declared,
        payload: Payload,
        limits: Limits,
        job: RunningJob,
        error: BaseException,
        *,
        death: Death | None = None,
        timed_out: bool = False,
    ) -> Failed:
        def hooks() -> None:
            try:
                if death is not None and payload.crashes:
                    self._emit(events.JobCrashed, job, payload.crashes)
                declared.on_failed(bytes(payload.data), error)
            finally:
                self._emit(events.JobFailed, job, error)
                if timed_out or isinstance(error, JobTimeout):
                    self._emit(events.JobTimedOut, job)
                else:
                    self._emit(events.JobExceptionOccurred, job, error)

        self.alarm.hooks_run(Fails.HOOKS_BEFORE if timed_out else Fails.HOOKS)
        self._hooks(limits.timeout, hooks)
        return Failed(error, payload.attempts, death)

    def _hear(self, limits: Limits, event: Callable[..., events.Event], *facts: Any) -> None:
        if self.app.listeners.has(event):  # type: ignore[arg-type]
            self._hooks(limits.timeout, lambda: self._emit(event, *facts))

    def _emit(self, event: Callable[..., events.Event], *facts: Any) -> None:
        if self.app.listeners.has(event):  # type: ignore[arg-type]
            self.app.listeners.emit(event(*facts))

    def hear_lost(self, reserved: Reserved) -> None:
        """Listeners of LeaseLost, where the answer found it out and the job is over."""
        try:
            job = self._running(read(reserved.member), reserved)
        except Malformed:
            return
        self._hooks(HOOK_SECONDS, lambda: self._emit(events.LeaseLost, job))

    def _hooks(self, seconds: float, hooks: Callable[[], None]) -> None:
        """failed() and listeners: user code too, under a timeout of their own. What they raise changes nothing."""
        try:
            self.alarm.guard(hooks, seconds or HOOK_SECONDS)
        except SystemExit as leaving:
            self._only_here(leaving)
            raise
        except (Exception, Settled, EndJob):
            logging.getLogger("qd.worker").exception("failed() or a listener raised")
        self._only_here()
