"""Loads a driver when it is used: a program without it needs no library of it. The drivers are in options/drivers.py.

Names to connections, each made when it is first used: one a thread and process. An app asks here.

How a connection and its keyspace are opened, by its name, and what is looked at before any work. Who sends asks
connections.py; commands and the processes of `qd work` ask here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

from qd.config.settings import provider_of
from qd.drivers.base import ClientIdentity, Connector, Factory
from qd.drivers.types import NONE, Gaps
from qd.errors import ConfigError
from qd.options.drivers import BARE, DRIVERS, OPENED_WITHOUT_APP, SYNC, WITH_KEYSPACE, extra_of_library, scheme_of
from qd.options.kinds import did_you_mean

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings, Settings
    from qd.drivers.base import KeeperConnector
    from qd.drivers.keyspace.base import Keyspace


def loaded(where: str) -> Callable[..., Any]:
    """where: "module:function". Raises ConfigError naming the extra if the driver's library is not installed."""
    module, _, name = where.partition(":")
    with extras_named():
        found: Callable[..., Any] = getattr(import_module(module), name)
    return found


@contextmanager
def extras_named() -> Iterator[None]:
    """A library that is not installed becomes a ConfigError that names the extra which brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        extra = extra_of_library(missing.lower())
        if not extra:
            raise
        raise ConfigError(f"the library '{missing}' is not installed: pip install 'qd-worker[{extra}]'") from None


class ThreadConnections:
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
        self._all: WeakSet[ThreadConnections] = WeakSet()
        self._lock = threading.Lock()

    def get(self, name: str | None) -> Connector:
        """The connection called `name`, None: the default one. Raises ConfigError."""
        settings = self._settings()
        if (lent := self._lent.get()) and (found := lent.get(settings.connection(name).name)) is not None:
            return found
        own: ThreadConnections | None = getattr(self._local, "own", None)
        if own is None or own.pid != os.getpid() or own.settings is not settings:
            own = self._local.own = self._noted(ThreadConnections(settings))
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
        own: ThreadConnections | None = getattr(self._local, "own", None)
        if own is not None:
            own.close()

    def close_all(self) -> None:
        """Close those of every thread of this process, which must not be using them."""
        with self._lock:
            found = [own for own in self._all if own.pid == os.getpid()]
        for own in found:
            own.close()

    def _noted(self, own: ThreadConnections) -> ThreadConnections:
        with self._lock:
            self._all.add(own)
        return own


NONE_OWN: Mapping[str, Factory] = MappingProxyType({})


def open_queue(
    settings: Settings,
    name: str | None,
    *,
    token: str = "",
    slot: int = 0,
    turns: int = 0,
    title: str = "",
    patience: float = 5.0,
    own: Mapping[str, Factory] = NONE_OWN,
) -> Connector:
    """A connection of its own to the connection called `name` (None: the default); it connects on first use. See Reserver.

    An `embedded:` url starts the project's server. Raises ConfigError.
    """
    found = settings.connection(name)
    who = ClientIdentity(token, slot, turns, title, patience, own)
    make = driver_of(found, own)
    with extras_named():
        return make(settings, located(found, settings), who)


def driver_of(found: ConnectionSettings, own: Mapping[str, Factory] = NONE_OWN) -> Factory:
    """Who opens this connection. Raises ConfigError: nobody, or its library is not installed."""
    if found.driver in own:
        return own[found.driver]
    if found.driver in OPENED_WITHOUT_APP:
        return loaded(DRIVERS[found.driver].open)
    known = list(dict.fromkeys([*DRIVERS, *own]))
    if found.driver == SYNC:
        raise ConfigError(
            f"connection '{found.name}' (sync) runs jobs in the program that sends them: only an app opens it"
        )
    near = did_you_mean(found.driver, known)
    raise ConfigError(
        f"unknown driver '{found.driver}' of connection '{found.name}'{near} (known: {', '.join(known)}; an app has its own "
        f'by app.extend("{found.driver}", factory))'
    )


@contextmanager
def unasked(settings: Settings, name: str, own: Mapping[str, Factory] = NONE_OWN) -> Iterator[Connector | None]:
    """A connection for what it says by itself: nothing is connected, and no server started. None: one that is embedded, and
    can do all. Raises ConfigError."""
    if (settings.connection(name).url or "").startswith("embedded:"):
        yield None
        return
    with closing(open_queue(settings, name, own=own)) as queue:
        yield queue


def cannot_of(settings: Settings, name: str, own: Mapping[str, Factory] = NONE_OWN) -> Gaps:
    """What the connection called `name` cannot do. No server is asked. Raises ConfigError."""
    with unasked(settings, name, own) as queue:
        return NONE if queue is None else queue.limits


def check_ticks(settings: Settings, name: str, own: Mapping[str, Factory] = NONE_OWN) -> None:
    """Raises ConfigError where the connection called `name` takes no job of the schedule. No server is asked."""
    with unasked(settings, name, own) as queue:
        if queue is not None:
            _ = queue.ticks


def open_keeping(
    settings: Settings, name: str, *, token: str, title: str, own: Mapping[str, Factory] = NONE_OWN
) -> KeeperConnector:
    """The same for the keeper of the master called `token`."""
    return cast("KeeperConnector", open_queue(settings, name, token=token, title=title, own=own))


def open_memory(settings: Settings, name: str, *, title: str = "", patience: float = 5.0) -> tuple[Keyspace, str]:
    """Where the connection called `name` keeps what it keeps beside its jobs, and what every name there begins with: a
    keyspace of its own, or a part of the control connection's; of failover its first one does. Raises ConfigError where
    there is none."""
    found = settings.connection(settings.parts(name)[0])
    if found.driver in WITH_KEYSPACE:
        opened = loaded(DRIVERS[found.driver].keyspace)
        with extras_named():
            space: Keyspace = opened(located(found, settings), title, patience)
        return space, found.prefix
    control = settings.connection(settings.control)
    if control.driver not in WITH_KEYSPACE:
        raise ConfigError(no_memory(found.name, found.driver))
    space, _ = open_memory(settings, control.name, title=title, patience=patience)
    return space, borrowed_prefix(settings, found.name)


def borrowed_prefix(settings: Settings, name: str) -> str:
    """What every name begins with that the connection called `name` has in the keyspace of the control connection."""
    control = settings.connections.get(settings.control)
    at = f"qd:at:{name}"
    if control is not None and scheme_of(control.url or "").endswith("+cluster"):
        at = f"{{{at}}}"  # all of it in one slot, so that steps are steps there
    return f"{control.prefix if control else ''}{at}:"


def needs_memory(settings: Settings, name: str) -> None:
    """Raises ConfigError where the connection called `name` has no keyspace, and there is none that it could borrow."""
    found, control = settings.connection(name), settings.connections.get(settings.control)
    if found.driver not in WITH_KEYSPACE and (control is None or control.driver not in WITH_KEYSPACE):
        raise ConfigError(no_memory(found.name, found.driver))


def check_memory(settings: Settings) -> None:
    """Raises ConfigError: what masters share, and what stands beside the jobs of many connections, has no place."""
    control = settings.connection(settings.control)
    if control.driver not in WITH_KEYSPACE:
        raise ConfigError(no_memory(control.name, control.driver))


def no_memory(name: str, driver: str) -> str:
    keeps = "nothing" if driver in BARE else "jobs and nothing else"
    return (
        f"connection '{name}' ({driver}) keeps {keeps}: name a connection with driver "
        f"{' or '.join(WITH_KEYSPACE)} as control of [qd], for pauses, locks and failed jobs"
    )


def located(found: ConnectionSettings, settings: Settings) -> ConnectionSettings:
    """The same with a url that can be connected to: the project's own server is started when there is none."""
    if not (found.url or "").startswith("embedded:"):
        return found
    from qd.drivers import embedded  # only a project that has one

    return replace(found, url=embedded.resolve(found.url or "", settings.root))


