"""From the name of a connection to an open connection.

    Connections      for an app: one connection per name, thread and process, and per event loop, made on first use
    open_queue       one new connection, for commands and the processes of `qd work`
    open_memory      the keyspace of a connection, or its part of the control connection's keyspace
    check_...        what `qd work` and `qd doctor` check before any job runs

A driver's module is imported when the driver is used, so a program needs only its own libraries. The table of drivers is in
options/drivers.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from qd.config.settings import provider_of
from qd.drivers.base import PRODUCER, ClientIdentity, Connector, Factory
from qd.drivers.types import NONE, Gaps
from qd.errors import ConfigError
from qd.options.drivers import (
    BARE,
    DRIVERS,
    OPENED_WITHOUT_APP,
    SYNC,
    WITH_KEYSPACE,
    extra_of_library,
    extra_of_url,
    missing_library,
    scheme_of,
)
from qd.options.extras import to_install
from qd.options.kinds import did_you_mean

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings, Settings
    from qd.drivers.keyspace.base import Keyspace
    from qd.drivers.loops import Loops
    from qd.drivers.redis.aio import AsyncQueue


def loaded(where: str) -> Callable[..., Any]:
    """where: "module:function". Raises ConfigError if the driver's library is not installed."""
    module, _, name = where.partition(":")
    with extras_named():
        found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def preload(settings: Settings, names: Iterable[str]) -> None:
    """Import the drivers of these connections, and the libraries of their servers. Nothing is connected."""
    for name in names:
        found = settings.connections.get(name)
        driver = DRIVERS.get(found.driver) if found is not None else None
        if driver is None:
            continue
        with suppress(Exception):  # the process that uses the connection imports it again and reports the error
            for where in filter(None, (driver.open, driver.client)):
                import_module(where.partition(":")[0])


@contextmanager
def extras_named() -> Iterator[None]:
    """Turn the import error of a missing library into a ConfigError with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        extra = extra_of_library(missing.lower())
        if not extra:
            raise
        raise ConfigError(not_installed(missing, extra)) from None


def not_installed(library: str, extra: str) -> str:
    return f"the library '{library}' is not installed: {to_install(extra)}"


class ThreadConnections:
    """The connections of one thread of one process, for one set of settings."""

    def __init__(self, settings: Settings) -> None:
        self.pid = os.getpid()
        self.settings = settings
        self.queues: dict[str | None, Connector] = {}

    def close(self) -> None:
        while self.queues:  # close_all() and the end of the thread may run this at the same time
            with suppress(KeyError):
                self.queues.popitem()[1].close()

    __del__ = close  # close the sockets when the thread ends


class Connections:
    """`make` opens a connection. Each thread, and each process after a fork, has its own connections."""

    def __init__(
        self, settings: Callable[[], Settings], make: Callable[[Settings, str | None], Connector] | None = None
    ) -> None:
        self._settings = settings
        self.own: dict[str, Factory] = {}  # the app's drivers by name
        self._opens = lambda settings, name: open_queue(settings, name, own=self.own)
        self.make = make or self._opens
        self._loops: Loops | None = None
        self._local = threading.local()
        self._lent: ContextVar[Mapping[str, Connector] | None] = ContextVar("qd_lent", default=None)
        self._all: WeakSet[ThreadConnections] = WeakSet()
        self._lock = threading.Lock()
        self.used: Callable[[], None] | None = None  # called before each use
        self.join: Callable[[str], Connector | None] | None = None  # the connection in a transaction that is open here

    def get(self, name: str | None) -> Connector:
        """The connection called `name` (None: the default). Raises ConfigError."""
        if self.used is not None:
            self.used()
        settings = self._settings()
        if (lent := self._lent.get()) and (found := lent.get(settings.connection(name).name)) is not None:
            return found
        own: ThreadConnections | None = getattr(self._local, "own", None)
        if own is None or own.pid != os.getpid() or own.settings is not settings:
            own = self._local.own = ThreadConnections(settings)
            with self._lock:
                self._all.add(own)
        queue = own.queues.get(name)
        if queue is None:
            queue = own.queues[name] = self.make(settings, name)
        return queue

    def to_send(self, name: str) -> Connector:
        """The connection called `name`, in the transaction that is open here if there is one, see `join`."""
        if self.join is not None and self.make is self._opens and not self.is_lent(name):
            return self.join(name) or self.get(name)
        return self.get(name)

    async def native(self, name: str | None) -> AsyncQueue | None:
        """The connection called `name` (None: the default) for the tasks of the running event loop. None: call `get` in a
        thread, because its driver needs one, or this is inside a `lent` block. Raises ConfigError."""
        if self.make is not self._opens or self._lent.get():
            return None
        if self._loops is None:
            from qd.drivers.loops import Loops  # loaded only by apps that use asyncio

            with self._lock:
                self._loops = self._loops or Loops(self._settings, partial(open_native, own=self.own))
        return await self._loops.get(name)

    @contextmanager
    def lent(self, name: str, queue: Connector) -> Iterator[None]:
        """Inside the block, in this thread or task, get(`name`) returns `queue`."""
        token = self._lent.set({**(self._lent.get() or {}), name: queue})
        try:
            yield
        finally:
            self._lent.reset(token)

    def is_lent(self, name: str) -> bool:
        """Whether this is inside a lent(`name`, ...) block."""
        return name in (self._lent.get() or {})

    def outside(self, act: Callable[[], object]) -> object:
        """Call `act` with the app's own connections, also inside a `lent` block."""
        token = self._lent.set(None)
        try:
            return act()
        finally:
            self._lent.reset(token)

    def close(self) -> None:
        """Close the connections of this thread and of its running event loop. The next use opens new ones."""
        own: ThreadConnections | None = getattr(self._local, "own", None)
        if own is not None:
            own.close()
        if self._loops is not None:
            self._loops.close(here=True)

    def close_all(self) -> None:
        """Close the connections of every thread and event loop of this process. No thread may be using them."""
        with self._lock:
            found = [own for own in self._all if own.pid == os.getpid()]
        for own in found:
            own.close()
        if self._loops is not None:
            self._loops.close()


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
    """A new connection called `name` (None: the default) that connects on first use. For the arguments see ClientIdentity.

    An `embedded:` url starts the project's server. Raises ConfigError.
    """
    found = settings.connection(name)
    make = driver_of(found, own)
    with extras_named():
        return make(settings, located(found, settings), ClientIdentity(token, slot, turns, title, patience, own))


