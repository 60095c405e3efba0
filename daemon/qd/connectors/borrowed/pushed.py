"""Batches and ticks where their jobs go through an outbox: counted and claimed as everywhere, then sent on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from qd.connectors.base import Answers, Claim, Claimed
from qd.connectors.batches import Entry, NewBatch
from qd.connectors.borrowed.outbox import Outbox
from qd.connectors.keyspace.batches import KeptBatches
from qd.connectors.keyspace.ticks import KeptTicks


class PushedBatches(KeptBatches):
    def __init__(self, outbox: Outbox) -> None:
        super().__init__(outbox.space, outbox.prefix)
        self._outbox = outbox

    def send(self, batch: NewBatch, jobs: Sequence[Entry]) -> None:
        self._outbox.note([*queues_of(jobs), *[callback.queue for callback in batch.callbacks.values()]])
        super().send(batch, jobs)
        self._outbox.try_to_forward(queues_of(jobs))

    def add(self, id: str, jobs: Sequence[Entry]) -> None:
        self._outbox.note(queues_of(jobs))
        super().add(id, jobs)
        self._outbox.try_to_forward(queues_of(jobs))


class PushedTicks(KeptTicks):
    def __init__(self, outbox: Outbox) -> None:
        super().__init__(outbox.space, outbox.prefix)
        self._outbox = outbox

    def begin(self, claims: Sequence[Claim]) -> Answers:
        queues = list(dict.fromkeys([claim.queue for claim in claims if claim.queue]))
        self._outbox.note(queues)
        return partial(self._forwarded, queues, super().begin(claims))

    def _forwarded(self, queues: Sequence[str], answers: Answers) -> list[Claimed]:
        taken = answers()
        self._outbox.try_to_forward(queues)
        return taken


def queues_of(jobs: Sequence[Entry]) -> list[str]:
    return list(dict.fromkeys([job.queue for job in jobs]))
