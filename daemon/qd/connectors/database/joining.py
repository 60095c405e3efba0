"""`with app.transaction(session):` what is sent inside is written by the caller's own connection, in the transaction that is
open there: the jobs exist exactly if it commits, and nobody sees them before.

    Joined   a Link over that connection: it begins nothing, commits nothing, closes nothing
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sql

from qd.connectors.base import Connector
from qd.connectors.connections import Connections
from qd.connectors.database.jobrows import JobRows
from qd.connectors.database.jobsql import JobSql
from qd.connectors.database.keyspace import DatabaseSpace
from qd.connectors.database.link import Link
from qd.connectors.database.queue import DatabaseQueue
from qd.connectors.database.servers import unix_us
from qd.errors import ConfigError

WHERE = {  # one row that says which database of which server this is, whatever it is called
    "postgresql": "SELECT oid, pg_postmaster_start_time() FROM pg_database WHERE datname = current_database()",
    "mysql": "SELECT DATABASE(), @@hostname, @@port, @@datadir",
    "sqlite": "SELECT file FROM pragma_database_list WHERE name = 'main'",
}
_places: WeakKeyDictionary[sql.Engine, tuple[object, ...]] = WeakKeyDictionary()


class Joined(Link):
    """link: our own, to the same database."""

    def __init__(self, link: Link, connection: sql.Connection) -> None:
        super().__init__(
            link.url.render_as_string(hide_password=False), connect_timeout=link.connect_timeout, timeout=link.timeout
        )
        self.depth, self._connection = 1, connection  # it is a part of a transaction, whatever it does
        if self.kind == "sqlite":
            driven: Any = connection.connection.dbapi_connection
            driven.create_function("qd_clock", 0, unix_us)

    def _ready(self) -> sql.Connection:
        assert self._connection is not None
        return self._connection

    def _answered(self) -> None: ...

    def patience(self, connect: float, answer: float) -> None: ...

    def close(self) -> None: ...


@contextmanager
def joined(connections: Connections, session: Any, name: str | None) -> Iterator[None]:
    """session: a Session or Connection of SQLAlchemy. Raises ConfigError when the connection called `name` (None: the
    default) is not in that database."""
    connection = connection_of(session)
    queue = connections.get(name)
    if not isinstance(queue, DatabaseQueue):
        raise ConfigError(
            f"connection '{queue.settings.name}' is no database ({queue.settings.driver}): nothing can be sent inside a"
            " transaction there; `using(after_commit=True)` sends after it"
        )
    same_place(queue, connection)
    with connections.lent(queue.settings.name, inside(queue, connection)):
        yield


def connection_of(session: Any) -> sql.Connection:
    if isinstance(session, sql.Connection):
        return session
    sync = getattr(session, "sync_session", session)  # of an AsyncSession, inside of run_sync
    found = sync.connection() if callable(getattr(sync, "connection", None)) else None
    if isinstance(found, sql.Connection):
        return found
    raise ConfigError(f"{type(session).__name__} is neither a Session nor a Connection of SQLAlchemy")


def same_place(queue: DatabaseQueue, connection: sql.Connection) -> None:
    """Raises ConfigError."""
    kind, ours = connection.engine.url.get_backend_name().replace("mariadb", "mysql"), queue.link
    there = _places.get(connection.engine)
    if there is None and kind == ours.kind:
        there = _places[connection.engine] = tuple(connection.exec_driver_sql(WHERE[kind]).one())
    if there is None or tuple(ours.say(WHERE[kind]).one()) != there:
        raise ConfigError(
            f"the session is not in the database of connection '{queue.settings.name}' ({ours.place}): a transaction holds"
            " what is in one database only"
        )


def inside(queue: DatabaseQueue, connection: sql.Connection) -> Connector:
    """The same queue, in that transaction."""
    link, at = Joined(queue.link, connection), queue.settings
    return DatabaseQueue(at, DatabaseSpace(link, JobRows(JobSql(link.server, at.table), at.table), prefix=at.prefix))
