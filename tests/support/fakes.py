"""An app without a server: its settings are built by hand, and its connections record what they are sent."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from qd import Qd
from qd.config.settings import (
    ConnectionSettings,
    EncryptionSettings,
    FailedSettings,
    ScheduleSettings,
    Settings,
    SigningSettings,
)
from qd.drivers.connections import no_memory
from qd.drivers.types import Outgoing, Sizes
from qd.errors import ConfigError
from qd.options.tables import WorkOptions


class Sent(NamedTuple):
    """A payload that reached a connection. trip: number of the round trip; delay: None for immediately."""

    connection: str
    queue: str
    payload: bytes
    delay: float | None
    trip: int

    @property
    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.payload)
        return found


class FakeQueue:
    """Records what is pushed. `made_by`: process and thread that opened it."""

    def __init__(self, connection: str, sent: list[Sent]) -> None:
        self.connection = connection
        self.sent = sent
        self.trips = 0
        self.closed = False
        self.cleared: list[str] = []
        self.made_by = (os.getpid(), threading.get_ident())
        self.error: Exception | None = None

    @property
    def kept(self) -> tuple[Any, str]:
        raise ConfigError(no_memory(self.connection, "fake"))

    def push(self, queue: str, payload: bytes) -> None:
        self._note([(queue, payload, None)])

    def later(self, queue: str, payload: bytes, delay: float) -> None:
        self._note([(queue, payload, delay)])

    def post(self, jobs: Sequence[Outgoing]) -> list[str | None]:
        self._note([(job.queue, job.payload, job.delay or None) for job in jobs])
        return [None] * len(jobs)

    def _note(self, jobs: Sequence[tuple[str, bytes, float | None]]) -> None:
        if self.error is not None:
            raise self.error
        self.trips += 1
        self.sent += [Sent(self.connection, queue, payload, delay, self.trips) for queue, payload, delay in jobs]

    def sizes(self, queue: str) -> Sizes:
        ready = [sent for sent in self.sent if sent.queue == queue and sent.delay is None]
        later = [sent for sent in self.sent if sent.queue == queue and sent.delay is not None]
        return Sizes(ready=len(ready), delayed=len(later), reserved=1, failed=5, oldest_age=None)

    def queues(self) -> Sequence[str]:
        return ()

    def clear(self, queue: str) -> int:
        self.cleared.append(queue)
        return 2

    def within(self, seconds: float) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        self.closed = True


def settings(root: Path = Path("/nowhere"), **more: ConnectionSettings) -> Settings:
    """Connections `redis` (queue "default") and `other` (queue "elsewhere"), and those given."""
    connections = {
        "redis": ConnectionSettings(name="redis", url="redis://nowhere.invalid"),
        "other": ConnectionSettings(name="other", url="redis://nowhere.invalid/1", queue="elsewhere"),
        **more,
    }
    return Settings(
        root=root,
        file=None,
        app="",
        imports=(),
        env="",
        default="redis",
        control="redis",
        connections=connections,
        work=WorkOptions(),
        laravel=None,
        failed=FailedSettings(),
        signing=SigningSettings(),
        encryption=EncryptionSettings(),
        schedule=ScheduleSettings(),
        max_payload=16 << 20,
        max_depth=512,
        origins={},
    )


class FakeQd(Qd):
    """`sent`: every payload in order; `opened`: every connection."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = settings()
        self.sent: list[Sent] = []
        self.opened: list[FakeQueue] = []
        self.connections.make = self._open

    def _open(self, _: Settings, name: str | None) -> Any:
        self.opened.append(FakeQueue(name or "redis", self.sent))
        return self.opened[-1]

    @property
    def last(self) -> dict[str, Any]:
        """The payload that was sent last."""
        return self.sent[-1].read
