"""`with app.transaction(session):` jobs sent inside are written by the caller's own connection, in its open transaction:
they exist only if it commits, and no worker sees them before.

    JoinedConnection   a DatabaseConnection over the caller's; it begins, commits and closes nothing
    django.py          Django's connection as one of SQLAlchemy
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
from qd.drivers.database.django import DjangoTransaction, transaction_of
from qd.drivers.database.keyspace import DatabaseKeyspace
from qd.drivers.database.queue import DatabaseQueue
from qd.errors import ConfigError

WHERE = {  # one row that identifies the database and its server, whatever their names
    "postgresql": "SELECT oid, pg_postmaster_start_time() FROM pg_database WHERE datname = current_database()",
    "mysql": "SELECT DATABASE(), @@hostname, @@port, @@datadir",
    "sqlite": "SELECT file FROM pragma_database_list WHERE name = 'main'",
}
PART = 2  # a depth that never becomes a transaction of its own
_places: WeakKeyDictionary[sql.Engine, tuple[object, ...]] = WeakKeyDictionary()


class JoinedConnection(DatabaseConnection):
    """ours: our own connection to the same database. session: its connection is read for each call, since it may be inside
    a savepoint by then. Several threads may send at once (`adispatch`); their steps run one after the other."""

    def __init__(self, ours: DatabaseConnection, session: Any) -> None:
        url = ours.url.render_as_string(hide_password=False)
        super().__init__(url, connect_timeout=ours.connect_timeout, timeout=ours.timeout)
        self.depth = PART
        self._session, self._lock = session, RLock()
        self._with_clock: Any = None  # the driver's connection that has qd_clock()

    def _ready(self) -> sql.Connection:
        connection = connection_of(self._session)
        raw: Any = connection.connection.dbapi_connection
        if self.kind == "sqlite" and raw is not self._with_clock:
            raw.create_function("qd_clock", 0, unix_us)
            self._with_clock = raw
        if self.kind == "sqlite" and not getattr(connection.connection.driver_connection, "in_transaction", True):
            try:  # Python's driver begins before a write, but not before a savepoint, whose release would then commit
                connection.exec_driver_sql("BEGIN IMMEDIATE").close()
            except BaseException as error:
                self._failed(error)
        return connection

    @contextmanager
    def transaction(self, *, explicit: bool = False) -> Iterator[None]:
        with self._lock:
            self.broken = False
            yield

    def execute(self, statement: sql.Executable, values: Any = None) -> sql.CursorResult[Any]:
        """The caller's transaction may read a snapshot from its beginning. In MySQL a locking read returns current rows. In
        PostgreSQL nothing does, so a row inserted meanwhile must be a serialization failure, which it raises for ON
        CONFLICT only. The step has locked its names, so there is no other conflict."""
        if self.kind == "mysql" and isinstance(statement, sql.Select):
            statement = statement.with_for_update(read=True)
        if self.kind == "postgresql" and isinstance(statement, sql.Insert):
            statement = postgresql.insert(statement.table).on_conflict_do_nothing()
        with self._lock:
            return super().execute(statement, values)

    def _failed(self, error: BaseException, *, connecting: bool = False) -> NoReturn:
        if isinstance(self._session, DjangoTransaction):  # an error caught inside its atomic() block rolls it back, too
            self._session.django.needs_rollback = self._session.django.in_atomic_block
        try:
            super()._failed(error, connecting=connecting)
        except Again as ours:
            text = f"roll this transaction back and run it again: {ours}"
            raise Conflict(text, getattr(error, "orig", None)) from None

    def patience(self, connect: float, answer: float) -> None: ...

    def close(self) -> None: ...


@contextmanager
def joined(connections: Connections, session: Any, name: str | None) -> Iterator[None]:
    """session: a Session or Connection of SQLAlchemy, or a connection of Django. Raises ConfigError if the connection `name`
    (None: the default) is not in its database."""
    if type(session).__module__.startswith("django.") or hasattr(session, "in_atomic_block"):
        session = transaction_of(session)
    connection = connection_of(session)
    queue = connections.get(name)
    if not isinstance(queue, DatabaseQueue):
        way = "it cannot send inside a transaction; `using(after_commit=True)` sends after the commit"
        raise ConfigError(f"connection '{queue.settings.name}' is not a database ({queue.settings.driver}): {way}")
    same_place(queue, connection)
    if commits_each(connection):
        way = "commits each statement separately (AUTOCOMMIT): it has no transaction to send in"
        raise ConfigError(f"the session for connection '{queue.settings.name}' {way}")
    with connections.lent(queue.settings.name, inside(queue, session)):
        yield


def connection_of(session: Any) -> sql.Connection:
    if isinstance(session, sql.Connection):
        return session
    sync = getattr(session, "sync_session", session)  # of an AsyncSession, inside run_sync
    if isinstance(sync, Session | scoped_session | DjangoTransaction):
        return sync.connection()
    kinds = "a Session or Connection of SQLAlchemy nor Django's connection"
    raise ConfigError(f"{type(session).__name__} is neither {kinds}")


def commits_each(connection: sql.Connection) -> bool:
    """Whether its driver is in autocommit mode."""
    if not connection.in_transaction():
        connection.begin()  # as the first statement would
    raw: Any = connection.connection.driver_connection
    if hasattr(raw, "in_transaction"):  # SQLite; None: autocommit
        return raw.isolation_level is None and not raw.in_transaction
    return bool(raw.get_autocommit() if hasattr(raw, "get_autocommit") else getattr(raw, "autocommit", False))


def same_place(queue: DatabaseQueue, connection: sql.Connection) -> None:
    """Raises ConfigError if the session is in another database."""
    kind, ours = connection.engine.url.get_backend_name().replace("mariadb", "mysql"), queue.connection
    there = _places.get(connection.engine)
    if there is None and kind == ours.kind:
        there = _places[connection.engine] = tuple(connection.exec_driver_sql(WHERE[kind]).one())
    if there is None or kind != ours.kind or tuple(ours.query(WHERE[kind]).one()) != there:
        place = f"the database of connection '{queue.settings.name}' ({ours.place})"
        raise ConfigError(f"the session is not in {place}: a transaction covers one database only")


def inside(queue: DatabaseQueue, session: Any) -> Connector:
    """The same queue, in the session's transaction."""
    connection, at = JoinedConnection(queue.connection, session), queue.settings
    return DatabaseQueue(at, DatabaseKeyspace(connection, at.table, at.prefix))


def in_django(queue: Connector, django: Any) -> Connector | None:
    """The same queue, in the open transaction of one of Django's connections; None for a queue in no database."""
    return inside(queue, transaction_of(django)) if isinstance(queue, DatabaseQueue) else None