def what_is_odd(settings: Settings, name: str, queues: Sequence[str]) -> list[str]:
    """About queues that are to be worked on, as far as their server says it at once. Raises ConfigError for what nobody but
    a person can mend: a queue or a table that is not there, credentials that are refused. A server that is away is no such
    thing."""
    found = settings.connection(name)
    driver = DRIVERS.get(found.driver)
    if driver is None or not driver.look:
        return []
    odd: list[str] = loaded(driver.look)(found, queues, settings.work.tries)
    return odd


def check_credentials(found: ConnectionSettings) -> None:
    """Raises ConfigError when its credential provider cannot be imported; call it in a process that has imported the app."""
    if not provider_of(found.url):
        return
    from qd.drivers.redis.driver import check_provider  # only where there is one

    try:
        check_provider(found.url or "")
    except ConfigError as error:
        raise ConfigError(f"connection '{found.name}': {error}") from None


def check_url(found: ConnectionSettings) -> None:
    """Raises ConfigError when its url cannot be used: its port, its options, its certificates. Nothing is connected."""
    driver = DRIVERS.get(found.driver)
    if driver is None or not driver.url or (found.url or "").startswith("embedded:"):
        return
    try:
        loaded(driver.url)(found.url or "")
    except ConfigError as error:
        raise ConfigError(f"url of connection '{found.name}' ({found.url_origin}): {error}") from None
