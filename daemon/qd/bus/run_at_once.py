"""One job of the connection `sync`, until it has ended: by the rules of a worker (limits.py), without a pause between."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from qd import events
from qd.bus.job_here import body_here, refuse_in_a_loop, tell_of_failure
from qd.bus.results import value_of_error, value_of_result
from qd.bus.running import RunningJob, in_hand
from qd.bus.shared import Shared
from qd.connectors.effects import Effect
from qd.connectors.ends import ends
from qd.errors import AttemptsExceeded, JobFailure, ModelGone, Settled, UnknownJob, UnknownParameters, WrongType
from qd.jobs import Declared
from qd.limits import Fail, Release, after_error, before, limits_of
from qd.options import WorkOptions
from qd.payload import Payload

MOST = 1000  # runs of a job that releases itself without end


class Run:
    """One job, until it has ended."""

    def __init__(
        self, shared: Shared, work: WorkOptions, place: tuple[str, str], text: bytes, payload: Payload
    ) -> None:
        """place: the connection and the queue it was sent to. text: the payload as it was sent."""
        self._shared, self._work, self._place, self._text, self._payload = shared, work, place, text, payload
        self._saved: bytes | None = None

    def end(self) -> tuple[list[Effect], Exception | None]:
        """What follows from it, and its error where it has failed for good."""
        payload = self._payload
        declared = self._shared.services.registry.get(payload.job)
        if declared is None:
            return ends(payload, "failed"), UnknownJob(
                f"no job '{payload.job}' is declared in this app, which is to run it"
            )
        try:
            result, skipped = self._tries(declared)
        except Exception as error:
            return ends(payload, "failed", value=value_of_error(error, str(error))), error
        value = value_of_result(result, 0) if payload.qd is not None and payload.qd.result else b"null"
        return ends(payload, "skipped" if skipped else "done", value=value), None

    def _tries(self, declared: Declared) -> tuple[object, bool]:
        """What it returned, and whether it was skipped. Raises its last error, once it has failed for good."""
        limits = limits_of(self._payload, declared.options, self._work)
        attempts, exceptions = 1, 0
        for _ in range(MOST):
            payload = msgspec.structs.replace(self._payload, attempts=attempts, exceptions=exceptions)
            job = self._job(declared, payload)
            if (reason := before(limits, payload, time.time())) is not None:
                return self._fail(declared, job, AttemptsExceeded(reason))
            try:
                result = self._attempt(declared, job)
            except (UnknownParameters, WrongType) as error:
                return self._fail(declared, job, error)
            except Exception as error:
                if isinstance(error, ModelGone) and self._may_be_gone(declared):
                    return None, False
                exceptions += 1
                verdict = job.outcome or after_error(limits, payload, time.time(), exceptions=exceptions)
                if isinstance(verdict, Fail):
                    return self._fail(declared, job, error)
                self._tell(
                    job,
                    error,
                    events.JobExceptionOccurred(job, error),
                    events.JobReleasedAfterException(job, verdict.delay),
                )
            else:
                if not isinstance(job.outcome, Release):
                    return result, job.skipped
                verdict = job.outcome
                self._tell(job, None, events.JobReleased(job, verdict.delay, verdict.reason))
            attempts += verdict.counts
        return self._fail(declared, job, AttemptsExceeded(f"{declared.name} was released {MOST} times, and never ran"))

    def _may_be_gone(self, declared: Declared) -> bool:
        said = self._payload.deleteWhenMissingModels
        return bool(declared.options.delete_when_missing if said is None else said)

    def _attempt(self, declared: Declared, job: RunningJob) -> object:
        """What it returned; where it released itself, its outcome says so. Raises what it raised, and JobFailure for
        fail()."""
        listeners = self._shared.services.listeners
        stages, result = self._shared.services.pipeline.around(declared), None
        if declared.is_async:
            refuse_in_a_loop()
        call = self._freeing(job.prepared(declared))
        try:
            with in_hand(job):
                result = body_here(call, declared, job, listeners, stages)
        except (Exception, Settled):
            if job.outcome is None:
                raise
        if isinstance(job.outcome, Fail):
            raise job.outcome.error or JobFailure(job.outcome.reason)
        if job.outcome is None:
            listeners.emit(events.JobProcessed(job))
            listeners.emit(events.JobAttempted(job, None))
        return result

    def _freeing(self, call: Callable[[], object]) -> Callable[[], object]:
        """A lock that lasts until the job starts is freed there."""
        ties = self._payload.qd
        if ties is None or ties.unique is None or ties.until != "start":
            return call
        name, owner = ties.unique, self._payload.uuid or ""

        def started() -> object:
            self._shared.free(name, owner)
            return call()

        return started

    def _tell(self, job: RunningJob, error: Exception | None, *told: events.Event) -> None:
        """This attempt has ended, and another follows."""
        for event in (*told, events.JobAttempted(job, error)):
            self._shared.services.listeners.emit(event)

    def _fail(self, declared: Declared, job: RunningJob, error: Exception) -> tuple[object, bool]:
        tell_of_failure(declared, bytes(job.data), error, job, self._shared.services.listeners)
        raise error

    def _job(self, declared: Declared, payload: Payload) -> RunningJob:
        connection, queue = self._place
        known = payload.id or payload.uuid or ""
        return RunningJob(
            known,
            payload.job,
            queue,
            payload.attempts,
            self._saved,
            self._keep,
            connection=connection,
            payload=self._text,
            uuid=payload.uuid or known,
            ties=payload.qd,
            declared=declared,
            data=payload.data,
            backing=self._shared.services,
        )

    def _keep(self, state: bytes) -> None:
        self._saved = state
