"""What connections have in common that only take jobs: nothing waits in them, and nobody works on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NoReturn

from qd.connectors.base import NONE, Found, Jobs, Kept, Limits, Outgoing, Reserved, Sizes, Spot, Ticks
from qd.connectors.batches import Batches, BatchState, Entry, NewBatch
from qd.connectors.effects import Effect
from qd.errors import ConfigError

if TYPE_CHECKING:
    from qd.config import ConnectionSettings, Settings
    from qd.connectors.keyspace.base import Keyspace


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

    store: object = None  # see bus/asking.store_of

    def __init__(self, settings: ConnectionSettings, *, limits: Limits = NONE, whole: Settings | None = None) -> None:
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
        from qd.connectors.manager import no_memory, open_memory  # it opens this, too

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
