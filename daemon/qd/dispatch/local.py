"""Runs jobs in the process that sends them: run(), the `sync` driver and app.inline().

LocalRunner          attempt -> policy -> another attempt, or the end -> the effects of the end

caller               policy             effects
run()                Policy             none: a job without a payload has no relations
driver `sync`        SentPolicy         applied in memory (dispatch/sync.py)
app.inline()         InlinePolicy       recorded by the Fake (testing.py)

LocalConnection      takes the place of a connection in run(); MemoryBatches counts its batch
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import msgspec

from qd import errors, events
from qd.dispatch.results import check_passed_on, value_of_error, value_of_result
from qd.drivers.types import BatchState, Effect, End, Entry, Free, NewBatch, ends
from qd.events import Listeners
from qd.jobs.context import Backing, RunningJob, running
from qd.jobs.pipeline import Pipeline, through
from qd.jobs.policy import GiveUp, Release, after_error, before, limits_of
from qd.jobs.registry import Declared
from qd.jobs.steps import in_memory
from qd.payload.format import Payload

if TYPE_CHECKING:
    from qd.options.tables import WorkOptions


MOST_RUNS = 1000  # attempts of a job that releases itself again and again
RAISED = "the job raised"  # without the text of the error, whose __str__ is user code


# -- what follows an attempt


class Policy:
    """Decides whether the next attempt begins, and what follows one that did not succeed. This one is of run(), which makes
    a single attempt. attempts: the number of the next one."""

    attempts = 1

    def before(self) -> str | None:
        """Why the next attempt must not start; None: it may."""
        return None

    def after_error(self, error: Exception) -> Release | GiveUp | None:
        """What follows an attempt that raised. None: the job is dropped and counts as done."""
        return GiveUp(RAISED, error)

    def after_release(self, job: RunningJob, release: Release) -> None:
        """Called when the job has released itself. Raises if it must not run again."""
        why = f" ({release.reason})" if release.reason else ""
        raise errors.JobFailure(f"{job.name} released itself for {release.delay:g} s{why}, and run() runs it only once")


class SentPolicy(Policy):
    """The driver `sync`: the rules of a worker (jobs/policy.py), without a delay between two attempts."""

    def __init__(self, payload: Payload, declared: Declared, work: WorkOptions) -> None:
        self._limits = limits_of(payload, declared.options, work)
        self._payload = msgspec.structs.replace(payload, attempts=1, exceptions=0)
        self._declared, self._runs = declared, 0

    def before(self) -> str | None:
        self._runs += 1
        if self._runs > MOST_RUNS:
            return f"{self._declared.name} was released {MOST_RUNS} times and never completed"
        return before(self._limits, self._payload, time.time())

    def after_error(self, error: Exception) -> Release | GiveUp | None:
        if isinstance(error, errors.UnknownParameters | errors.WrongType):
            return GiveUp(RAISED, error)
        if isinstance(error, errors.ModelGone):
            delete = self._payload.deleteWhenMissingModels
            if self._declared.options.delete_when_missing if delete is None else delete:
                return None
        exceptions = self._payload.exceptions + 1
        verdict = after_error(self._limits, self._payload, time.time(), exceptions=exceptions, error=error, luck=0.0)
        if isinstance(verdict, Release):
            self._spend(verdict, exceptions)
        return verdict

    def after_release(self, job: RunningJob, release: Release) -> None:
        self._spend(release, self._payload.exceptions)

    def _spend(self, release: Release, exceptions: int) -> None:
        self.attempts += release.counts
        self._payload = msgspec.structs.replace(self._payload, attempts=self.attempts, exceptions=exceptions)


# -- the engine


@dataclass(frozen=True, slots=True)
class LocalRunner:
    """Runs a job in this thread until it has ended, with the events that a worker emits.

    on_effect: called with each effect of the end, in order; and with the lock to free when the job's code starts.
    """

    pipeline: Pipeline
    listeners: Listeners
    policy: Policy
    on_effect: Callable[[Effect], object] = lambda effect: None

    def run(self, declared: Declared, attempt: Callable[[int], RunningJob], payload: Payload | None = None) -> object:
        """attempt: makes the RunningJob of the attempt with this number. payload: has its relations; None: none.

        Returns what the job returned. If the job failed, raises its error after failed(), the listeners and the effects.
        """
        try:
            result, skipped = self._until_ended(declared, attempt, payload)
        except Exception as raised:
            error = raised
            self._end(payload, "failed", lambda: value_of_error(error, str(error)))
            raise
        self._end(payload, "skipped" if skipped else "done", partial(value_of_result, result, 0))
        return result

    def _until_ended(
        self, declared: Declared, attempt: Callable[[int], RunningJob], payload: Payload | None
    ) -> tuple[object, bool]:
        """Returns what the job returned, and whether it was skipped. Raises its last error."""
        while True:
            job = attempt(self.policy.attempts)
            with running(job):
                if (reason := self.policy.before()) is not None:
                    self._fail(declared, job, errors.AttemptsExceeded(reason))
                try:
                    result = self._attempt(declared, job, payload)
                except (Exception, errors.Settled) as error:
                    verdict = self._verdict(job, error)
                    if isinstance(verdict, GiveUp):
                        self._fail(declared, job, error)
                    if verdict is None:
                        return None, False
                    released = events.JobReleasedAfterException(job, verdict.delay)
                    self._emit(events.JobExceptionOccurred(job, error), released, events.JobAttempted(job, error))
                    continue
                if isinstance(release := job.outcome, Release):
                    self._emit(events.JobReleased(job, release.delay, release.reason), events.JobAttempted(job, None))
                    self.policy.after_release(job, release)
                    continue
                if payload is not None:
                    try:
                        check_passed_on(payload, result, 0, 0)
                    except errors.NoResult as error:
                        self._fail(declared, job, error)
                self._emit(events.JobProcessed(job), events.JobAttempted(job, None))
                return result, job.skipped

    def _attempt(self, declared: Declared, job: RunningJob, payload: Payload | None) -> object:
        """Returns what the job returned; `job.outcome` is a Release if it released itself. Raises what the job raised, and
        JobFailure if it called fail() or raised Fail."""
        call, result = self._freeing(job.prepared(declared), payload), None
        try:
            self._emit(events.JobProcessing(job))
            result = through(self.pipeline.around(declared), declared, job, call, finished)
        except (Exception, errors.Settled, BaseExceptionGroup) as error:
            if not job.take_decision(error):
                raise
        if isinstance(job.outcome, GiveUp):
            raise job.outcome.error or errors.JobFailure(job.outcome.reason)
        return result

    def _verdict(self, job: RunningJob, error: Exception | errors.Settled) -> Release | GiveUp | None:
        if isinstance(job.outcome, GiveUp):
            return job.outcome
        if isinstance(error, errors.Settled):  # raised by a job around this one
            return GiveUp(RAISED)
        return self.policy.after_error(error)

    def _freeing(self, call: Callable[[], object], payload: Payload | None) -> Callable[[], object]:
        """Let `call` free the lock of a job with unique_until="start" first, inside all middleware."""
        if payload is None or payload.qd is None or payload.qd.unique is None or payload.qd.until != "start":
            return call
        lock = Free(payload.qd.unique, payload.uuid or "")

        def started() -> object:
            self.on_effect(lock)
            return call()

        return started

    def _fail(self, declared: Declared, job: RunningJob, error: Exception | errors.Settled) -> NoReturn:
        """Call failed(), then the listeners, then raise the error."""
        try:
            declared.on_failed(job.current_data, error)
        finally:
            for kind in (events.JobFailed, events.JobExceptionOccurred, events.JobAttempted):
                self._emit(kind(job, error))
        raise error

    def _end(self, payload: Payload | None, how: End, value: Callable[[], bytes]) -> None:
        for effect in effects_of(payload, how, value):
            self.on_effect(effect)

    def _emit(self, *emitted: events.Event) -> None:
        for event in emitted:
            self.listeners.emit(event)


def effects_of(payload: Payload | None, how: End, value: Callable[[], bytes]) -> list[Effect]:
    """value: encodes the result or error; called only if the job keeps one, or passes it on."""
    if payload is None or payload.qd is None:
        return []
    return ends(payload, how, value=value() if payload.qd.result or payload.qd.passes else b"null")


@dataclass(slots=True)
class SentJob:
    """A job that runs where it was sent: makes the RunningJob of each attempt, with the checkpoint of the one before.

    text: the payload as it was sent. report_progress: records the job's progress; None: nothing does.
    """

    payload: Payload
    text: bytes
    declared: Declared
    connection: str
    queue: str
    backing: Backing
    report_progress: Callable[[float, bytes], None] | None = None
    saved: bytes | None = None
    steps: dict[str, bytes] = field(default_factory=dict)

    def attempt(self, number: int) -> RunningJob:
        payload = self.payload
        known = payload.id or payload.uuid or ""
        return RunningJob(
            known,
            payload.job,
            self.queue,
            number,
            self.saved,
            partial(setattr, self, "saved"),
            connection=self.connection,
            payload=self.text,
            uuid=payload.uuid or known,
            relations=payload.qd,
            declared=self.declared,
            data=payload.data,
            version=payload.job_version,
            backing=self.backing,
            _report_progress=self.report_progress,
            _step_store=partial(in_memory, self.steps),
        )


# -- event loops


def finished(result: object) -> object:
    """The result; for a coroutine, after running it."""
    if not inspect.iscoroutine(result):
        return result
    import asyncio  # loaded only by apps with async jobs

    try:
        refuse_in_a_loop()
    except RuntimeError:
        result.close()
        raise
    return asyncio.run(result)


def refuse_in_a_loop() -> None:
    """Raises RuntimeError if this thread runs an event loop, where an async job cannot be run to its end."""
    import asyncio  # loaded only by apps with async jobs

    if asyncio._get_running_loop() is not None:
        raise RuntimeError("run() of an async job was called in a running event loop: await the plain call instead")


def outside_loop(act: Callable[[], None]) -> None:
    """Call act(), in a new thread if this thread runs an event loop, since an async job needs its own loop."""
    import asyncio  # loaded only where jobs run where they are sent

    if asyncio._get_running_loop() is None:
        return act()
    from concurrent.futures import ThreadPoolExecutor

    thread = ThreadPoolExecutor(1)
    try:
        thread.submit(copy_context().run, act).result()
    finally:
        thread.shutdown(wait=False)


# -- in place of a connection


class Lenient:
    """A store for middleware without a server: every limit lets the job through."""

    def left(self, name: str) -> float:
        return 0.0

    def step(self, script: str, names: Sequence[str], *words: str | int) -> object:
        return (0, 0, 1) if script == "admit" else 0


class LocalConnection:
    """Takes the place of a connection in run() (context.LocalRun): limits and locks let every job through, and batches are
    in memory. batch: the one that is being run, if any."""

    def __init__(self, batches: MemoryBatches, batch: object | None = None) -> None:
        self.batches, self.batch, self.store = batches, batch, Lenient()

    def within(self, seconds: float) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass(slots=True)
class Kept:
    """new: as it was sent. pending, failed: uuids of its jobs. called: callbacks that were sent."""

    new: NewBatch
    created_at: float
    total: int = 0
    pending: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)
    skipped: bool = False
    cancelled_at: float | None = None
    finished_at: float | None = None


class MemoryBatches:
    """Batches in memory, counted as batch.lua counts."""

    def __init__(self) -> None:
        self.kept: dict[str, Kept] = {}

    def send(self, batch: NewBatch, jobs: Sequence[Entry]) -> None:
        self.kept[batch.id] = Kept(batch, time.time())
        self._more(self.kept[batch.id], jobs)

    def add(self, id: str, jobs: Sequence[Entry]) -> None:
        kept = self._of(id)
        if kept.finished_at is not None:
            raise errors.BatchFinished(f"batch {id} has finished: no job can be added to it")
        self._more(kept, jobs)

    def cancel(self, id: str) -> bool:
        kept = self.kept.get(id)
        if kept is None or kept.cancelled_at is not None or kept.finished_at is not None:
            return False
        kept.cancelled_at = time.time()
        return True

    def state(self, id: str) -> BatchState | None:
        kept = self.kept.get(id)
        if kept is None:
            return None
        pending, failed = len(kept.pending), len(kept.failed)
        ends = kept.cancelled_at, kept.finished_at
        return BatchState(id, kept.new.name, kept.total, pending, failed, kept.created_at, *ends, kept.new.jobs)

    def failures(self, id: str) -> Mapping[str, tuple[str, str]]:
        return {}  # there is no failed store to retry from

    def ended(self, id: str, uuid: str, how: str) -> Iterator[str]:
        """Count the end of a job, "done", "skipped" or "failed". Yields the callbacks that become due."""
        kept = self._of(id)
        kept.pending.discard(uuid)
        if how == "failed":
            kept.failed.add(uuid)
            if not kept.new.allow_failures and kept.cancelled_at is None:
                kept.cancelled_at = time.time()
            yield from self._due(kept, "catch")
        elif how == "skipped" and kept.cancelled_at is not None:
            kept.skipped = True
        yield from self.settled(id)

    def settled(self, id: str) -> Iterator[str]:
        """Yields the callbacks that are due once no job is pending."""
        kept = self._of(id)
        if kept.pending:
            return
        if not kept.failed and not kept.skipped:
            yield from self._due(kept, "then")
        kept.finished_at = kept.finished_at or time.time()
        yield from self._due(kept, "finally")

    def _due(self, kept: Kept, what: str) -> Iterator[str]:
        if what not in kept.called:
            kept.called.add(what)
            yield what

    def _more(self, kept: Kept, jobs: Sequence[Entry]) -> None:
        kept.total += len(jobs)
        kept.pending.update(job.uuid for job in jobs)

    def _of(self, id: str) -> Kept:
        if id not in self.kept:
            raise errors.unknown_batch(id)
        return self.kept[id]
