"""The drivers, a row each. One is loaded when it is used: a program without it needs no library of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

from qd.errors import ConfigError


class Driver(NamedTuple):
    """Each is "module:function". open: a Factory (reserver.py). memory: opens the keyspace of its own, "" where it has none.
    url: reads a url, and raises ConfigError for a wrong one; no library is needed for that. look: what it knows of its
    queues before any work, see manager.what_is_odd."""

    open: str
    memory: str = ""
    url: str = ""
    look: str = ""


DRIVERS: Mapping[str, Driver] = {
    "redis": Driver(
        open="qd.connectors.redis.opening:open_queue",
        memory="qd.connectors.redis.opening:open_space",
        url="qd.connectors.redis.opening:check",
    ),
    "beanstalkd": Driver(
        open="qd.connectors.beanstalkd.opening:open_queue",
        url="qd.connectors.beanstalkd.target:Target",
        look="qd.connectors.beanstalkd.start:look",
    ),
    "sqs": Driver(
        open="qd.connectors.sqs.opening:open_queue",
        url="qd.connectors.sqs.address:Address",
        look="qd.connectors.sqs.start:look",
    ),
    "database": Driver(
        open="qd.connectors.database.opening:open_queue",
        memory="qd.connectors.database.opening:open_space",
        url="qd.connectors.database.target:check",
        look="qd.connectors.database.opening:look",
    ),
    "null": Driver(open="qd.connectors.null:open_queue"),
    "failover": Driver(open="qd.connectors.failover:open_queue"),
}
MEMORIES = tuple([word for word, driver in DRIVERS.items() if driver.memory])
"""Those with a keyspace of their own."""
BORROWERS = ("beanstalkd", "sqs")  # they keep leases, failed jobs and delays on the control connection
SYNC = "sync"  # in no table: it runs jobs, so an app brings it with it
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
