"""What a connection must be able to do to keep batches: jobs that are counted together. bus/batch.py knows only this; the
counting itself is an effect of the answers (effects.Count)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec


class Entry(NamedTuple):
    """A job of a batch. delay: seconds."""

    queue: str
    uuid: str
    payload: bytes
    delay: float


class Callback(NamedTuple):
    """A job that a batch sends. moments: where in its payload unix seconds stand that count from then, createdAt last."""

    queue: str
    payload: bytes
    delay: float
    moments: tuple[int, ...]


class NewBatch(msgspec.Struct, frozen=True):
    """callbacks: by "then", "catch", "finally"."""

    id: str
    name: str
    allow_failures: bool
    callbacks: Mapping[str, Callback]


class BatchState(msgspec.Struct, frozen=True):
    """A batch at one moment. total: jobs sent; pending: those that have not ended, failed: those that have failed for good.
    Moments: unix seconds by the server's clock, None: not yet."""

    id: str
    name: str
    total: int
    pending: int
    failed: int
    created_at: float
    cancelled_at: float | None
    finished_at: float | None

    @property
    def progress(self) -> int:
        """Percent of its jobs that have ended, rounded down: 100 only when none is left."""
        return 100 if not self.pending else 100 * (self.total - self.pending) // max(1, self.total)


class Batches(Protocol):
    """Every call may raise ConnectionLost, ServerBusy or ServerRefused."""

    def send(self, batch: NewBatch, jobs: Sequence[Entry]) -> None:
        """Make it and send its jobs, up to 1,000 a step. Who dies between two steps leaves a batch that calls nobody."""

    def add(self, id: str, jobs: Sequence[Entry]) -> None:
        """Send more jobs of it. Raises UnknownBatch, BatchFinished: nothing was sent then, of more than 1,000 jobs
        perhaps the first thousands."""

    def cancel(self, id: str) -> bool:
        """Its jobs are not wanted any more. False: it was cancelled or finished already, or is not there."""

    def cancelled(self, id: str) -> bool:
        """Cheap. False also for one that is not there."""

    def state(self, id: str) -> BatchState | None:
        """None: it is not there, or not any more."""

    def failures(self, id: str) -> Mapping[str, tuple[str, str]]:
        """uuid of each job of it that has failed, and was not retried since -> queue and id of its record in the failed
        store; both "" if it never had one (it was cancelled)."""
