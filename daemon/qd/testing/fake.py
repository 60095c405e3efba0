"""`app.fake()`: what would have been sent is written down instead, and read back as plain records.

Everything before the connection is as in production: arguments are bound, encoded and checked, delays read, payloads made
and measured. Only the way out is another one, and the settings are those that are built in.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from qd.bus.local import MemoryBatches
from qd.bus.parcel import Parcel
from qd.bus.send import Push
from qd.bus.services import Services
from qd.connectors.batches import NewBatch
from qd.errors import ArgumentError
from qd.jobs import Job, JobFunction
from qd.jobs.registry import Declared
from qd.payload import read
from qd.testing.records import Batched, Chained, Dispatched, Pushed, batched, chained, dispatched, pushed
from qd.testing.stage import staged
from qd.testing.waiting import Waiting
from qd.ties import Link, Ties

AnyJob = JobFunction[..., Any, Any] | type[Job[Any]]


class Fake:
    """What would have been sent since the block began, in order. Asking changes nothing. May be used from any thread."""

    def __init__(self, services: Services) -> None:
        self._registry, self._handlers = services.registry, services.handlers
        self._lock = threading.Lock()
        self._waiting = Waiting()
        self._made: dict[str, Parcel] = {}  # by id: those that are sent later, by a chain or a batch, too
        self._kept = MemoryBatches()

    def dispatched(self, job: AnyJob | type) -> list[Dispatched]:
        """The calls of this job, or of the handler of commands of this class, that are sent now: of a chain only the first.

        Raises ArgumentError: it is no job of this app.
        """
        declared = self._declared(job)
        return [
            dispatched(each) for each in self._waiting.all() if each.plan is not None and each.plan.declared is declared
        ]

    def all(self) -> list[Dispatched]:
        """The calls of every job."""
        return [dispatched(each) for each in self._waiting.all() if each.plan is not None]

    @property
    def chains(self) -> list[Chained]:
        """The chains, of at least two jobs or with something that catches."""
        return [chained(each, *self._behind(each)) for each in self._waiting.all() if each.ties and is_chain(each.ties)]

    @property
    def batches(self) -> list[Batched]:
        """The batches, each with all the jobs that were sent with it and added to it."""
        return [self._batched(kept.new) for kept in self._kept.kept.values()]

    def pushed(self, queue: str) -> list[Pushed]:
        """What app.queue(queue).push and push_raw were given."""
        return [pushed(each) for each in self._waiting.all() if each.plan is None and each.queue == queue]

    def clear(self) -> None:
        """Forget what was sent until now."""
        self._waiting.clear()
        self._kept.kept.clear()

    def _post(self, parcels: Sequence[Parcel], push: Push | None = None) -> list[str]:
        """push: of a batch, which is kept in memory instead."""
        if push is not None:
            push(parcels)
        self._waiting.add(parcels)
        return [parcel.id for parcel in parcels]

    def _remember(self, parcel: Parcel) -> None:
        with self._lock:
            self._made[parcel.id] = parcel

    def _behind(self, parcel: Parcel) -> tuple[list[Parcel], list[Parcel]]:
        """What comes after it has succeeded, and what after one of them has failed."""
        ties = parcel.ties or Ties()
        return [self._linked(link) for link in ties.chain], [self._linked(link) for link in ties.catch]

    def _batched(self, new: NewBatch) -> Batched:
        jobs = [each for each in self._waiting.all() if each.ties is not None and each.ties.batch == new.id]
        then, catch, last = (self._called_back(new, what) for what in ("then", "catch", "finally"))
        return batched(new, jobs, then, catch, last)

    def _called_back(self, new: NewBatch, what: str) -> Parcel | None:
        callback = new.callbacks.get(what)
        return callback and self._made[read(callback.payload).id or ""]

    def _linked(self, link: Link) -> Parcel:
        return self._made[read(link.payload.encode()).id or ""]

    def _declared(self, job: AnyJob) -> Declared:
        found = declared_of(job) or self._handlers.declared(job)
        if found is None or self._registry.get(found.name) is not found:
            raise ArgumentError(f"{job!r} is no job of this app: give what @app.job made, or a class of commands")
        return found

    def __repr__(self) -> str:
        return f"<fake: {len(self._waiting.all())} jobs>"


def is_chain(ties: Ties) -> bool:
    return bool(ties.chain or ties.catch)


def declared_of(job: object) -> Declared | None:
    if isinstance(job, JobFunction):
        return job._plan.declared
    if isinstance(job, type) and issubclass(job, Job) and job._declared_as is not None:
        return job._declared_as[1].declared
    return None


@contextmanager
def faked(services: Services) -> Iterator[Fake]:
    """In the block the app's jobs go to the Fake, whichever thread sends them. A block in a block has a Fake of its own,
    and the outer one hears nothing meanwhile."""
    fake = Fake(services)
    with staged(services, fake._post, fake._remember, fake._waiting, fake._kept):
        yield fake
