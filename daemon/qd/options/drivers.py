"""The drivers of qd. Modules are strings: a driver is imported on use, and only programs that use it need its library.
An app's own drivers (app.extend) are not in this table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import NamedTuple


class Driver(NamedTuple):
    """open, keyspace, url, warnings and native are "module:function", client is a module, "" if the driver has none.

    schemes     kind of url -> the extra that installs its library, "" if it needs none. A database url may also name the
                library, as in SQLAlchemy: mysql+pymysql://
    libraries   library -> the extra that installs it
    open        a Factory (drivers/base.py). "": only an app opens it
    client      loads the server's library, if `open` does so at its first connection only
    keyspace    opens its keyspace. A driver without one stores jobs only; everything else is on the control connection
    url         checks a url without any library and raises ConfigError
    warnings    checks its queues before any work, see connections.server_warnings
    native      opens it for the tasks of an event loop, see loops.py. "" or None as the result: threads are used
    bare        why no worker can use it; such a driver has no server of its own
    """

    schemes: Mapping[str, str] = {}
    libraries: Mapping[str, str] = {}
    open: str = ""
    client: str = ""
    keyspace: str = ""
    url: str = ""
    warnings: str = ""
    native: str = ""
    bare: str = ""


SYNC = "sync"
REDIS = ("redis", "rediss", "unix", "embedded", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
DRIVERS: Mapping[str, Driver] = {
    "redis": Driver(
        schemes=dict.fromkeys(REDIS, ""),
        open="qd.drivers.redis_driver:open_queue",
        client="qd.drivers.redis.client",
        keyspace="qd.drivers.redis_driver:open_space",
        url="qd.drivers.redis_driver:parsed",
        native="qd.drivers.redis_driver:open_native",
    ),
    "database": Driver(
        schemes={
            "postgresql": "postgres",
            "postgres": "postgres",
            "mysql": "mysql",
            "mariadb": "mysql",
            "sqlite": "database",
        },
        libraries={"sqlalchemy": "database", "lupa": "database", "psycopg": "postgres", "pymysql": "mysql"},
        open="qd.drivers.database.queue:open_queue",
        keyspace="qd.drivers.database.queue:open_space",
        url="qd.drivers.urls:check",
        warnings="qd.drivers.database.queue:start_warnings",
    ),
    "beanstalkd": Driver(
        schemes={"beanstalkd": "beanstalkd"},
        libraries={"greenstalk": "beanstalkd"},
        open="qd.drivers.beanstalkd.broker:open_queue",
        url="qd.drivers.urls:BeanstalkdUrl",
        warnings="qd.drivers.beanstalkd.broker:start_warnings",
    ),
    "sqs": Driver(
        schemes={"sqs": "sqs"},
        libraries={"boto3": "sqs", "botocore": "sqs"},
        open="qd.drivers.sqs.queue:open_queue",
        url="qd.drivers.urls:SqsUrl",
        warnings="qd.drivers.sqs.broker:start_warnings",
    ),
    SYNC: Driver(bare="it runs each job where it is dispatched"),
    "null": Driver(open="qd.drivers.send_only:open_null", bare="it takes jobs and forgets them"),
    "failover": Driver(open="qd.drivers.send_only:open_queue", bare="it is for sending"),
}
SCHEMES = {scheme: word for word, driver in DRIVERS.items() for scheme in driver.schemes}
"""Kind of url -> its driver."""
BARE = {word: driver.bare for word, driver in DRIVERS.items() if driver.bare}
"""Drivers without a server of their own -> why no worker can use one."""
OPENED_WITHOUT_APP = tuple([word for word, driver in DRIVERS.items() if driver.open])
WITH_KEYSPACE = tuple([word for word, driver in DRIVERS.items() if driver.keyspace])
BORROWERS = tuple([word for word, driver in DRIVERS.items() if not (driver.keyspace or driver.bare)])
"""Drivers that keep leases, failed jobs and delays on the control connection."""
SEVERAL = ("redis",)
"""Drivers whose workers can have a concurrency above 1: they keep suspects."""
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):")


def scheme_of(url: str) -> str:
    """The kind of a url, as in SCHEMES: `mysql` of mysql+pymysql://. "" if the text is no url."""
    match = _SCHEME.match(url)
    kind = match[1] if match else ""
    base = kind.partition("+")[0]
    return base if SCHEMES.get(base) == "database" else kind


def extra_of_url(url: str) -> str:
    """The extra that installs the library for a url, "" if it needs none."""
    scheme = scheme_of(url)
    return DRIVERS[SCHEMES[scheme]].schemes[scheme] if scheme in SCHEMES else ""


def missing_library(url: str) -> str:
    """The first library that a url needs and that is not installed, "" if none is missing. None is imported."""
    extra = extra_of_url(url)
    known = DRIVERS[SCHEMES[scheme_of(url)]].libraries if extra else {}
    needed = [library for library, brings in known.items() if brings in (extra, "database")]  # all databases need these
    return next((library for library in needed if find_spec(library) is None), "")


def extra_of_library(name: str) -> str:
    """The extra that installs a library, "" for the library of no driver."""
    return next((driver.libraries[name] for driver in DRIVERS.values() if name in driver.libraries), "")
