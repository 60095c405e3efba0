"""The driver `sync`: each job runs where it is sent, before dispatch() returns.

    payload -> declared? -> limits -> arguments -> listeners, middleware, function -> its effects, one after the other
    error -> retried immediately, up to its tries -> failed(), listeners -> raised by dispatch()

The rules are the worker's (jobs/policy.py). All threads of an app share its unique locks, batches and results, which
are in memory.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from qd.dispatch.local import Lenient, LocalRunner, MemoryBatches, SentJob, SentPolicy, effects_of, outside_loop
from qd.dispatch.results import value_of_error
from qd.dispatch.route import opened
from qd.drivers.send_only import NoJobs, SendingOnly
from qd.drivers.types import Count, Effect, Entry, Free, Gaps, Keep, Kept, NewBatch, Outgoing, Push
from qd.errors import ConfigError, UnknownJob
from qd.payload.format import Payload, read
from qd.process.shield import shield

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings, Settings
    from qd.dispatch.services import Services


MOST = 1000  # results, and finished batches


class Shared:
    """What the `sync` connections of all threads of an app share."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.batches = MemoryBatches()
        self.results = dict[str, Kept]()
        self._owners = dict[str, str]()
        self._lock = threading.Lock()

    def held(self, name: str, owner: str) -> str | None:
        """Take the lock `name`. Returns the owner if another one has it."""
        with self._lock:
            found = self._owners.setdefault(name, owner)
            return None if found == owner else found

    def free(self, name: str, owner: str) -> bool:
        with self._lock:
            owned = self._owners.get(name) == owner
            if owned:
                del self._owners[name]
            return owned

    def keep(self, kept: Keep) -> None:
        self.results[kept.id] = Kept(kept.status, kept.value, None, time.time())
        while len(self.results) > MOST:
            self.results.pop(next(iter(self.results)))


LIMITS: Gaps = MappingProxyType(
    {
        "delay": "delays are ignored: each job runs when it is sent",
        "lease": "timeouts do not apply: each job runs in the program that sends it",
        "failed": "a job that fails raises its error in the program that sends it, and is not stored",
        "find": "jobs never wait, so none can be found, moved or cancelled",
        "memory": "locks of unique jobs, batches and results are in the memory of the sending program",
    }
)
Job = tuple[str, bytes]  # queue, payload


class Results(NoJobs):
    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def kept(self, id: str) -> Kept | None:
        return self._shared.results.get(id)


class SyncQueue(SendingOnly):
    """A Connector that raises for the methods that it lacks."""

    def __init__(self, shared: Shared, whole: Settings, settings: ConnectionSettings) -> None:
        super().__init__(settings, limits=LIMITS, whole=whole)
        self._work, self._shared = whole.work, shared
        self.jobs, self.batches = Results(shared), Batches(self, shared)
        try:
            _ = self.kept
        except ConfigError:  # no control connection: every limit lets the job through
            self.store = Lenient()

    def take(self, job: Outgoing) -> str | None:
        if job.lock and (holder := self._shared.held(job.lock, job.owner)) is not None:
            return holder
        self.run([(job.queue, job.payload)])
        return None

    def post(self, jobs: Sequence[Outgoing]) -> list[str | None]:
        """Run all of them, then raise the first error."""
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
        """Run these and the jobs that follow from them. Then raises the first error that its batch does not allow."""
        with shield.lowered():
            outside_loop(partial(self._run_all, deque(jobs)))

    def _run_all(self, jobs: deque[Job]) -> None:
        errors = list[Exception]()
        while jobs:
            queue, text = jobs.popleft()
            payload = read(text)
            try:
                self._run(queue, text, payload, lambda effect: jobs.extend(self._apply(effect)))
            except Exception as error:
                kept = self._shared.batches.kept.get((payload.qd and payload.qd.batch) or "")
                if kept is None or not kept.new.allow_failures:
                    errors.append(error)
        if errors:
            raise errors[0]

    def _run(self, queue: str, text: bytes, payload: Payload, on_effect: Callable[[Effect], None]) -> None:
        services = self._shared.services
        declared = services.registry.get(payload.job)
        if declared is None:
            error = UnknownJob(f"no job '{payload.job}' is declared in this app, which would run it")
            for effect in effects_of(payload, "failed", partial(value_of_error, error, str(error))):
                on_effect(effect)
            raise error
        payload = opened(payload, declared, services.current_settings())
        job = SentJob(payload, text, declared, self.settings.name, queue, services)
        policy = SentPolicy(payload, declared, self._work)
        LocalRunner(services.pipeline, services.listeners, policy, on_effect).run(declared, job.attempt, payload)

    def _apply(self, effect: Effect) -> list[Job]:
        """Returns the jobs that it sends."""
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
        if kept is None:  # removed, see MOST
            return []
        found = [kept.new.callbacks[what] for what in due if what in kept.new.callbacks]
        return [(callback.queue, callback.payload) for callback in found]


class Batches:
    """drivers.base.Batches whose jobs run when they are sent."""

    def __init__(self, queue: SyncQueue, shared: Shared) -> None:
        self._queue, self._shared = queue, shared
        kept = shared.batches
        self.cancel, self.state, self.failures = kept.cancel, kept.state, kept.failures

    def send(self, batch: NewBatch, jobs: Sequence[Entry]) -> None:
        batches = self._shared.batches
        for id in [id for id, kept in batches.kept.items() if kept.finished_at is not None][:-MOST]:
            batches.kept.pop(id, None)
        batches.send(batch, jobs)
        last = [] if jobs else self._queue.called_back(batch.id, batches.settled(batch.id))
        self._queue.run([*((job.queue, job.payload) for job in jobs), *last])

    def add(self, id: str, jobs: Sequence[Entry]) -> None:
        self._shared.batches.add(id, jobs)
        self._queue.run([(job.queue, job.payload) for job in jobs])
