"""Several connections in a row: what is sent goes to the first that takes it.

    plain jobs                         the first that answers; one that failed is left alone for a while
    unique, keyed, batches, locks      the first one only: what they look at stands nowhere else

A call that broke may have reached its server all the same: that job is sent twice, never lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar, cast

from qd.connectors.base import Connector, Limits, Outgoing, Sizes, Ticks
from qd.connectors.sending_only import SendingOnly
from qd.errors import ConnectionLost

if TYPE_CHECKING:
    from qd.config import ConnectionSettings, Settings
    from qd.connectors.keyspace.base import Keyspace
    from qd.connectors.reserver import Reserver

T = TypeVar("T")
Told = Callable[[str, Exception], object]
REST = 5.0  # seconds for which a connection that failed is asked last
LIMITS: Limits = MappingProxyType(
    {
        "order": "jobs wait on several connections, each with an order of its own",
        "find": "single jobs, unique and keyed ones, batches and locks are on the first connection only",
    }
)
log = logging.getLogger("qd.failover")


def open_queue(
    settings: Settings, at: ConnectionSettings, who: Reserver, told: Told = lambda name, error: None
) -> Connector:
    """told: hears of a connection that failed where the one before it worked."""
    from qd.connectors.manager import open_queue as open_part  # it opens this, too

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
