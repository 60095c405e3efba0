"""What every program does with a queue whose server keeps jobs and nothing else: send, look, clear. What a worker does
besides is queue.py, and what a keeper does keeping.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from qd.connectors.base import Limits, Outgoing, Sizes
from qd.connectors.borrowed.backend import Backend
from qd.connectors.borrowed.outbox import Outbox
from qd.connectors.borrowed.pushed import PushedBatches, PushedTicks
from qd.connectors.keyspace import keys
from qd.connectors.keyspace.base import Keyspace
from qd.connectors.keyspace.queue import DEFAULT, Bounds, KeyspaceQueue
from qd.connectors.reserver import PRODUCER, Reserver
from qd.errors import Malformed
from qd.payload import read

if TYPE_CHECKING:
    from qd.config import ConnectionSettings


class BorrowedSending(KeyspaceQueue):
    """space: borrowed; prefix: what every name in it begins with."""

    def __init__(
        self,
        settings: ConnectionSettings,
        backend: Backend,
        space: Keyspace,
        prefix: str,
        who: Reserver = PRODUCER,
        *,
        keep: Bounds = DEFAULT,
        max_payload: int = 0,
    ) -> None:
        super().__init__(replace(settings, prefix=prefix), space, who, keep=keep, max_payload=max_payload)
        self.backend = backend
        self.outbox = Outbox(space, prefix, backend)
        self.batches = PushedBatches(self.outbox)
        self.ticks = PushedTicks(self.outbox)

    @property
    def limits(self) -> Limits:
        return self.backend.limits

    def patience(self, connect: float, answer: float) -> None:
        super().patience(connect, answer)
        self.backend.patience(connect, answer)

    # -- sending

    def push(self, queue: str, payload: bytes) -> None:
        self.post([Outgoing(queue, payload)])

    def later(self, queue: str, payload: bytes, delay: float) -> None:
        self.post([Outgoing(queue, payload, delay)])

    def post(self, jobs: Sequence[Outgoing]) -> list[str | None]:
        """What needs no keyspace goes straight to the server; what that does not take is raised, the first of it. All else
        goes to the outbox, and is sent from there, at the latest by a keeper."""
        queues, found = dict.fromkeys([job.queue for job in jobs]), list[str | None]([None] * len(jobs))
        for queue in queues:
            self.backend.check(queue)
        waits = [place for place, job in enumerate(jobs) if self._waits(job)]
        for queue in queues:
            self._send(queue, [(job.payload, job.delay) for job in jobs if job.queue == queue and not self._waits(job)])
        if waits:
            those = [jobs[place] for place in waits]
            self.outbox.note([job.queue for job in those])
            for place, holder in zip(waits, super().post(those), strict=True):
                found[place] = holder
            self.outbox.try_to_forward(dict.fromkeys([job.queue for job in those if not job.delay]))
        return found

    def _waits(self, job: Outgoing) -> bool:
        return bool(job.lock or job.key) or job.delay > self.backend.longest

    def _send(self, queue: str, jobs: Sequence[tuple[bytes, float]]) -> None:
        for error in self.backend.send(queue, jobs) if jobs else ():
            if error is not None:
                raise error

    def move_keyed(self, queue: str, name: str, delay: float) -> bool:
        moved = super().move_keyed(queue, name, delay)
        if moved and not delay:
            self.outbox.try_to_forward([queue])
        return moved

    # -- looking

    def queues(self) -> Sequence[str]:
        return self.backend.queues()

    def sizes(self, queue: str) -> Sizes:
        """Those over there, and those in the outbox. One that is ended, and reserved over there still, runs nowhere."""
        here, there = super().sizes(queue), self.backend.standing(queue)
        sending, ended = self.space.call_many(
            [("LLEN", *self._keys(keys.sending(queue))), ("ZCARD", *self._keys(keys.ended(queue)))]
        )
        ended = ended if self.backend.counts_ended else 0
        ages = [age for age in (here.oldest_age, there.oldest) if age is not None]
        return Sizes(
            there.ready + here.ready + sending,
            there.delayed + here.delayed,
            max(there.reserved - ended, here.reserved),
            here.failed,
            max(ages) if ages else None,
        )

    def clear(self, queue: str) -> int:
        return super().clear(queue) + self.backend.clear(queue, self._forget)

    def _forget(self, payload: bytes) -> None:
        """The lock of a job that is cleared."""
        if b'"qd":{' not in payload:
            return
        with suppress(Malformed):
            known = read(payload)
            if known.qd is not None and known.qd.unique is not None and known.uuid:
                self.free(known.qd.unique, known.uuid)

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        with self.space.within(seconds), self.backend.within(seconds):
            yield
