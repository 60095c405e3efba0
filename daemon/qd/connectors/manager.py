"""Names to connections, each made when it is first used: one a thread and process. App and daemon ask here."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakSet

from qd.connectors.base import Queue
from qd.errors import ConfigError
from qd.units import did_you_mean

if TYPE_CHECKING:
    from qd.config import ConnectionSettings, Settings

DRIVERS = ("redis",)


def open_queue(
    settings: Settings,
    name: str | None,
    *,
    token: str = "",
    slot: int = 0,
    turns: int = 0,
    title: str = "",
    patience: float = 5.0,
) -> Queue:
    """A connection of its own to the connection called `name` (None: the default); it connects on first use.

    token, slot, turns: who reserves, and how many turns those made who had the slot before; empty for a producer. title:
    what the server's list of clients shows. patience: seconds to connect, and for each reply. An `embedded:` url starts the
    project's server. Raises ConfigError.
    """
    found = settings.connection(name)
    if found.driver not in DRIVERS:
        near = did_you_mean(found.driver, DRIVERS)
        raise ConfigError(f"unknown driver '{found.driver}' of connection '{found.name}' (known: redis){near}")
    from qd.connectors.redis.queue import Bounds, RedisQueue  # a driver is loaded when it is used

    kept = settings.failed
    keep = Bounds(kept.max_count if kept.enabled else 0, kept.keep, kept.max_bytes)
    queue = RedisQueue(
        located(found, settings),
        token=token,
        slot=slot,
        turns=turns,
        name=title,
        keep=keep,
        max_payload=settings.max_payload,
    )
    queue.wire.connect_timeout = queue.wire.timeout = patience
    return queue


def located(found: ConnectionSettings, settings: Settings) -> ConnectionSettings:
    """The same with a url that can be connected to: the project's own server is started when there is none."""
    if not (found.url or "").startswith("embedded:"):
        return found
    from qd import embedded  # only a project that has one

    return replace(found, url=embedded.resolve(found.url or "", settings.root))


def check_url(found: ConnectionSettings) -> None:
    """Raises ConfigError when its url cannot be used: its port, its options, its certificates. Nothing is connected."""
    if (found.url or "").startswith("embedded:"):
        return
    from qd.connectors.redis.target import Target

    try:
        Target(found.url or "")
    except ConfigError as error:
        raise ConfigError(f"url of connection '{found.name}' ({found.url_origin}): {error}") from None


class Own:
    """The connections of one thread of one process, for one set of settings."""

    def __init__(self, settings: Settings) -> None:
        self.pid = os.getpid()
        self.settings = settings
        self.queues: dict[str | None, Queue] = {}

    def close(self) -> None:
        while self.queues:  # close_all() may meet the end of the thread here
            with suppress(KeyError):
                self.queues.popitem()[1].close()

    __del__ = close  # a thread that ends leaves no socket behind


class Connections:
    """`make` opens one. A child after a fork, and another thread, get connections of their own."""

    def __init__(
        self, settings: Callable[[], Settings], make: Callable[[Settings, str | None], Queue] = open_queue
    ) -> None:
        self._settings = settings
        self.make = make
        self._local = threading.local()
        self._all: WeakSet[Own] = WeakSet()
        self._lock = threading.Lock()

    def get(self, name: str | None) -> Queue:
        """The connection called `name`, None: the default one. Raises ConfigError."""
        settings = self._settings()
        own: Own | None = getattr(self._local, "own", None)
        if own is None or own.pid != os.getpid() or own.settings is not settings:
            own = self._local.own = self._noted(Own(settings))
        queue = own.queues.get(name)
        if queue is None:
            queue = own.queues[name] = self.make(settings, name)
        return queue

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