def open_native(settings: Settings, name: str, own: Mapping[str, Factory] = NONE_OWN) -> AsyncQueue | None:
    """A new connection called `name` for an event loop; None if its driver needs threads. Raises ConfigError."""
    found = settings.connection(name)
    if found.driver in own or found.driver not in DRIVERS or not DRIVERS[found.driver].native:
        return None
    make: Callable[..., AsyncQueue | None] = loaded(DRIVERS[found.driver].native)
    return make(located(found, settings), PRODUCER)


def driver_of(found: ConnectionSettings, own: Mapping[str, Factory] = NONE_OWN) -> Factory:
    """The function that opens this connection. Raises ConfigError: unknown driver, or its library is not installed."""
    if found.driver in own:
        return own[found.driver]
    if found.driver in OPENED_WITHOUT_APP:
        return loaded(DRIVERS[found.driver].open)
    if found.driver == SYNC:
        why = "runs jobs in the program that sends them: only an app opens it"
        raise ConfigError(f"connection '{found.name}' (sync) {why}")
    known = list(dict.fromkeys([*DRIVERS, *own]))
    raise ConfigError(
        f"unknown driver '{found.driver}' of connection '{found.name}'{did_you_mean(found.driver, known)} "
        f'(known: {", ".join(known)}; an app adds its own with app.extend("{found.driver}", factory))'
    )


@contextmanager
def unconnected(settings: Settings, name: str, own: Mapping[str, Factory] = NONE_OWN) -> Iterator[Connector | None]:
    """A connection to inspect without connecting or starting a server. None for an embedded server, which has no gaps.
    Raises ConfigError."""
    if (settings.connection(name).url or "").startswith("embedded:"):
        yield None
        return
    with closing(open_queue(settings, name, own=own)) as queue:
        yield queue


def gaps_of(settings: Settings, name: str, own: Mapping[str, Factory] = NONE_OWN) -> Gaps:
    """The capabilities that the connection called `name` lacks. Does not connect. Raises ConfigError."""
    with unconnected(settings, name, own) as queue:
        return NONE if queue is None else queue.limits


