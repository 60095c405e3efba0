"""Drivers that belong to an app: sync and failover, which need its jobs and listeners, and those of app.extend."""

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
    """sync and failover. Each is loaded when a connection of it is used."""
    shared, lock = list["Shared"](), threading.Lock()

    def sync(settings: Settings, at: ConnectionSettings, who: ClientIdentity) -> Connector:
        from qd.dispatch.sync import Shared, open_queue

        with lock:
            if not shared:
                shared.append(Shared(services))
        return open_queue(shared[0], settings, at)

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
        raise DeclarationError(
            f"app.extend('{driver}', ...): {make!r} is not callable; give a function of the connection's settings"
        )

    def open_connection(settings: Settings, at: ConnectionSettings, who: ClientIdentity) -> Connector:
        takes_identity = takes_two(make)
        if who.token and not takes_identity:
            raise ConfigError(
                f"driver '{driver}' of connection '{at.name}' only sends: for workers, its factory must also take the "
                "client's identity: factory(settings, who)"
            )
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
    from qd.drivers.base import KeeperConnector
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
