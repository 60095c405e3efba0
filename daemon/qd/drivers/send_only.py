"""Connections that only take jobs: no job waits in them, and no worker can use them.

    SendingOnly     the calls of base.Connector that send; the others raise ConfigError
    FailoverQueue   several connections in order: a job goes to the first that accepts it
    NullQueue       accepts jobs and drops them, as Laravel's null driver

What goes where in a FailoverQueue:

    plain jobs                         the first connection that answers; a failed one is tried last for a while
    unique, keyed, batches, locks      the first connection only, because their state is stored there

A failed call may have reached its server anyway, so a job may be sent twice, but it is never lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from qd.drivers.base import Batches, Connector, Jobs, Ticks
from qd.drivers.types import NONE, Gaps, Kept, Outgoing, Sizes
from qd.errors import ConfigError, ConnectionLost

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings, Settings
    from qd.drivers.base import ClientIdentity
    from qd.drivers.keyspace.base import Keyspace


def always(answer: object) -> Callable[..., Any]:
    """A method that does nothing and returns `answer`."""

    def method(self: object, *args: object, **named: object) -> Any:
        return answer

    return method


class NoJobs:
    """base.Jobs for a connection in which no job waits."""

    find = kept = progress = steps = always(None)
    emit = events = always([])
    drop = stop = always(False)

    def ids(self, queue: str, start: str) -> set[str]:
        return set()

    def kept_many(self, ids: Sequence[str]) -> list[Kept | None]:
        return [self.kept(id) for id in ids]


class NoBatches:
    """base.Batches whose jobs never run."""

    send = add = state = always(None)
    cancel = always(False)
    failures = always(MappingProxyType({}))


class SendingOnly:
    """Subclasses implement `take`. whole: all settings, if locks are kept in the control connection's keyspace."""

    store: object = None  # see store.base.store_of
    free = cancel_keyed = move_keyed = always(False)
    keyed_due = held = patience = beats = close = always(None)
    sizes, queues, clear = always(Sizes(0, 0, 0, 0, None)), always(()), always(0)
    within = always(nullcontext())

    def __init__(self, settings: ConnectionSettings, *, limits: Gaps = NONE, whole: Settings | None = None) -> None:
        self.settings, self.limits, self.whole = settings, limits, whole
        self.jobs: Jobs = NoJobs()
        self.batches: Batches = NoBatches()

    def take(self, job: Outgoing) -> str | None:
        """Take one job. Returns the owner of its lock if another job holds it; then the job was not taken."""
        raise NotImplementedError

    def push(self, queue: str, payload: bytes) -> None:
        self.take(Outgoing(queue, payload))

    def later(self, queue: str, payload: bytes, delay: float) -> None:
        self.take(Outgoing(queue, payload, delay))

    def post(self, jobs: Sequence[Outgoing]) -> list[str | None]:
        return [self.take(job) for job in jobs]

    @property
    def kept(self) -> tuple[Keyspace, str]:
        from qd.drivers.connections import no_memory, open_memory  # circular: it opens this driver

        if self.whole is None:
            raise ConfigError(no_memory(self.settings.name, self.settings.driver))
        return open_memory(self.whole, self.settings.name)

    @property
    def ticks(self) -> Ticks:
        way = "it cannot keep the ticks of the schedule, use another connection for the schedule"
        raise ConfigError(f"connection '{self.settings.name}' ({self.settings.driver}) only sends jobs: {way}")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        way = f"`{name}` needs another connection"
        raise ConfigError(f"connection '{self.settings.name}' ({self.settings.driver}) only sends jobs: {way}")


T = TypeVar("T")
OnFailure = Callable[[str, Exception], object]
FIRST = ("jobs", "batches", "free", "cancel_keyed", "move_keyed", "keyed_due", "sizes", "queues", "clear")
"""What a FailoverQueue has of its first connection, besides `kept` and `ticks`, which may raise."""
REST = 5.0  # seconds for which a failed connection is tried last
LIMITS: Gaps = MappingProxyType(
    {
        "order": "jobs are on several connections, each with its own order",
        "find": "single jobs are found, and unique and keyed jobs, batches and locks kept, on the first connection only",
    }
)
log = logging.getLogger("qd.failover")


