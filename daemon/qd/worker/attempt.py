"""One attempt of one job: limits, alarm, middleware, the user's function, and the outcome.

    Reserved -> read -> known here? -> limits -> arguments -> listeners, middleware, function -> Outcome (outcome.py)

Nothing here answers the job: settle.py does. User code runs only inside `alarm.guard`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from qd import errors, events
from qd.app import Qd
from qd.dispatch.results import check_passed_on
from qd.dispatch.route import opened, signing_of
from qd.drivers.types import Reserved
from qd.jobs import context
from qd.jobs.context import RunningJob
from qd.jobs.pipeline import is_async, through
from qd.jobs.policy import JobLimits, before, hold_delay, limits_of
from qd.jobs.registry import Declared
from qd.jobs.versions import NEWER
from qd.middleware import query_queue
from qd.payload.format import Payload, Relations, read, readable, too_deep
from qd.payload.reservation import Ending, ending_of, replaced_mark
from qd.process.counters import Row
from qd.process.scoreboard import Scoreboard, is_paused_job
from qd.worker.connection import Checkpoints
from qd.worker.outcome import DONE, Attempt, Back, Cancelled, Death, Done, Failed, Outcome, Outcomes, unknown_job
from qd.worker.timeout import Alarm

if TYPE_CHECKING:
    import asyncio


AROUND = (events.JobPopped, events.JobProcessing, events.JobProcessed, events.JobAttempted)  # a job that succeeds
Begin = Callable[[Payload, JobLimits], None]


class Coroutines:
    """Runs async jobs: one event loop per worker, created for the first of them. An alarm cancels the task."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Any, alarm: Alarm) -> object:
        import asyncio  # only a worker with async jobs loads it

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        loop = self._loop
        task = loop.create_task(coroutine)
        alarm.cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            return loop.run_until_complete(task)
        except asyncio.CancelledError as cancelled:
            if alarm.ended_by is not None:
                raise alarm.ended_by.with_traceback(cancelled.__traceback__) from None  # where it was cancelled
            raise RuntimeError("its task was cancelled by code of the app") from None
        finally:
            alarm.cancel = None
            left = asyncio.all_tasks(loop)
            for other in left:
                other.cancel()
            if left:
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()
            self._loop = None


