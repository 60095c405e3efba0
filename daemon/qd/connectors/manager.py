"""Every driver by its word, loaded when it is used: how a connection, its keyspace and its url are opened, and what it is
asked before any work. Who sends asks connections.py; commands and the processes of `qd work` ask here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from qd.connectors.base import NONE, Connector, Limits
from qd.connectors.reserver import Factory, Reserver
from qd.errors import ConfigError
from qd.options.kinds import BARE, scheme_of
from qd.units import did_you_mean

if TYPE_CHECKING:
    from qd.config import ConnectionSettings, Settings
    from qd.connectors.keeping import Keeping
    from qd.connectors.keyspace.base import Keyspace


DRIVERS: Mapping[str, str] = {
    "redis": "qd.connectors.redis.opening:open_queue",
    "beanstalkd": "qd.connectors.beanstalkd.opening:open_queue",
    "sqs": "qd.connectors.sqs.opening:open_queue",
    "database": "qd.connectors.database.opening:open_queue",
    "null": "qd.connectors.null:open_queue",
    "failover": "qd.connectors.failover:open_queue",
}
"""driver -> module:function, a Factory; loaded when it is used."""
MEMORIES: Mapping[str, str] = {
    "redis": "qd.connectors.redis.opening:open_space",
    "database": "qd.connectors.database.opening:open_space",
}
"""Of those with a keyspace of their own -> module:function that opens it."""
URLS: Mapping[str, str] = {
    "redis": "qd.connectors.redis.opening:check",
    "beanstalkd": "qd.connectors.beanstalkd.target:Target",
    "sqs": "qd.connectors.sqs.address:Address",
    "database": "qd.connectors.database.target:check",
}
"""driver -> module:function that reads its url, and raises ConfigError for a wrong one; no library is needed for that."""
LOOKS: Mapping[str, str] = {
    "database": "qd.connectors.database.opening:look",
    "sqs": "qd.connectors.sqs.start:look",
}
"""Of those that know more about their queues before any work -> module:function, see what_is_odd."""
NONE_OWN: Mapping[str, Factory] = MappingProxyType({})
EXTRAS: Mapping[str, str] = {
    "sqlalchemy": "database",
    "lupa": "database",
    "psycopg": "postgres",
    "pymysql": "mysql",
    "greenstalk": "beanstalkd",
    "boto3": "sqs",
    "botocore": "sqs",
}
"""Libraries of drivers -> the extra that brings them."""
SYNC = "sync"  # in no table: it runs jobs, so an app brings it with it


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
    if found.driver in DRIVERS:
        return loaded(DRIVERS[found.driver])
    known = list(dict.fromkeys([*DRIVERS, SYNC, *own]))
    if found.driver == SYNC:
        raise ConfigError(
            f"connection '{found.name}' (sync) runs jobs in the program that sends them: only an app opens it"
        )
    near = did_you_mean(found.driver, known)
    raise ConfigError(
        f"unknown driver '{found.driver}' of connection '{found.name}'{near} (known: {', '.join(known)}; an app has its own "
        f'by app.extend("{found.driver}", factory))'
    )


def cannot_of(settings: Settings, name: str, own: Mapping[str, Factory] = NONE_OWN) -> Limits:
    """What the connection called `name` cannot do. Nothing is connected, and no server started. Raises ConfigError."""
    if (settings.connection(name).url or "").startswith("embedded:"):
        return NONE
    queue = open_queue(settings, name, own=own)
    try:
        return queue.limits
    finally:
        queue.close()


def check_ticks(settings: Settings, name: str, own: Mapping[str, Factory] = NONE_OWN) -> None:
    """Raises ConfigError where the connection called `name` takes no job of the schedule. Nothing is connected, and no
    server started."""
    if (settings.connection(name).url or "").startswith("embedded:"):
        return
    queue = open_queue(settings, name, own=own)
    try:
        _ = queue.ticks
    finally:
        queue.close()


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
    if found.driver in MEMORIES:
        opened = loaded(MEMORIES[found.driver])
        with extras_named():
            space: Keyspace = opened(located(found, settings), title, patience)
        return space, found.prefix
    control = settings.connection(settings.control)
    if control.driver not in MEMORIES:
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
    if found.driver not in MEMORIES and (control is None or control.driver not in MEMORIES):
        raise ConfigError(no_memory(found.name, found.driver))


def check_memory(settings: Settings) -> None:
    """Raises ConfigError: what masters share, and what stands beside the jobs of many connections, has no place."""
    control = settings.connection(settings.control)
    if control.driver not in MEMORIES:
        raise ConfigError(no_memory(control.name, control.driver))


def no_memory(name: str, driver: str) -> str:
    keeps = "nothing" if driver in BARE else "jobs and nothing else"
    return (
        f"connection '{name}' ({driver}) keeps {keeps}: name a connection with driver "
        f"{' or '.join(MEMORIES)} as control of [qd], for pauses, locks and failed jobs"
    )


def loaded(where: str) -> Callable[..., Any]:
    """Raises ConfigError naming the extra when the driver's library is not installed."""
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
        extra = EXTRAS.get(missing.lower())
        if extra is None:
            raise
        raise ConfigError(f"the library '{missing}' is not installed: pip install 'qd-worker[{extra}]'") from None


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
    look = LOOKS.get(found.driver)
    with extras_named():  # a database's driver is loaded by its first call
        return loaded(look)(found, queues, settings.work.tries) if look else []


def check_url(found: ConnectionSettings) -> None:
    """Raises ConfigError when its url cannot be used: its port, its options, its certificates. Nothing is connected."""
    if found.driver not in URLS or (found.url or "").startswith("embedded:"):
        return
    try:
        loaded(URLS[found.driver])(found.url or "")
    except ConfigError as error:
        raise ConfigError(f"url of connection '{found.name}' ({found.url_origin}): {error}") from None
