"""Batches of a connection that is none: kept in memory, as long as run() or a fake lasts. Counted as batch.lua counts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from qd.connectors.batches import BatchState, Entry, NewBatch
from qd.errors import BatchFinished, UnknownBatch


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