def check_ticks(settings: Settings, name: str, own: Mapping[str, Factory] = NONE_OWN) -> None:
    """Raises ConfigError if the connection called `name` takes no jobs of the schedule. Does not connect."""
    with unconnected(settings, name, own) as queue:
        if queue is not None:
            _ = queue.ticks


def open_memory(settings: Settings, name: str, *, title: str = "", patience: float = 5.0) -> tuple[Keyspace, str]:
    """The keyspace for what the connection called `name` stores next to its jobs, and the prefix of every name there: its
    own, or a part of the control connection's. For failover, that of its first connection. Raises ConfigError if there is
    none."""
    found = settings.connection(settings.parts(name)[0])
    if found.driver in WITH_KEYSPACE:
        opened = loaded(DRIVERS[found.driver].keyspace)
        with extras_named():
            space: Keyspace = opened(located(found, settings), title, patience)
        return space, found.prefix
    needs_memory(settings, found.name)
    space, _ = open_memory(settings, settings.control, title=title, patience=patience)
    return space, borrowed_prefix(settings, found.name)


def borrowed_prefix(settings: Settings, name: str) -> str:
    """The prefix of names that the connection called `name` has in the control connection's keyspace."""
    control = settings.connections.get(settings.control)
    at = f"qd:at:{name}"
    if control is not None and scheme_of(control.url or "").endswith("+cluster"):
        at = f"{{{at}}}"  # all of it in one slot, so that steps are steps there
    return f"{control.prefix if control else ''}{at}:"


def needs_memory(settings: Settings, name: str) -> None:
    """Raises ConfigError if the connection called `name` has no keyspace and cannot borrow one. The control connection keeps
    the state that masters share."""
    found, control = settings.connection(name), settings.connections.get(settings.control)
    if found.driver not in WITH_KEYSPACE and (control is None or control.driver not in WITH_KEYSPACE):
        raise ConfigError(no_memory(found.name, found.driver))


def no_memory(name: str, driver: str) -> str:
    keeps = "nothing" if driver in BARE else "jobs and nothing else"
    return (
        f"connection '{name}' ({driver}) keeps {keeps}: name a connection with driver "
        f"{' or '.join(WITH_KEYSPACE)} as control of [qd], for pauses, locks and failed jobs"
    )


def located(found: ConnectionSettings, settings: Settings) -> ConnectionSettings:
    """The connection with a url to connect to. Starts the project's embedded server if it is not running."""
    if not (found.url or "").startswith("embedded:"):
        return found
    from qd.drivers import embedded  # only for a project with an embedded server

    return replace(found, url=embedded.resolve(found.url or "", settings.root))


def server_warnings(settings: Settings, name: str, queues: Sequence[str]) -> list[str]:
    """Warnings about the configured queues. Raises ConfigError for problems that only an operator can fix: a missing queue
    or table, refused credentials. An unreachable server is not one of them."""
    found = settings.connection(name)
    driver = DRIVERS.get(found.driver)
    if driver is None or not driver.warnings:
        return []
    warnings: list[str] = loaded(driver.warnings)(found, queues, settings.work.tries)
    return warnings


def check_credentials(found: ConnectionSettings) -> None:
    """Raises ConfigError if its credential provider cannot be imported. Call it in a process that has imported the app."""
    if not provider_of(found.url):
        return
    from qd.drivers.redis import credentials  # only if there is a provider
    from qd.drivers.redis_driver import parsed

    try:
        credentials.check(parsed(found.url or "").login.provider)
    except ConfigError as error:
        raise ConfigError(f"connection '{found.name}': {error}") from None


def check_url(found: ConnectionSettings) -> None:
    """Raises ConfigError if its url cannot be used: port, options, certificates. Does not connect."""
    driver = DRIVERS.get(found.driver)
    if driver is None or not driver.url or (found.url or "").startswith("embedded:"):
        return
    try:
        loaded(driver.url)(found.url or "")
    except ConfigError as error:
        raise ConfigError(f"url of connection '{found.name}' ({found.url_origin}): {error}") from None


def check_library(found: ConnectionSettings) -> None:
    """Raises ConfigError, with the command that installs it, if a library that its url needs is missing. Imports none."""
    if missing := missing_library(found.url or ""):
        raise ConfigError(not_installed(missing, extra_of_url(found.url or "")))
