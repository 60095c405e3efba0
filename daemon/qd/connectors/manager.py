"""How a connection and its keyspace are opened, by its name, and what is looked at before any work. Who sends asks
connections.py; commands and the processes of `qd work` ask here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from qd.config.settings import provider_of
from qd.connectors.base import NONE, Connector, Limits
from qd.connectors.drivers import extras_named, loaded
from qd.connectors.reserver import Factory, Reserver
from qd.errors import ConfigError
from qd.options.drivers import BARE, DRIVERS, OPENED_WITHOUT_APP, SYNC, WITH_KEYSPACE, scheme_of
from qd.units import did_you_mean

if TYPE_CHECKING:
    from qd.config import ConnectionSettings, Settings
    from qd.connectors.keeping import Keeping
    from qd.connectors.keyspace.base import Keyspace


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
    who = Reserver(token, slot, turns, title, patience, own)
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


def cannot_of(settings: Settings, name: str, own: Mapping[str, Factory] = NONE_OWN) -> Limits:
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
) -> Keeping:
    """The same for the keeper of the master called `token`."""
    return cast("Keeping", open_queue(settings, name, token=token, title=title, own=own))


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
    from qd import embedded  # only a project that has one

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
    from qd.connectors.redis.urls import check_provider  # only where there is one

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
