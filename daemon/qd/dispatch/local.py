"""Runs jobs in the process that sends them: run(), the `sync` driver and app.inline().

LocalRunner          attempt -> policy -> another attempt, or the end -> the effects of the end

who                  policy             effects
run()                Once               none: a job without a payload is tied to nothing
driver `sync`        SentPolicy         done here (at_once.py)
app.inline()         InlinePolicy       written to the Fake (testing/inline.py)

LocalConnection      what a job of run() has in place of a connection; MemoryBatches counts its batch
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import msgspec

from qd import events
from qd.dispatch.results import value_of_error, value_of_result
from qd.drivers.types import BatchState, Effect, End, Entry, Free, NewBatch, ends
from qd.errors import (
    AttemptsExceeded,
    BatchFinished,
    JobFailure,
    ModelGone,
    Settled,
    UnknownBatch,
    UnknownParameters,
    WrongType,
)
from qd.events import Listeners
from qd.jobs.context import Backing, RunningJob, in_hand
from qd.jobs.pipeline import Pipeline, through
from qd.jobs.policy import Fail, Release, after_error, before, limits_of
from qd.jobs.registry import Declared
from qd.payload.format import Payload

if TYPE_CHECKING:
    from qd.options.tables import WorkOptions


MOST_RUNS = 1000  # attempts of one job that releases itself without end
RAISED = "the job raised"  # the error itself is not turned into text: its __str__ is user code


# -- what follows an attempt


class Policy(Protocol):
    """Decides whether the next attempt begins, and what follows one that did not succeed."""

    @property
    def attempts(self) -> int:
        """The number of the attempt that begins next."""

    def before(self) -> str | None:
        """Why the next attempt must not begin; None: it may."""

    def after_error(self, error: Exception) -> Release | Fail | None:
        """What follows an attempt that raised. None: the job is dropped, and counts as done."""

    def after_release(self, job: RunningJob, release: Release) -> None:
        """The job has released itself. Raises if it does not run again."""


class Once:
    """run(): one attempt, whatever comes of it."""

    attempts = 1

    def before(self) -> None:
        return None

    def after_error(self, error: Exception) -> Fail:
        return Fail(RAISED, error)

    def after_release(self, job: RunningJob, release: Release) -> NoReturn:
        why = f" ({release.reason})" if release.reason else ""
        raise JobFailure(f"{job.name} released itself for {release.delay:g} s{why}, and run() runs it only once")


class SentPolicy:
    """The driver `sync`: the rules of a worker (limits.py), without a pause between two attempts."""

    def __init__(self, payload: Payload, declared: Declared, work: WorkOptions) -> None:
        self._limits = limits_of(payload, declared.options, work)
        self._payload = msgspec.structs.replace(payload, attempts=1, exceptions=0)
        self._declared = declared
        self._runs = 0

    @property
    def attempts(self) -> int:
        return self._payload.attempts

    def before(self) -> str | None:
        self._runs += 1
        if self._runs > MOST_RUNS:
            return f"{self._declared.name} was released {MOST_RUNS} times, and never ran"
        return before(self._limits, self._payload, time.time())

    def after_error(self, error: Exception) -> Release | Fail | None:
        if isinstance(error, UnknownParameters | WrongType):
            return Fail(RAISED, error)
        if isinstance(error, ModelGone) and self._drops_when_missing():
            return None
        exceptions = self._payload.exceptions + 1
        verdict = after_error(self._limits, self._payload, time.time(), exceptions=exceptions)
        if isinstance(verdict, Release):
            self._spend(verdict, exceptions)
        return verdict

    def after_release(self, job: RunningJob, release: Release) -> None:
        self._spend(release, self._payload.exceptions)

    def _spend(self, release: Release, exceptions: int) -> None:
        attempts = self._payload.attempts + release.counts
        self._payload = msgspec.structs.replace(self._payload, attempts=attempts, exceptions=exceptions)

    def _drops_when_missing(self) -> bool:
        said = self._payload.deleteWhenMissingModels
        return bool(self._declared.options.delete_when_missing if said is None else said)


# -- the engine


class LocalRunner:
    """Runs a job in this process and thread, attempt after attempt, with the events that a worker emits.

    on_effect: called with each effect of the end, in order, and with the lock that is freed when the job's code starts.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        listeners: Listeners,
        policy: Policy,
        on_effect: Callable[[Effect], object] = lambda effect: None,
    ) -> None:
        self._pipeline, self._listeners, self._policy, self._on_effect = pipeline, listeners, policy, on_effect

    def run(self, declared: Declared, attempt: Callable[[int], RunningJob], payload: Payload | None = None) -> object:
        """attempt: makes the RunningJob of the attempt with this number. payload: says what the job is tied to; None: to
        nothing.

        Returns what the job returned. If it failed, raises its error: after failed(), the listeners and the effects.
        """
        try:
            result, skipped = self._until_ended(declared, attempt, payload)
        except Exception as error:
            self._end(payload, "failed", partial(kept_error, error))
            raise
        self._end(payload, "skipped" if skipped else "done", partial(value_of_result, result, 0))
        return result

    def _until_ended(
        self, declared: Declared, attempt: Callable[[int], RunningJob], payload: Payload | None
    ) -> tuple[object, bool]:
        """What the job returned, and whether it was skipped. Raises its last error."""
        while True:
            job = attempt(self._policy.attempts)
            with in_hand(job):
                if (reason := self._policy.before()) is not None:
                    self._fail(declared, job, AttemptsExceeded(reason))
                try:
                    result = self._attempt(declared, job, payload)
                except (Exception, Settled) as error:
                    verdict = self._verdict(job, error)
                    if isinstance(verdict, Fail):
                        self._fail(declared, job, error)
                    if verdict is None:
                        return None, False
                    self._emit(
                        events.JobExceptionOccurred(job, error),
                        events.JobReleasedAfterException(job, verdict.delay),
                        events.JobAttempted(job, error),
                    )
                    continue
                if isinstance(job.outcome, Release):
                    self._emit(
                        events.JobReleased(job, job.outcome.delay, job.outcome.reason), events.JobAttempted(job, None)
                    )
                    self._policy.after_release(job, job.outcome)
                    continue
                self._emit(events.JobProcessed(job), events.JobAttempted(job, None))
                return result, job.skipped

    def _attempt(self, declared: Declared, job: RunningJob, payload: Payload | None) -> object:
        """What the job returned; if it released itself, `job.outcome` says so. Raises what the job raised, and JobFailure if
        it called fail()."""
        call, result = self._freeing(job.prepared(declared), payload), None
        try:
            self._emit(events.JobProcessing(job))
            result = through(self._pipeline.around(declared), declared, job, call, finished)
        except (Exception, Settled):
            if job.outcome is None:
                raise
        if isinstance(job.outcome, Fail):
            raise job.outcome.error or JobFailure(job.outcome.reason)
        return result

    def _verdict(self, job: RunningJob, error: Exception | Settled) -> Release | Fail | None:
        if isinstance(job.outcome, Fail):
            return job.outcome
        if isinstance(error, Settled):  # raised by a job around this one
            return Fail(RAISED)
        return self._policy.after_error(error)

    def _freeing(self, call: Callable[[], object], payload: Payload | None) -> Callable[[], object]:
        """Frees the lock of a job with unique_until="start" when its code starts, inside all middleware."""
        ties = None if payload is None else payload.qd
        if payload is None or ties is None or ties.unique is None or ties.until != "start":
            return call
        lock = Free(ties.unique, payload.uuid or "")

        def started() -> object:
            self._on_effect(lock)
            return call()

        return started

    def _fail(self, declared: Declared, job: RunningJob, error: Exception | Settled) -> NoReturn:
        """The job has failed: failed(), then the listeners, then its error."""
        try:
            declared.on_failed(bytes(job.data), error)
        finally:
            self._emit(
                events.JobFailed(job, error), events.JobExceptionOccurred(job, error), events.JobAttempted(job, error)
            )
        raise error

    def _end(self, payload: Payload | None, how: End, value: Callable[[], bytes]) -> None:
        if payload is not None:
            for effect in effects_of(payload, how, value):
                self._on_effect(effect)

    def _emit(self, *told: events.Event) -> None:
        for event in told:
            self._listeners.emit(event)


