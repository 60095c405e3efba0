"""What an app is given in place of its own for the length of a block: settings, connections, the way out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any, NoReturn, cast

from qd import config
from qd.bus.local import Lenient, LocalConnection, MemoryBatches
from qd.bus.parcel import Parcel
from qd.bus.services import Services
from qd.config import ConnectionSettings, Settings
from qd.errors import QdError
from qd.store.memory import MemoryLocks
from qd.testing.waiting import Waiting


class Unread(Settings):
    """Settings that were read nowhere: every connection is there, and its queue is "default"."""

    __slots__ = ()

    def connection(self, name: str | None = None) -> ConnectionSettings:
        return ConnectionSettings(name or self.default, url="fake://")


class Stored(Lenient):
    """app.lock() is kept in memory; places of middleware and limits let everything through."""

    def __init__(self) -> None:
        self._locks = MemoryLocks()
        self.get, self.pop = self._locks.get, self._locks.pop

    def step(self, script: str, names: Sequence[str], *words: str | int) -> object:
        known = script in self._locks.steps
        return self._locks.step(script, names, *words) if known else super().step(script, names, *words)


class Nowhere(LocalConnection):
    """A connection without a server: it has the jobs and the batches of a fake, and a store in which only locks stand."""

    def __init__(self, jobs: Waiting, batches: MemoryBatches, store: Stored) -> None:
        super().__init__(batches)
        self.store = store
        self.jobs = jobs
        self.cancel_keyed, self.move_keyed, self.keyed_due = jobs.cancel_keyed, jobs.move_keyed, jobs.keyed_due

    def close(self) -> None: ...

    def __getattr__(self, name: str) -> NoReturn:  # whatever else a connection can do
        raise QdError(
            f"app.fake() and app.inline() ask no server ('{name}'): what needs one is tested with the fixture qd_worker"
        )


@contextmanager
def staged(
    services: Services,
    post: Callable[..., list[str]],
    note: Callable[[Parcel], None],
    jobs: Waiting,
    batches: MemoryBatches,
) -> Iterator[None]:
    """In the block no file and no variable is read and no server asked, whatever thread sends. post: takes what is sent,
    with after_commit=True when that would have been. note: sees each job that is made, to be sent now or later."""
    send: Any = services.dispatcher
    before = services.connections.make, send._post, send.parcel, send._hand_over
    store = Stored()
    services.connections.make = lambda settings, name: cast(Any, Nowhere(jobs, batches, store))
    send._post, send.parcel = post, partial(noted, send.parcel, note)
    send._hand_over = lambda parcel: post((parcel,))  # a class's own send() would send it
    try:
        with services.using(unread(services)):
            yield
    finally:
        services.connections.make, send._post, send.parcel, send._hand_over = before


def unread(services: Services) -> Settings:
    built_in = config.unread(services.code())
    return Unread(**{each.name: getattr(built_in, each.name) for each in fields(Settings)})


def noted(make: Callable[..., Parcel], note: Callable[[Parcel], None], *about: object) -> Parcel:
    made = make(*about)
    note(made)
    return made
