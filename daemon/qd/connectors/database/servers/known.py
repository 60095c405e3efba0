"""The kind of database that a url names."""

from __future__ import annotations

from importlib.util import find_spec

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from qd.connectors.database.servers.base import Server
from qd.connectors.database.servers.mysql import MySql
from qd.connectors.database.servers.postgres import Postgres
from qd.connectors.database.servers.sqlite import Sqlite
from qd.connectors.database.target import with_hosts_as_options
from qd.errors import ConfigError

EXTRA = {"postgresql": ("psycopg", "postgres"), "mysql": ("pymysql", "mysql")}  # kind -> driver, extra that brings it
SERVERS: dict[str, type[Server]] = {
    "postgresql": Postgres,
    "postgres": Postgres,
    "mysql": MySql,
    "mariadb": MySql,
    "sqlite": Sqlite,
}


def server_of(text: str) -> tuple[URL, Server]:
    """The url as SQLAlchemy takes it, with a driver, and what stands there. Raises ConfigError."""
    try:
        url = make_url(with_hosts_as_options(text))
    except (ArgumentError, ValueError):  # the second: its port, and what it says may be a part of the password
        raise ConfigError("not the url of a database (written postgresql://user:password@host:5432/name)") from None
    kind, _, driver = url.drivername.partition("+")
    if kind not in SERVERS:
        raise ConfigError(f"'{kind}' is no kind of database that qd knows (known: {', '.join(SERVERS)})")
    server = SERVERS[kind]()
    if server.kind == "sqlite":
        if url.database in (None, "", ":memory:"):
            raise ConfigError("a database in memory is each process's own: name a file (written sqlite:///jobs.sqlite)")
        return url.set(drivername="sqlite+pysqlite"), server
    module, extra = EXTRA[server.kind]
    if driver not in ("", module):
        raise ConfigError(f"qd reaches {kind} by {module}, not by '{driver}': write {kind}://... and nothing behind")
    if find_spec(module) is None:
        raise ConfigError(f"{kind} needs {module}: pip install 'qd-worker[{extra}]'")
    if server.kind == "mysql" and "charset" not in url.query:
        url = url.update_query_dict({"charset": "utf8mb4"})
    return url.set(drivername=f"{server.kind}+{module}"), server
