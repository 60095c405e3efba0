"""What connections have in common that only take jobs: nothing waits in them, and nobody works on them.

Several connections in a row: what is sent goes to the first that takes it.

    plain jobs                         the first that answers; one that failed is left alone for a while
    unique, keyed, batches, locks      the first one only: what they look at stands nowhere else

A call that broke may have reached its server all the same: that job is sent twice, never lost.

The connection that takes jobs and forgets them, as Laravel's null driver: for a place where nothing is to be run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn, TypeVar, cast

from qd.drivers.base import Batches, Connector, Jobs, Ticks
from qd.drivers.types import (
    NONE,
    BatchState,
    Effect,
    Entry,
    Found,
    Gaps,
    Kept,
    NewBatch,
    Outgoing,
    Reserved,
    Sizes,
    Spot,
)
from qd.errors import ConfigError, ConnectionLost

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings, Settings
    from qd.drivers.base import ClientIdentity
    from qd.drivers.keyspace.base import Keyspace


class NoJobs:
    """The part that asks for single jobs: none is there."""

    def find(self, queue: str, id: str, spots: Sequence[Spot] = ()) -> Found | None:
        return None

    def drop(self, found: Found, effects: Sequence[Effect]) -> bool:
        return False

    def stop(self, found: Found) -> bool:
        return False

    def kept(self, id: str) -> Kept | None:
        return None

    def progress(self, id: str, percent: float, ttl: float) -> None: ...


class NoBatches:
    """Batches whose jobs are never run."""

    def send(self, batch: NewBatch, jobs: Sequence[Entry]) -> None: ...

    def add(self, id: str, jobs: Sequence[Entry]) -> None: ...

    def cancel(self, id: str) -> bool:
        return False

    def cancelled(self, id: str) -> bool:
        return False

    def state(self, id: str) -> BatchState | None:
        return None

    def failures(self, id: str) -> Mapping[str, tuple[str, str]]:
        return {}


class SendingOnly:
    """The calls of base.Connector that send: whoever derives from it says in `take` what becomes of a job. Those that work
    on jobs raise ConfigError. whole: all settings, for one whose locks stand in the keyspace of the control connection."""

    store: object = None  # see store.base.store_of

    def __init__(self, settings: ConnectionSettings, *, limits: Gaps = NONE, whole: Settings | None = None) -> None:
        self.settings, self.limits, self.whole = settings, limits, whole
        self.jobs: Jobs = NoJobs()
        self.batches: Batches = NoBatches()

    def take(self, job: Outgoing) -> str | None:
        """One job. Returns who has its lock, when it was not taken for that."""
        raise NotImplementedError

    def push(self, queue: str, payload: bytes) -> None:
        self.take(Outgoing(queue, payload))

    def later(self, queue: str, payload: bytes, delay: float) -> None:
        self.take(Outgoing(queue, payload, delay))

    def push_many(self, jobs: Sequence[tuple[str, bytes, float | None]]) -> None:
        self.post([Outgoing(queue, payload, delay or 0.0) for queue, payload, delay in jobs])

    def post(self, jobs: Sequence[Outgoing]) -> list[str | None]:
        return [self.take(job) for job in jobs]

    @property
    def kept(self) -> tuple[Keyspace, str]:
        from qd.drivers.connections import no_memory, open_memory  # it opens this, too

        if self.whole is None:
            raise ConfigError(no_memory(self.settings.name, self.settings.driver))
        return open_memory(self.whole, self.settings.name)

    @property
    def ticks(self) -> Ticks:
        raise ConfigError(
            f"connection '{self.settings.name}' ({self.settings.driver}) only sends jobs: it takes none of the schedule, "
            "give that one another connection"
        )

    def free(self, name: str, owner: str) -> bool:
        return False

    def cancel_keyed(self, queue: str, name: str) -> bool:
        return False

    def move_keyed(self, queue: str, name: str, delay: float) -> bool:
        return False

    def keyed_due(self, queue: str, name: str) -> float | None:
        return None

    def held(self, queues: Sequence[str]) -> Reserved | None:
        return None

    def sizes(self, queue: str) -> Sizes:
        return Sizes(0, 0, 0, 0, None)

    def queues(self) -> Sequence[str]:
        return ()

    def clear(self, queue: str) -> int:
        return 0

    def patience(self, connect: float, answer: float) -> None: ...

    def within(self, seconds: float) -> AbstractContextManager[None]:
        return nullcontext()

    def beats(self, about: Callable[[float], None]) -> None: ...

    def close(self) -> None: ...

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise ConfigError(
            f"connection '{self.settings.name}' ({self.settings.driver}) only sends jobs: `{name}` asks for another one"
        )


T = TypeVar("T")
Told = Callable[[str, Exception], object]
REST = 5.0  # seconds for which a connection that failed is asked last
LIMITS: Gaps = MappingProxyType(
    {
        "order": "jobs wait on several connections, each with an order of its own",
        "find": "single jobs, unique and keyed ones, batches and locks are on the first connection only",
    }
)
log = logging.getLogger("qd.failover")


def open_queue(
    settings: Settings, at: ConnectionSettings, who: ClientIdentity, told: Told = lambda name, error: None
) -> Connector:
    """told: hears of a connection that failed where the one before it worked."""
    from qd.drivers.connections import open_queue as open_part  # it opens this, too

    def part(name: str) -> Connector:
        return open_part(settings, name, title=who.title, patience=who.patience, own=who.own)

    return cast(Connector, FailoverQueue(settings, at, [part(name) for name in at.connections], told))


class FailoverQueue(SendingOnly):
    def __init__(self, whole: Settings, settings: ConnectionSettings, parts: Sequence[Connector], told: Told) -> None:
        super().__init__(settings, limits=LIMITS, whole=whole)
        self.parts, self._told = parts, told
        self.jobs, self.batches = parts[0].jobs, parts[0].batches
        self._rests = dict[int, float]()  # place -> until when it is asked last
        self._last = 0  # the place of the one that took a job last

    def push(self, queue: str, payload: bytes) -> None:
        self._first(lambda part: part.push(queue, payload))

    def later(self, queue: str, payload: bytes, delay: float) -> None:
        self._first(lambda part: part.later(queue, payload, delay))

    def push_many(self, jobs: Sequence[tuple[str, bytes, float | None]]) -> None:
        self._first(lambda part: part.push_many(jobs))

    def post(self, jobs: Sequence[Outgoing]) -> list[str | None]:
        if any(job.lock or job.key for job in jobs):
            return self.parts[0].post(jobs)
        return self._first(lambda part: part.post(jobs))

    def _first(self, send: Callable[[Connector], T]) -> T:
        """Raises ConnectionLost: none of them takes it."""
        said = dict[int, ConnectionLost]()
        for place in self._order():
            try:
                answer = send(self.parts[place])
            except ConnectionLost as error:
                said[place] = error
                self._rests[place] = time.monotonic() + REST
            else:
                self._took(place, said)
                return answer
        names = self.settings.connections
        whole = "; ".join(f"{names[place]}: {error}" for place, error in said.items())
        raise ConnectionLost(f"no connection of '{self.settings.name}' takes jobs: {whole}")

    def _order(self) -> list[int]:
        now = time.monotonic()
        return sorted(range(len(self.parts)), key=lambda place: (self._rests.get(place, 0.0) > now, place))

    def _took(self, place: int, said: dict[int, ConnectionLost]) -> None:
        """One line and one event where it is another one than before."""
        before, self._last = self._last, place
        if place == before:
            return
        name, names = self.settings.name, self.settings.connections
        error = said.get(before)
        if error is None:
            log.warning("jobs for '%s' go to '%s' again", name, names[place])
            return
        log.warning("jobs for '%s' go to '%s': '%s' fails: %s", name, names[place], names[before], error)
        self._told(names[before], error)

    # -- the first one only

    @property
    def kept(self) -> tuple[Keyspace, str]:
        return self.parts[0].kept

    @property
    def ticks(self) -> Ticks:
        return self.parts[0].ticks

    def free(self, name: str, owner: str) -> bool:
        return self.parts[0].free(name, owner)

    def cancel_keyed(self, queue: str, name: str) -> bool:
        return self.parts[0].cancel_keyed(queue, name)

    def move_keyed(self, queue: str, name: str, delay: float) -> bool:
        return self.parts[0].move_keyed(queue, name, delay)

    def keyed_due(self, queue: str, name: str) -> float | None:
        return self.parts[0].keyed_due(queue, name)

    def sizes(self, queue: str) -> Sizes:
        return self.parts[0].sizes(queue)

    def queues(self) -> Sequence[str]:
        return self.parts[0].queues()

    def clear(self, queue: str) -> int:
        return self.parts[0].clear(queue)

    # -- all of them

    def patience(self, connect: float, answer: float) -> None:
        for part in self.parts:
            part.patience(connect, answer)

    def within(self, seconds: float) -> AbstractContextManager[None]:
        return self._within(seconds)

    @contextmanager
    def _within(self, seconds: float) -> Iterator[None]:
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


NULL_LIMITS: Gaps = MappingProxyType({"order": "jobs are forgotten: none ever runs", "memory": "nothing is kept"})


def open_null(settings: Settings, at: ConnectionSettings, who: ClientIdentity) -> Connector:
    return cast(Connector, NullQueue(settings, at))  # what it lacks, it refuses by name


class NullQueue(SendingOnly):
    def __init__(self, whole: Settings, settings: ConnectionSettings) -> None:
        super().__init__(settings, limits=NULL_LIMITS, whole=whole)

    def take(self, job: Outgoing) -> str | None:
        return None
