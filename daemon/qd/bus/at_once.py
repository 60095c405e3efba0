"""The connection `sync`: each job runs where it is sent, before dispatch() returns.

    payload -> known? -> limits -> arguments -> listeners, middleware, function -> its effects, one after the other
    error -> tried again at once, as often as its tries say -> failed(), listeners -> it comes out of dispatch()

The rules are those of the worker (limits.py), the payloads too. Locks of unique jobs, batches and results are in memory,
by the app, for all of its threads.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

import msgspec

from qd import events
from qd.bus.here import Lenient
from qd.bus.memory import MemoryBatches
from qd.bus.results import value_of_error, value_of_result
from qd.bus.running import RunningJob, beside_a_loop, body_here, in_hand, refuse_in_a_loop, tell_of_failure
from qd.connectors.base import Connector, Kept, Limits, Outgoing
from qd.connectors.batches import Entry, NewBatch
from qd.connectors.effects import Count, Effect, Free, Keep, Push
from qd.connectors.ends import ends
from qd.connectors.sending_only import NoJobs, SendingOnly
from qd.errors import (
    AttemptsExceeded,
    ConfigError,
    JobFailure,
    ModelGone,
    Settled,
    UnknownJob,
    UnknownParameters,
    WrongType,
)
from qd.limits import Fail, Release, after_error, before, limits_of
from qd.payload import Payload, read
from qd.process.shield import shield

if TYPE_CHECKING:
    from qd.bus.common import Common
    from qd.config import ConnectionSettings, Settings
    from qd.jobs import Declared, Registry
    from qd.listeners import Listeners

MOST = 1000  # runs of a job that releases itself without end; batches and results that are kept
LIMITS: Limits = MappingProxyType(
    {
        "delay": "a delay is ignored: each job runs when it is sent",
        "lease": "no timeout ends a job: it runs in the program that sends it",
        "failed": "a job that fails raises where it is sent, and is kept nowhere",
        "find": "no job waits that could be found, moved or cancelled",
        "memory": "locks of unique jobs, batches and results are the sending program's own, and gone with it",
    }
)
Job = tuple[str, bytes]  # queue, payload


class Shared:
    """What the connections of all threads of an app have in common."""

    def __init__(self, registry: Registry, listeners: Listeners, common: Common) -> None:
        self.registry, self.listeners, self.common = registry, listeners, common
        self.batches = MemoryBatches()
        self.results = dict[str, Kept]()
        self._owners = dict[str, str]()
        self._lock = threading.Lock()

    def held(self, name: str, owner: str) -> str | None:
        """Take the lock `name`. Returns who has it already."""
        with self._lock:
            found = self._owners.setdefault(name, owner)
            return None if found == owner else found

    def free(self, name: str, owner: str) -> bool:
        with self._lock:
            found = self._owners.get(name) == owner
            if found:
                del self._owners[name]
            return found

    def keep(self, kept: Keep) -> None:
        self.results[kept.id] = Kept(kept.status, kept.value, None, time.time())
        while len(self.results) > MOST:
            self.results.pop(next(iter(self.results)))

    def forget_batches(self) -> None:
        over = [id for id, kept in self.batches.kept.items() if kept.finished_at is not None][: -MOST or None]
        for id in over:
            self.batches.kept.pop(id, None)


def open_queue(shared: Shared, settings: Settings, at: ConnectionSettings) -> Connector:
    return cast(Connector, AtOnce(shared, settings, at))  # what it lacks, it refuses by name


class Results(NoJobs):
    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def kept(self, id: str) -> Kept | None:
        return self._shared.results.get(id)


class AtOnce(SendingOnly):
    def __init__(self, shared: Shared, whole: Settings, settings: ConnectionSettings) -> None:
        super().__init__(settings, LIMITS, whole)
        self._work, self._shared = whole.work, shared
        self.jobs, self.batches = Results(shared), Batches(self, shared)
        try:
            _ = self.kept
        except ConfigError:  # nobody keeps places and limits: all are free
            self.store = Lenient()

    def take(self, job: Outgoing) -> str | None:
        if job.lock and (holder := self._shared.held(job.lock, job.owner)) is not None:
            return holder
        self.run([(job.queue, job.payload)])
        return None

    def post(self, jobs: Sequence[Outgoing]) -> list[str | None]:
        """All of them run, whatever one of them raises; the first error comes out then."""
        answers, errors = list[str | None](), list[Exception]()
        for job in jobs:
            try:
                answers.append(self.take(job))
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return answers

    def free(self, name: str, owner: str) -> bool:
        return self._shared.free(name, owner)

    def run(self, jobs: Sequence[Job]) -> None:
        """These, and what follows from them. Raises the first error of one that is not to be borne, at the end."""
        with shield.lowered():
            beside_a_loop(partial(self._all, deque(jobs)))

    def _all(self, ahead: deque[Job]) -> None:
        errors = list[Exception]()
        while ahead:
            queue, text = ahead.popleft()
            payload = read(text)
            effects, error = Run(self, self._shared, queue, text, payload).end()
            for effect in effects:
                ahead += self._done(effect)
            if error is not None and not self._allowed(payload):
                errors.append(error)
        if errors:
            raise errors[0]

    def _done(self, effect: Effect) -> list[Job]:
        """The jobs that are sent by it."""
        if isinstance(effect, Push):
            return [(effect.queue, effect.payload)]
        if isinstance(effect, Free):
            self._shared.free(effect.name, effect.owner)
        elif isinstance(effect, Keep):
            self._shared.keep(effect)
        elif isinstance(effect, Count):
            return self.called_back(effect.id, self._shared.batches.ended(effect.id, effect.job, effect.how))
        return []

    def called_back(self, id: str, due: Iterator[str]) -> list[Job]:
        kept = self._shared.batches.kept.get(id)
        if kept is None:  # so long ago that it is forgotten
            return []
        found = [kept.new.callbacks[what] for what in due if what in kept.new.callbacks]
        return [(callback.queue, callback.payload) for callback in found]

    def _allowed(self, payload: Payload) -> bool:
        """Whether its batch allows failures."""
        batch = payload.qd.batch if payload.qd is not None else None
        kept = self._shared.batches.kept.get(batch) if batch else None
        return kept is not None and kept.new.allow_failures


class Batches:
    """connectors.batches.Batches, whose jobs run when they are sent."""

    def __init__(self, queue: AtOnce, shared: Shared) -> None:
        self._queue, self._shared = queue, shared
        kept = shared.batches
        self.cancel, self.cancelled, self.state, self.failures = kept.cancel, kept.cancelled, kept.state, kept.failures

    def send(self, batch: NewBatch, jobs: Sequence[Entry]) -> None:
        self._shared.forget_batches()
        self._shared.batches.send(batch, jobs)
        last = [] if jobs else self._queue.called_back(batch.id, self._shared.batches.settled(batch.id))
        self._queue.run([*((job.queue, job.payload) for job in jobs), *last])

    def add(self, id: str, jobs: Sequence[Entry]) -> None:
        self._shared.batches.add(id, jobs)
        self._queue.run([(job.queue, job.payload) for job in jobs])


class Run:
    """One job, until it has ended."""

    def __init__(self, queue: AtOnce, shared: Shared, name: str, text: bytes, payload: Payload) -> None:
        self._queue, self._shared, self._name, self._text, self._payload = queue, shared, name, text, payload
        self._saved: bytes | None = None

    def end(self) -> tuple[list[Effect], Exception | None]:
        """What follows from it, and its error where it has failed for good."""
        payload = self._payload
        declared = self._shared.registry.get(payload.job)
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
        limits = limits_of(self._payload, declared.options, self._queue._work)
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
        listeners = self._shared.listeners
        stages, result = self._shared.common.pipeline.around(declared), None
        if declared.is_async:
            refuse_in_a_loop()
        call = self._freeing(declared.prepare(bytes(job.data)))
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
            self._shared.listeners.emit(event)

    def _fail(self, declared: Declared, job: RunningJob, error: Exception) -> tuple[object, bool]:
        tell_of_failure(declared, bytes(job.data), error, job, self._shared.listeners)
        raise error

    def _job(self, declared: Declared, payload: Payload) -> RunningJob:
        known = payload.id or payload.uuid or ""
        return RunningJob(
            known,
            payload.job,
            self._name,
            payload.attempts,
            self._saved,
            self._keep,
            connection=self._queue.settings.name,
            payload=self._text,
            uuid=payload.uuid or known,
            ties=payload.qd,
            declared=declared,
            data=payload.data,
            common=self._shared.common,
        )

    def _keep(self, state: bytes) -> None:
        self._saved = state
