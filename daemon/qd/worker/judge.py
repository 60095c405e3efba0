"""What comes of an attempt that did not simply succeed, or must not begin: tried again, failed, or nobody's any more.

attempt.py asks; limits.py knows the rules. The hooks that belong to an answer (failed(), listeners) run here.
"""

from __future__ import annotations

import time

import msgspec

from qd import events
from qd.errors import AttemptsExceeded, JobCancelled, JobFailure, JobInterrupted, JobTimeout, LeaseLost, ModelGone
from qd.limits import Fail, Release, after_error
from qd.process.exits import OVER_TIMEOUT
from qd.unit import Ending, ending_of
from qd.worker.hooks import Attempt, Hooks
from qd.worker.outcome import Back, Cancelled, Death, Failed, Lost, Missing, Outcome, died

BY_THE_JOB = "released by the job"


class Judge:
    def __init__(self, hooks: Hooks) -> None:
        self.hooks = hooks

    def by_hand(self, attempt: Attempt) -> Outcome:
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