def open_queue(
    settings: Settings, at: ConnectionSettings, who: ClientIdentity, on_failure: OnFailure = lambda name, error: None
) -> Connector:
    """on_failure: called when jobs go to another connection because the one used before failed."""
    from qd.drivers.connections import open_queue as open_part  # circular: it opens this driver

    parts = [open_part(settings, name, title=who.title, patience=who.patience, own=who.own) for name in at.connections]
    return cast(Connector, FailoverQueue(settings, at, parts, on_failure))


class FailoverQueue(SendingOnly):
    def __init__(
        self, whole: Settings, settings: ConnectionSettings, parts: Sequence[Connector], on_failure: OnFailure
    ) -> None:
        super().__init__(settings, limits=LIMITS, whole=whole)
        self.parts, self._on_failure = parts, on_failure
        for name in FIRST:
            setattr(self, name, getattr(parts[0], name))
        self._rests = dict[int, float]()  # index of a failed part -> until when it is tried last
        self._last = 0  # index of the part that took the last job

    def push(self, queue: str, payload: bytes) -> None:
        self._first(lambda part: part.push(queue, payload))

    def later(self, queue: str, payload: bytes, delay: float) -> None:
        self._first(lambda part: part.later(queue, payload, delay))

    def post(self, jobs: Sequence[Outgoing]) -> list[str | None]:
        if any(job.lock or job.key for job in jobs):
            return self.parts[0].post(jobs)
        return self._first(lambda part: part.post(jobs))

    def _first(self, send: Callable[[Connector], T]) -> T:
        """Raises ConnectionLost if no part takes the jobs."""
        errors, now = dict[int, ConnectionLost](), time.monotonic()
        for index in sorted(range(len(self.parts)), key=lambda index: (self._rests.get(index, 0.0) > now, index)):
            try:
                answer = send(self.parts[index])
            except ConnectionLost as error:
                errors[index] = error
                self._rests[index] = time.monotonic() + REST
            else:
                if index != self._last:
                    self._switch(index, errors)
                return answer
        names = self.settings.connections
        reasons = "; ".join(f"{names[index]}: {error}" for index, error in errors.items())
        raise ConnectionLost(f"no connection of '{self.settings.name}' takes jobs: {reasons}")

    def _switch(self, index: int, errors: dict[int, ConnectionLost]) -> None:
        """Log once, and call on_failure, when jobs go to another part than before."""
        name, names = self.settings.name, self.settings.connections
        before, self._last = self._last, index
        error = errors.get(before)
        if error is None:
            log.warning("jobs for '%s' go to '%s' again", name, names[index])
            return
        log.warning("jobs for '%s' go to '%s': '%s' fails: %s", name, names[index], names[before], error)
        self._on_failure(names[before], error)

    @property
    def kept(self) -> tuple[Keyspace, str]:
        return self.parts[0].kept

    @property
    def ticks(self) -> Ticks:
        return self.parts[0].ticks

    def patience(self, connect: float, answer: float) -> None:
        for part in self.parts:
            part.patience(connect, answer)

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        with ExitStack() as stack:
            for part in self.parts:
                stack.enter_context(part.within(seconds))
            yield

    def beats(self, about: Callable[[float], None]) -> None:
        for part in self.parts:
            part.beats(about)

    def close(self) -> None:
        for part in self.parts:
            part.close()


NULL_LIMITS: Gaps = MappingProxyType({"order": "jobs are dropped and never run", "memory": "nothing is stored"})


def open_null(settings: Settings, at: ConnectionSettings, who: ClientIdentity) -> Connector:
    queue = NullQueue(at, limits=NULL_LIMITS, whole=settings)
    return cast(Connector, queue)  # __getattr__ refuses the rest


class NullQueue(SendingOnly):
    take = always(None)