def effects_of(payload: Payload, how: End, value: Callable[[], bytes]) -> list[Effect]:
    """value: makes the JSON of the result or error; called only if the job keeps one."""
    if payload.qd is None:
        return []
    return ends(payload, how, value=value() if payload.qd.result else b"null")


def kept_error(error: Exception) -> bytes:
    return value_of_error(error, str(error))


class SentJob:
    """A job that runs where it was sent: makes the RunningJob of each attempt, which finds the checkpoint of the one before.

    text: the payload as it was sent. tell: takes the job's progress; None: nothing records it.
    """

    def __init__(
        self,
        payload: Payload,
        text: bytes,
        declared: Declared,
        connection: str,
        queue: str,
        backing: Backing,
        tell: Callable[[float], None] | None = None,
    ) -> None:
        self._payload, self._text, self._declared = payload, text, declared
        self._connection, self._queue, self._backing, self._tell = connection, queue, backing, tell
        self._saved: bytes | None = None

    def attempt(self, number: int) -> RunningJob:
        payload = self._payload
        known = payload.id or payload.uuid or ""
        return RunningJob(
            known,
            payload.job,
            self._queue,
            number,
            self._saved,
            self._keep,
            connection=self._connection,
            payload=self._text,
            uuid=payload.uuid or known,
            ties=payload.qd,
            declared=self._declared,
            data=payload.data,
            backing=self._backing,
            tell=self._tell,
        )

    def _keep(self, state: bytes) -> None:
        self._saved = state


