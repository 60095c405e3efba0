"""Drivers that an app brings with it: sync and failover, which need its jobs and its listeners, and those of app.extend."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from qd.drivers.base import Connector
from qd.errors import ConfigError, DeclarationError
from qd.events import QueueFailedOver

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings, Settings
    from qd.dispatch.services import Services
    from qd.dispatch.sync import Shared
    from qd.drivers.base import ClientIdentity, Factory


def own_drivers(services: Services) -> dict[str, Factory]:
    """Each is loaded when a connection of it is used."""
    made, lock = list["Shared"](), threading.Lock()

    def sync(settings: Settings, at: ConnectionSettings, who: ClientIdentity) -> Connector:
        from qd.dispatch.sync import Shared, open_queue

        with lock:
            if not made:
                made.append(Shared(services))
        return open_queue(made[0], settings, at)

    def failover(settings: Settings, at: ConnectionSettings, who: ClientIdentity) -> Connector:
        from qd.drivers.send_only import open_queue

        return open_queue(settings, at, who, lambda name, error: services.listeners.emit(QueueFailedOver(name, error)))

    return {"sync": sync, "failover": failover}


def extension(driver: str, make: Callable[..., object], known: Mapping[str, object]) -> Factory:
    """What opens connections of the app's own driver. Raises DeclarationError: there is one of that word."""
    from qd.drivers.send_only import SendingOnly
    from qd.options.drivers import DRIVERS

    if driver in DRIVERS or driver in known:
        raise DeclarationError(f"app.extend(): there is a driver '{driver}' already, choose another word")
    if not callable(make):
        raise DeclarationError(
            f"app.extend('{driver}', ...): {make!r} cannot be called with the settings of a connection"
        )

    def open_it(settings: Settings, at: ConnectionSettings, who: ClientIdentity) -> Connector:
        told = takes_two(make)
        if who.token and not told:
            way = "its factory is to take who asks, too: factory(settings, who)"
            raise ConfigError(f"driver '{driver}' of connection '{at.name}' only sends: to be worked on, {way}")
        made = make(at, who) if told else make(at)
        check(driver, made, at, works=bool(who.token))
        if isinstance(made, SendingOnly) and made.whole is None:
            made.whole = settings  # what is kept beside its jobs stands on the control connection
        return made  # type: ignore[return-value]

    return open_it


def takes_two(make: Callable[..., object]) -> bool:
    """Whether it wants to know who reserves: a worker or a keeper, whose token and slot stand in every reservation."""
    try:
        inspect.signature(make).bind("settings", "who")
    except (TypeError, ValueError):
        return False
    return True


def check(driver: str, made: object, at: ConnectionSettings, *, works: bool) -> None:
    """Raises ConfigError naming what it lacks. works: a worker or keeper asks."""
    from qd.drivers.base import KeeperConnector
    from qd.drivers.send_only import SendingOnly

    if isinstance(made, SendingOnly):
        lacks = ["the calls of a worker, it only sends"] if works else []
    else:
        wanted = [*parts_of(Connector), *(parts_of(KeeperConnector) if works else ())]
        there = dir(made)
        lacks = [name for name in wanted if name not in there]
    if lacks:
        what, base = (
            type(made).__qualname__,
            "qd.drivers.base.Keeping" if works else "qd.drivers.base.Connector",
        )
        raise ConfigError(
            f"driver '{driver}' of connection '{at.name}' made {what}, which is no connector: it lacks {', '.join(lacks)} "
            f"(see {base})"
        )


def parts_of(contract: type) -> list[str]:
    return [name for name in vars(contract) if not name.startswith("_")]
