"""What one app shares: its settings, registry, connections, listeners, middleware, declared limits and dispatcher; and the
drivers that belong to it: sync and failover, which need its jobs and listeners, and those of app.extend.

`Qd` has one `Services`. The worker's middleware, the `sync` driver and fakes in tests take it in place of the app.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, cast

from qd.dispatch.dispatcher import Dispatcher
from qd.dispatch.handlers import Handlers
from qd.drivers.base import Connector, KeeperConnector
from qd.drivers.connections import Connections
from qd.errors import ConfigError, DeclarationError
from qd.events import Listeners, QueueFailedOver
from qd.jobs.context import Limit
from qd.jobs.pipeline import Pipeline
from qd.jobs.registry import Registry
from qd.options.kinds import seconds_of

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings, Settings
    from qd.dispatch.sync import Shared
    from qd.drivers.base import ClientIdentity, Factory


def limit_of(name: str, most: int, per: float | timedelta) -> Limit:
    """Raises DeclarationError for values that let nothing through."""
    seconds = seconds_of(f"the limit '{name}': per", per)
    limit = f"the limit '{name}' of {most!r} per {seconds:g} s"
    if not isinstance(most, int) or isinstance(most, bool):
        raise DeclarationError(f"{limit} is not a whole number of starts; give 1 or more")
    if most < 1 or seconds <= 0:
        raise DeclarationError(f"{limit} lets nothing run; give 1 or more")
    return Limit(most, seconds)


class DeclaredLimits(dict[str, Limit]):
    """The limits of app.limit(name, most, per=)."""

    def declare(self, name: str, limit: Limit) -> None:
        other = self.setdefault(name, limit)
        if other != limit:
            raise DeclarationError(f"the limit '{name}' is declared twice: {other.most} per {other.per:g} s before")

    def resolve(self, name: str, most: int | None, per: float | timedelta | None) -> Limit:
        """The given limit, which must equal the declared one if there is one; without values, the declared one."""
        if most is None and per is None:
            return self.named(name)
        if most is None or per is None:
            raise DeclarationError(f"the limit '{name}' needs both values: 100, per=60")
        limit = limit_of(name, most, per)
        other = self.get(name, limit)
        if other != limit:
            raise DeclarationError(f"the limit '{name}' is already declared with {other.most} per {other.per:g} s")
        return limit

    def named(self, name: str) -> Limit:
        """Raises DeclarationError if the app has declared no limit of that name."""
        if name not in self:
            known = ", ".join(sorted(self)) or "none"
            way = f'app.limit("{name}", 100, per=60)'
            raise DeclarationError(f"no limit '{name}' is declared (known: {known}): {way}")
        return self[name]


class Services:
    """What one app shares. code: returns the settings given in code, which rank above the file and below the environment."""

    def __init__(self, code: Callable[[], Mapping[str, object]]) -> None:
        self.code = code
        self._settings: Settings | None = None
        self.registry = Registry()
        self.handlers = Handlers(self.registry)
        self.listeners = Listeners()
        self.connections = Connections(self.current_settings)
        self.connections.own |= own_drivers(self)
        self.pipeline = Pipeline()
        self.limits = DeclaredLimits()
        self.dispatcher = Dispatcher(self.current_settings, self.connections, self.listeners, self.pipeline, self)

    @property
    def settings(self) -> Settings:
        """All settings, read on first use. Raises ConfigError."""
        if self._settings is None:
            from qd import config  # loaded only when the settings are needed

            self._settings = config.load(code=self.code())
        return self._settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        self._settings = settings

    def forget_settings(self) -> None:
        """The next use reads them again."""
        self._settings = None

    def current_settings(self) -> Settings:
        return self._settings or self.settings

    @contextmanager
    def using(self, settings: Settings) -> Iterator[None]:
        """The settings of the app within the block."""
        before, self._settings = self._settings, settings
        try:
            yield
        finally:
            self._settings = before

    # -- qd.jobs.context.Backing

    def connection(self, name: str) -> Connector:
        """This thread's connection. name: "" is the default one."""
        return self.connections.get(name or None)

    def limit(self, name: str) -> Limit:
        return self.limits.named(name)


def own_drivers(services: Services) -> dict[str, Factory]:
    """sync and failover. Each is loaded when a connection of it is used."""
    shared, lock = list["Shared"](), threading.Lock()

    def sync(settings: Settings, at: ConnectionSettings, who: ClientIdentity) -> Connector:
        from qd.dispatch.sync import Shared, SyncQueue

        with lock:
            if not shared:
                shared.append(Shared(services))
        return cast(Connector, SyncQueue(shared[0], settings, at))

    def failover(settings: Settings, at: ConnectionSettings, who: ClientIdentity) -> Connector:
        from qd.drivers.send_only import open_queue

        return open_queue(settings, at, who, lambda name, error: services.listeners.emit(QueueFailedOver(name, error)))

    return {"sync": sync, "failover": failover}


def extension(driver: str, make: Callable[..., object], known: Mapping[str, object]) -> Factory:
    """The factory of connections of an app's own driver. Raises DeclarationError if the name is taken."""
    from qd.drivers.send_only import SendingOnly
    from qd.options.drivers import DRIVERS

    if driver in DRIVERS or driver in known:
        raise DeclarationError(f"app.extend(): there is already a driver '{driver}', choose another name")
    if not callable(make):
        way = "give a function of the connection's settings"
        raise DeclarationError(f"app.extend('{driver}', ...): {make!r} is not callable; {way}")

    def open_connection(settings: Settings, at: ConnectionSettings, who: ClientIdentity) -> Connector:
        takes_identity = takes_two(make)
        if who.token and not takes_identity:
            way = "for workers, its factory must also take the client's identity: factory(settings, who)"
            raise ConfigError(f"driver '{driver}' of connection '{at.name}' only sends: {way}")
        made = make(at, who) if takes_identity else make(at)
        check(driver, made, at, works=bool(who.token))
        if isinstance(made, SendingOnly) and made.whole is None:
            made.whole = settings  # locks and limits are on the control connection
        return made  # type: ignore[return-value]

    return open_connection


def takes_two(make: Callable[..., object]) -> bool:
    """Whether it takes the identity of the client: a worker or keeper, whose token and slot are in every reservation."""
    try:
        inspect.signature(make).bind("settings", "who")
    except (TypeError, ValueError):
        return False
    return True


def check(driver: str, made: object, at: ConnectionSettings, *, works: bool) -> None:
    """Raises ConfigError naming what the connection lacks. works: it is for a worker or keeper."""
    from qd.drivers.send_only import SendingOnly

    if isinstance(made, SendingOnly):
        lacks = ["the methods of a worker, it only sends"] if works else []
    else:
        wanted = [*vars(Connector), *(vars(KeeperConnector) if works else ())]
        has = dir(made)
        lacks = [name for name in wanted if not name.startswith("_") and name not in has]
    if lacks:
        raise ConfigError(
            f"driver '{driver}' of connection '{at.name}' made {type(made).__qualname__}, which is no connector: it lacks "
            f"{', '.join(lacks)} (see qd.drivers.base.{'KeeperConnector' if works else 'Connector'})"
        )