# -- event loops


def finished(result: object) -> object:
    """The result, of a coroutine once it has run."""
    return run_to_end(result) if inspect.iscoroutine(result) else result


def refuse_in_a_loop() -> None:
    """Raises RuntimeError before anything is opened for a coroutine that could not run."""
    import asyncio  # loaded only by apps with async jobs

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("run() of an async job was called in a running event loop: await the plain call instead")


def beside_a_loop(act: Callable[[], None]) -> None:
    """Call act(): in a thread of its own if this thread runs an event loop, since an async job needs a loop of its own."""
    import asyncio  # loaded where jobs run where they are sent

    if asyncio._get_running_loop() is None:
        return act()
    raised: list[BaseException] = []

    def body() -> None:
        try:
            act()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=copy_context().run, args=(body,))
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def run_to_end(coroutine: Coroutine[Any, Any, Any]) -> object:
    import asyncio  # loaded only by apps with async jobs

    try:
        refuse_in_a_loop()
    except RuntimeError:
        coroutine.close()
        raise
    return asyncio.run(coroutine)


# -- in place of a connection


class Lenient:
    """The store of middleware without a server: there is always a free place, a free turn, and nothing rests."""

    def left(self, name: str) -> float:
        return 0.0

    def step(self, script: str, names: Sequence[str], *words: str | int) -> object:
        return (0, 0, 1) if script == "admit" else 0


class LocalConnection:
    """What a job of run() has in place of a connection (running.LocalRun): limits and locks let every job through, and
    batches are kept in memory. batch: the one that is run, if any."""

    def __init__(self, batches: MemoryBatches, batch: object | None = None) -> None:
        self.batches, self.batch, self.store = batches, batch, Lenient()

    def within(self, seconds: float) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass(slots=True)
class Kept:
    """new: what it was made of. pending, failed: uuids of its jobs. told: callbacks that were sent."""

    new: NewBatch
    created_at: float
    total: int = 0
    pending: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    told: set[str] = field(default_factory=set)
    skipped: bool = False
    cancelled_at: float | None = None
    finished_at: float | None = None


class MemoryBatches:
    """Batches of jobs that no server counts: kept in memory, counted as batch.lua counts."""

    def __init__(self) -> None:
        self.kept: dict[str, Kept] = {}

    def send(self, batch: NewBatch, jobs: Sequence[Entry]) -> None:
        self.kept[batch.id] = Kept(batch, time.time())
        self._more(self.kept[batch.id], jobs)

    def add(self, id: str, jobs: Sequence[Entry]) -> None:
        kept = self._of(id)
        if kept.finished_at is not None:
            raise BatchFinished(f"batch {id} has finished: nothing can be added to it")
        self._more(kept, jobs)

    def cancel(self, id: str) -> bool:
        kept = self.kept.get(id)
        if kept is None or kept.cancelled_at is not None or kept.finished_at is not None:
            return False
        kept.cancelled_at = time.time()
        return True

    def cancelled(self, id: str) -> bool:
        return id in self.kept and self.kept[id].cancelled_at is not None

    def state(self, id: str) -> BatchState | None:
        kept = self.kept.get(id)
        if kept is None:
            return None
        return BatchState(
            id=id,
            name=kept.new.name,
            total=kept.total,
            pending=len(kept.pending),
            failed=len(kept.failed),
            created_at=kept.created_at,
            cancelled_at=kept.cancelled_at,
            finished_at=kept.finished_at,
        )

    def failures(self, id: str) -> Mapping[str, tuple[str, str]]:
        return {}  # nothing is kept that could be retried

    def ended(self, id: str, uuid: str, how: str) -> Iterator[str]:
        """Count the end of a job, "done", "skipped" or "failed"; the callbacks that are due by it, one after the other."""
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
        """The callbacks that are due when nothing is left."""
        kept = self._of(id)
        if kept.pending:
            return
        if not kept.failed and not kept.skipped:
            yield from self._due(kept, "then")
        kept.finished_at = kept.finished_at or time.time()
        yield from self._due(kept, "finally")

    def _due(self, kept: Kept, what: str) -> Iterator[str]:
        if what not in kept.told:
            kept.told.add(what)
            yield what

    def _more(self, kept: Kept, jobs: Sequence[Entry]) -> None:
        kept.total += len(jobs)
        kept.pending.update(job.uuid for job in jobs)

    def _of(self, id: str) -> Kept:
        if id not in self.kept:
            raise UnknownBatch(f"no batch '{id}' is there")
        return self.kept[id]
