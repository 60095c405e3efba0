"""Names to connections, each made when it is first used: one a thread and process. An app asks here."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING
from weakref import WeakSet

from qd.connectors.base import Connector
from qd.connectors.manager import open_queue
from qd.connectors.reserver import Factory

if TYPE_CHECKING:
    from qd.config import Settings


class Own:
    """The connections of one thread of one process, for one set of settings."""

    def __init__(self, settings: Settings) -> None:
        self.pid = os.getpid()
        self.settings = settings
        self.queues: dict[str | None, Connector] = {}

    def close(self) -> None:
        while self.queues:  # close_all() may meet the end of the thread here
            with suppress(KeyError):
                self.queues.popitem()[1].close()

    __del__ = close  # a thread that ends leaves no socket behind


class Connections:
    """`make` opens one. A child after a fork, and another thread, get connections of their own."""

    def __init__(
        self, settings: Callable[[], Settings], make: Callable[[Settings, str | None], Connector] | None = None
    ) -> None:
        self._settings = settings
        self.own: dict[str, Factory] = {}  # drivers of the app's, by their words
        self.make = make or (lambda settings, name: open_queue(settings, name, own=self.own))
        self._local = threading.local()
        self._lent: ContextVar[Mapping[str, Connector] | None] = ContextVar("qd_lent", default=None)
        self._all: WeakSet[Own] = WeakSet()
        self._lock = threading.Lock()

    def get(self, name: str | None) -> Connector:
        """The connection called `name`, None: the default one. Raises ConfigError."""
        settings = self._settings()
        if (lent := self._lent.get()) and (found := lent.get(settings.connection(name).name)) is not None:
            return found
        own: Own | None = getattr(self._local, "own", None)
        if own is None or own.pid != os.getpid() or own.settings is not settings:
            own = self._local.own = self._noted(Own(settings))
        queue = own.queues.get(name)
        if queue is None:
            queue = own.queues[name] = self.make(settings, name)
        return queue

    @contextmanager
    def lent(self, name: str, queue: Connector) -> Iterator[None]:
        """Inside, in this thread or task, `queue` stands for the connection called `name`."""
        before = self._lent.get()
        token = self._lent.set({**(before or {}), name: queue})
        try:
            yield
        finally:
            self._lent.reset(token)

    def is_lent(self, name: str) -> bool:
        """Whether another queue stands for the connection called `name` here."""
        return name in (self._lent.get() or {})

    def outside(self, act: Callable[[], object]) -> object:
        """Call `act` with the app's own connections, also inside a `lent` block."""
        token = self._lent.set(None)
        try:
            return act()
        finally:
            self._lent.reset(token)

    def close(self) -> None:
        """Close those of this thread; the next use opens anew."""
        own: Own | None = getattr(self._local, "own", None)
        if own is not None:
            own.close()

    def close_all(self) -> None:
        """Close those of every thread of this process, which must not be using them."""
        with self._lock:
            found = [own for own in self._all if own.pid == os.getpid()]
        for own in found:
            own.close()

    def _noted(self, own: Own) -> Own:
        with self._lock:
            self._all.add(own)
        return own
