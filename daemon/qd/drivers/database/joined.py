"""`with app.transaction(session):` what is sent inside is written by the caller's own connection, in the transaction that is
open there: the jobs exist exactly if it commits, and nobody sees them before.

    Joined   a Link over that connection: it begins nothing, commits nothing, closes nothing
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import sqlalchemy as sql
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session, scoped_session

from qd.drivers.base import Connector
from qd.drivers.connections import Connections
from qd.drivers.database.connection import DatabaseConnection
from qd.drivers.database.dialects import Again, Conflict, unix_us
from qd.drivers.database.keyspace import DatabaseSpace
from qd.drivers.database.queue import DatabaseQueue
from qd.drivers.database.sql import JobSql
from qd.drivers.database.table import JobRows
from qd.errors import ConfigError

WHERE = {  # one row that says which database of which server this is, whatever it is called
    "postgresql": "SELECT oid, pg_postmaster_start_time() FROM pg_database WHERE datname = current_database()",
    "mysql": "SELECT DATABASE(), @@hostname, @@port, @@datadir",
    "sqlite": "SELECT file FROM pragma_database_list WHERE name = 'main'",
}
PART = 2  # the depth of what is no transaction of its own, whatever it does
_places: WeakKeyDictionary[sql.Engine, tuple[object, ...]] = WeakKeyDictionary()


class Joined(DatabaseConnection):
    """link: our own, to the same database. session: it is asked for its connection each time, for it may be inside of a
    savepoint by then. Several threads may send at once (`adispatch`): one step after the other."""

    def __init__(self, link: DatabaseConnection, session: Any) -> None:
        super().__init__(
            link.url.render_as_string(hide_password=False), connect_timeout=link.connect_timeout, timeout=link.timeout
        )
        self.depth = PART
        self._session, self._turn = session, RLock()
        self._clocked: Any = None  # the driver's connection that knows the clock

    def _ready(self) -> sql.Connection:
        connection = connection_of(self._session)
        driven: Any = connection.connection.dbapi_connection
        if self.kind == "sqlite" and driven is not self._clocked:
            driven.create_function("qd_clock", 0, unix_us)
            self._clocked = driven
        if self.kind == "sqlite" and not getattr(connection.connection.driver_connection, "in_transaction", True):
            self._begin_for(connection)
        return connection

    def _begin_for(self, connection: sql.Connection) -> None:
        """Python's driver begins before a row is written, and not before a savepoint: the end of that would commit."""
        try:
            connection.exec_driver_sql("BEGIN IMMEDIATE").close()
        except BaseException as error:
            self._failed(error)

    @contextmanager
    def transaction(self, *, said: bool = False) -> Iterator[None]:
        with self._turn:
            self.broken = False
            yield

    def execute(self, statement: sql.Executable, values: Any = None) -> sql.CursorResult[Any]:
        """A transaction of the caller may read as of its beginning. MySQL reads the present with a locking read. PostgreSQL
        cannot: there a row that came meanwhile is to be a serialization failure, which it raises for ON CONFLICT only.
        The step holds the locks of its names, so there is no other conflict."""
        if self.kind == "mysql" and isinstance(statement, sql.Select):
            statement = statement.with_for_update(read=True)
        if self.kind == "postgresql" and isinstance(statement, sql.Insert):
            statement = postgresql.insert(statement.table).on_conflict_do_nothing()
        with self._turn:
            return super().execute(statement, values)

    def _failed(self, error: BaseException, *, connecting: bool = False) -> NoReturn:
        try:
            super()._failed(error, connecting=connecting)
        except Again as ours:
            said = f"roll this transaction back and run it again: {ours}"
            raise Conflict(said, getattr(error, "orig", None)) from None

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
    if commits_each(connection):
        raise ConfigError(
            f"the session for connection '{queue.settings.name}' commits each statement by itself (AUTOCOMMIT): it has no"
            " transaction to send in"
        )
    with connections.lent(queue.settings.name, inside(queue, session)):
        yield


def connection_of(session: Any) -> sql.Connection:
    if isinstance(session, sql.Connection):
        return session
    sync = getattr(session, "sync_session", session)  # of an AsyncSession, inside of run_sync
    if isinstance(sync, Session | scoped_session):
        return sync.connection()
    raise ConfigError(f"{type(session).__name__} is neither a Session nor a Connection of SQLAlchemy")


def commits_each(connection: sql.Connection) -> bool:
    """As its driver tells it."""
    if not connection.in_transaction():
        connection.begin()  # as its first statement would
    driven: Any = connection.connection.driver_connection
    if hasattr(driven, "in_transaction"):  # of SQLite: None where nobody begins before a row is written
        return driven.isolation_level is None and not driven.in_transaction
    told = driven.get_autocommit() if hasattr(driven, "get_autocommit") else getattr(driven, "autocommit", False)
    return bool(told)


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


def inside(queue: DatabaseQueue, session: Any) -> Connector:
    """The same queue, in that transaction."""
    link, at = Joined(queue.link, session), queue.settings
    return DatabaseQueue(at, DatabaseSpace(link, JobRows(JobSql(link.server, at.table), at.table), prefix=at.prefix))