class Attempts:
    """Runs attempts; holds what all jobs of this worker share. run_coroutine: runs it until it ends or the alarm cancels it;
    also cancels tasks that the job left running."""

    def __init__(
        self,
        app: Qd,
        alarm: Alarm,
        run_coroutine: Callable[[Any, Alarm], object],
        checkpoints: Checkpoints,
        board: Scoreboard,
    ) -> None:
        self._board = board
        self._keep, self._progress, self._emit = checkpoints.keep, checkpoints.progress, checkpoints.emit
        self._step, self.emitter = checkpoints.step, checkpoints.emitter
        self.app, self.work, self.alarm, self._run_coroutine = app, app.settings.work, alarm, run_coroutine
        self.signing, self._max_depth = signing_of(app.settings), app.settings.max_depth
        self.outcomes = Outcomes(app._listeners, alarm, app.settings.encryption.keep_messages)
        self._pipeline = app.middleware
        self._result: object = None
        self._returned = False  # the job's function has returned; its listeners may still run
        self.recycle: BaseException | None = None  # an error of a job after which this worker leaves
        self._declared_limits: dict[str, JobLimits] = {}
        self.payload: Payload | None = None  # of the last attempt; None: it was not readable, or not trusted
        self.unfreed = False  # the last attempt may still have a place
        self.row: Row | None = None  # where it was counted as started; None: it was not

    def run(self, reserved: Reserved, begin: Begin, death: Callable[[], Death]) -> Outcome:
        """begin: called before any user code. death: returns how the worker of the last attempt died; called only if the
        attempt does not begin."""
        prepared = self.prepare(reserved, begin)
        if not isinstance(prepared, Attempt):
            return prepared
        context.enter(prepared.job)
        try:
            return self.perform(prepared, death)
        finally:
            context.leave(prepared.job)

    def prepare(self, reserved: Reserved, begin: Begin) -> Attempt | Outcome:
        """The attempt, or the outcome if no code of the job can run here. Runs no user code."""
        self.payload, self.unfreed, self.row = None, False, None
        try:
            if too_deep(reserved.member, self._max_depth):
                raise errors.Malformed(f"nested deeper than max_depth = {self._max_depth}")
            payload = read(reserved.member)
        except errors.Malformed as error:
            return Failed(error)
        now = time.time()
        if payload.is_laravel_object:
            return self._hold(payload, now, "a Laravel object job: PHP runs it")
        if self.signing is not None:
            try:
                self.signing.check(payload)
                self.signing.opened(payload)
            except errors.SignatureRefused as error:
                return Failed(error, payload.attempts - 1)
        self.payload = payload
        if payload.qd is not None and payload.qd.takes is not None:
            what = f"its argument '{payload.qd.takes.partition(' ')[2]}', the result of the job before it, was not passed on"
            why = "the worker of that job had an older qd or no valid key, or the payload was changed"
            return Failed(errors.NoResult(f"{what}: {why}"), payload.attempts - 1)
        if is_paused_job(self._board, payload.job) and ending_of(reserved.before) in (None, Ending.ANSWERED):
            return self._hold(payload, now, f"job {payload.job} is paused")
        declared = self.app._registry.get(payload.job)
        unfit: Exception | None = None
        if declared is None or payload.job_version > declared.version:
            unfit = unknown_job(self.app._registry, payload)
        elif declared.options.encrypted:
            try:
                payload = self.payload = opened(payload, declared, self.app.settings)
            except errors.DecryptionRefused as error:
                return Failed(error, payload.attempts - 1)
            except errors.ConfigError as error:
                unfit = error
        if declared is None or unfit is not None:
            if ending_of(reserved.before) is Ending.CANCELLED:
                return Cancelled(errors.JobCancelled("the job was cancelled"))
            return self._unroutable(payload, now, unfit or unknown_job(self.app._registry, payload))
        if declared.options.result_ttl and payload.qd is None and payload.due_ms is None:  # sent by another program
            payload = self.payload = replace(payload, qd=Relations(result=declared.options.result_ttl))
        limits = self._limits_of(payload, declared)
        begin(payload, limits)
        job = self._running(payload, reserved, declared, limits.timeout)
        return Attempt(reserved, payload, declared, limits, job)

    def perform(self, attempt: Attempt, death: Callable[[], Death]) -> Outcome:
        """Check the limits and run it."""
        try:
            return self._begun(attempt, time.time(), death)
        finally:
            self.unfreed = attempt.job.unfreed > 0

    def coroutine(self, attempt: Attempt) -> Callable[[], object] | None:
        """The call of an async job, which returns its coroutine, if nothing sync is around it: no listener, sync middleware
        or provider, nothing to settle of an earlier attempt. None: `perform` it."""
        reserved, payload, declared, limits, job = attempt
        if not declared.is_async or declared.signature.extras is not None:
            return None
        stages, qd, listeners = self._pipeline.around(declared), payload.qd, self.app._listeners
        if not all(map(is_async, stages)) or any(listeners.has(event) for event in AROUND):
            return None
        if qd is not None and qd.unique and qd.until == "start":
            return None
        if ending_of(reserved.before) not in (None, Ending.ANSWERED) or before(limits, payload, time.time()):
            return None
        try:
            call = job.prepared(declared)
        except (errors.UnknownParameters, errors.WrongType):
            return None
        return partial(through, stages, declared, job, call, lambda result: result)

    def _begun(self, attempt: Attempt, now: float, death: Callable[[], Death]) -> Outcome:
        reserved, payload, declared, limits, _ = attempt
        last = ending_of(reserved.before)
        if last is Ending.CANCELLED:
            return self.outcomes.cancelled(attempt, errors.JobCancelled("the job was cancelled"))
        if last is Ending.FAILS or last is Ending.DIED_IN_HOOKS:
            return self.outcomes.killed(attempt, death())
        if last is Ending.TIMED_OUT:
            before_it = self._running(payload, reserved, declared, limits.timeout, payload.attempts - 1)
            self.outcomes.notify(limits.timeout, events.JobTimedOut(before_it))
            if self.alarm.raised:
                return Back(0.0, "the worker leaves", spends=False, head=True)
        reason = before(limits, payload, now)
        if reason is not None:
            return self.outcomes.exceeded(attempt, reason, death())
        try:
            call = attempt.job.prepared(declared)
        except errors.UnknownParameters as error:
            if self.outcomes.for_record(attempt.job, error) is not error:  # names in encrypted data are not shown
                error = errors.UnknownParameters("its encrypted arguments do not fit its parameters")
            return self._unroutable(payload, now, error)
        except errors.WrongType as error:
            return self.outcomes.fail(attempt, error, begins=True)
        if payload.qd is not None and payload.qd.unique is not None and payload.qd.until == "start":
            call = partial(self._started, attempt.job, payload.qd.unique, call)
        return self._fire(attempt, call)

    def _started(self, job: RunningJob, lock: str, call: Callable[[], object]) -> object:
        """Free the `unique` lock inside all middleware, when the job really starts."""
        query_queue(job, lambda queue: queue.free(lock, job.uuid))
        return call()

    def _running(
        self, payload: Payload, reserved: Reserved, declared: Declared | None, timeout: float = 0.0, attempt: int = 0
    ) -> RunningJob:
        known = payload.id or payload.uuid or reserved.mark
        saved = payload.checkpoint
        keep: Callable[[bytes], None] = partial(self._keep, reserved.mark)
        if (signing := self.signing) is not None:
            saved = signing.opened(payload)
            keep = lambda state: self._keep(reserved.mark, signing.sealed(payload, state))  # noqa: E731
        ttl = payload.qd.result if payload.qd is not None else None
        # The bytes that the reserve replaced have the unanswered mark of an earlier one.
        interrupted = b'"rsv":' in reserved.before and replaced_mark(reserved.before).rpartition(".")[2].isdecimal()
        return RunningJob(
            known,
            payload.job,
            reserved.queue,
            attempt or payload.attempts,
            saved,
            keep,
            connection=self.work.connection,
            payload=reserved.member,
            uuid=payload.uuid or known,
            mark=reserved.mark,
            timeout=timeout,
            relations=payload.qd,
            declared=declared,
            data=payload.data,
            version=payload.job_version,
            backing=self.app._services,
            _step_store=self._stored,
            _report_progress=partial(self._progress, reserved.mark, known, ttl) if ttl else None,
            _emit=partial(self._emit, reserved.mark, known, ttl),
            interrupted=interrupted,
        )

    def _stored(self, job: RunningJob, name: str = "", text: bytes = b"") -> Mapping[str, bytes] | None:
        """The store of jobs/steps.py, signed as checkpoints are. Raises SignatureRefused; as Checkpoints.step."""
        payload, signing = read(job.payload), self.signing
        if not (payload.id or payload.uuid):
            raise errors.ArgumentError("job.step() needs a job with an id, and this payload has neither id nor uuid")
        sealed = text if signing is None else signing.sealed(payload, text, name.encode())
        flat: Any = -1 if len(text) > 1 << 20 else self._step(job.id, job.mark, *((name, sealed) if name else ()))
        if flat is None:
            return None
        if flat == -1:
            most = "a job can have 1,000 steps and 1 MB of results: store large data elsewhere and return a reference"
            raise errors.ArgumentError(f"job.step({name!r}) cannot record its {len(text)} bytes of JSON: {most}")
        found: dict[bytes, Any] = dict(zip(flat[::2], flat[1::2], strict=True))
        if signing is not None:
            found = {step: signing.opened(payload, result, step) for step, result in found.items() if step}
        return {name: text, **{step.decode(): result for step, result in found.items()}}

    def _limits_of(self, payload: Payload, declared: Declared) -> JobLimits:
        """The limits of the payload, else of the declaration, which are computed once."""
        if payload.has_limits or declared.options.retry_for is not None:
            return limits_of(payload, declared.options, self.work)
        found = self._declared_limits.get(declared.name)
        if found is None:
            found = self._declared_limits[declared.name] = limits_of(payload, declared.options, self.work)
        return found

    # -- jobs that cannot run here and now

    def _hold(self, payload: Payload, now: float, reason: str, *, unroutable: bool = False) -> Back:
        """Release it with a growing delay and no attempt counted; the payload stores since when."""
        since = payload.held or int(now)
        return Back(hold_delay(payload.held, now), reason, spends=False, held=since, unroutable=unroutable)

    def _unroutable(self, payload: Payload, now: float, error: Exception) -> Outcome:
        longest = self.work.unroutable_ttl * (NEWER if isinstance(error, errors.NewerVersion) else 1)
        if payload.held and now - payload.held > longest:
            return Failed(error, payload.attempts - 1)
        return self._hold(payload, now, str(error), unroutable=True)

    # -- user code

    def _fire(self, attempt: Attempt, call: Callable[[], object]) -> Outcome:
        error: BaseException | None = None
        self._returned = False
        try:
            self.alarm.guard(lambda: self._body(attempt, call), attempt.limits.timeout)
        except BaseException as raised:
            error = raised
        return self._outcome(attempt, error)

    def ended(self, attempt: Attempt, error: BaseException | None, result: object) -> Outcome:
        """The outcome of an attempt whose `coroutine` has run elsewhere. After an error, calls failed() and listeners."""
        self._returned, self._result = error is None, result
        return self._outcome(attempt, error)

    def _outcome(self, attempt: Attempt, error: BaseException | None) -> Outcome:
        job = attempt.job
        self.outcomes.exit_if_copy(job, None if isinstance(error, errors.Settled) else error)
        if isinstance(error, SystemExit):
            raise error  # it ends the worker: a job that calls sys.exit counts as a crash
        if isinstance(error, self.app._recycling):
            self.recycle = self.outcomes.for_record(job, error)
        if (error is not None or job.outcome is not None) and job.take_decision(error):
            return self.outcomes.by_job(attempt)
        if error is None or (
            self._returned and isinstance(error, errors.EndJob)
        ):  # the alarm was late: it ended a listener
            if job.relations is None:
                return DONE
            try:
                check_passed_on(attempt.payload, self._result, self.app.settings.max_payload, self._max_depth)
            except errors.NoResult as refused:  # it would be the same in another attempt
                return self.outcomes.fail(attempt, refused)
            return Done(self._result, job.skipped)
        return self.outcomes.after(attempt, self.alarm.ended_by or error)

    def _body(self, attempt: Attempt, call: Callable[[], object]) -> object:
        declared, job, listeners = attempt.declared, attempt.job, self.app._listeners
        has = listeners.has
        if has(events.JobPopped):
            listeners.emit(events.JobPopped(job))
        if has(events.JobProcessing):
            listeners.emit(events.JobProcessing(job))
        stages = self._pipeline.around(declared)
        result = through(stages, declared, job, call, self._finished) if stages else self._finished(call())
        self._returned, self._result = True, result
        self.outcomes.exit_if_copy(job)
        if job.outcome is None and has(events.JobProcessed):
            listeners.emit(events.JobProcessed(job))
        if job.outcome is None and has(events.JobAttempted):
            listeners.emit(events.JobAttempted(job, None))
        return result

    def _finished(self, result: object) -> object:
        """The job's result; for an async job, after running its coroutine."""
        return self._run_coroutine(result, self.alarm) if isinstance(result, CoroutineType) else result

    def notify_lost(self, reserved: Reserved) -> None:
        """Call the listeners of LeaseLost if the answer found out, after the job had ended."""
        if (payload := readable(reserved.member)) is not None:
            declared = self.app._registry.get(payload.job)
            with suppress(errors.QdError):
                payload = opened(payload, declared, self.app.settings)
            job = self._running(payload, reserved, declared)
            self.outcomes.notify(0.0, events.LeaseLost(job))
