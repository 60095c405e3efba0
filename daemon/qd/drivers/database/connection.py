"""One connection to a database, through SQLAlchemy: what redis/connection.py is for Redis.

No call is ever repeated without the caller's knowledge, every wait is bounded, and every error is one of qd's, without a
password. Forks and threads do not share a connection. It commits each statement separately, except inside `transaction()`.

PostgreSQL notifies a waiter of a push (LISTEN); the other databases are polled in growing pauses. A PHP producer sends no
notification and a pooler may lose one, so a waiter on PostgreSQL also checks once a second.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from typing import Any, NoReturn, TypeVar

import sqlalchemy as sql
from sqlalchemy.pool import NullPool

from qd.drivers.base import Patience
from qd.drivers.database.dialects import Again, Statement, StatementResult, digest, error_of, run_together, server_of
from qd.errors import ConfigError, ConnectionLost, QdError, ServerRefused, Unreachable
from qd.process.descriptors import ready_of, socket_of

T = TypeVar("T")
AGAIN = 0.001, 0.02  # seconds of the random pause before a deadlocked transaction runs again
RESOLVE = 60.0  # seconds that resolving the host name may take
CHECK = 1.0  # seconds after which an idle connection is checked before use: the server may have closed it
NOTIFIED = 1.0  # seconds between two checks by a waiter that the server notifies
SHORTEST, LONGEST, GROWTH = 0.01, 0.3, 1.3  # seconds between two polls, and by which factor each pause grows
_left_behind: list[object] = []  # connections of a parent process, which only the parent may close


class DatabaseConnection(Patience):
    """Connects on first use. After ConnectionLost it is closed, and the next call connects again.

    timeout: seconds for each answer, connect_timeout: to connect; both are always finite.
    """

    def __init__(self, url: str, *, title: str = "", connect_timeout: float = 5.0, timeout: float = 5.0) -> None:
        self.url, self.server = server_of(url)
        self.place = place_of(self.url)
        self.title = title
        self.connect_timeout, self.timeout = connect_timeout, timeout
        self.depth = 0  # 1 inside a transaction
        self.broken = False  # the transaction has failed: it can only be ended
        self._connection: sql.Connection | None = None
        self._pid, self._used, self._checked_at = 0, 0.0, 0.0

    @property
    def kind(self) -> str:
        """postgresql, mysql (also for MariaDB) or sqlite."""
        return self.server.kind

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def raw(self) -> Any:
        """The driver's own connection. Connects."""
        return self._ready().connection.dbapi_connection

    # -- calls

    def execute(self, statement: sql.Executable, values: Any = None) -> sql.CursorResult[Any]:
        """values: a mapping, or a list of them for many rows. Raises ConnectionLost, ServerBusy or ServerRefused. After the
        last two nothing was done; in a transaction, nothing of it remains."""
        return self._call(lambda connection: connection.execute(statement, values))

    def query(self, text: str) -> sql.CursorResult[Any]:
        """Execute one statement of plain text."""
        text = text.replace("%", "%%") if self.kind != "sqlite" else text
        return self._call(lambda connection: connection.exec_driver_sql(text))

    def execute_together(self, statements: Sequence[Statement]) -> list[StatementResult]:
        """Several statements, in one round trip if there is a server. Raises the first error as `execute` does."""
        if self.kind != "sqlite":
            return self._call(lambda connection: run_together(connection, statements))
        results = [self.execute(statement, values) for statement, values in statements]
        return [StatementResult(list(each) if each.returns_rows else [], each.rowcount) for each in results]

    def _call(self, act: Callable[[sql.Connection], T]) -> T:
        connection = self._ready()
        try:
            result = act(connection)
        except BaseException as error:
            self._failed(error)
        self._answered()
        return result

    @contextmanager
    def transaction(self, *, explicit: bool = False) -> Iterator[None]:
        """Commit at the end, or roll back if the block raises. Inside another transaction it is a part of that one. Raises
        ConnectionLost at its end if the commit may or may not have happened. explicit: the block itself sends BEGIN and
        COMMIT, together with other statements."""
        if self.depth:
            yield
            return
        if not explicit:
            self._begin()
        self.depth, self.broken = 1, False
        try:
            yield
        except QdError:
            self._roll_back()
            raise
        except BaseException:
            self.close()
            raise
        else:
            if not explicit:
                self.query("COMMIT")
        finally:
            self.depth = 0

    def lock(self, names: list[bytes]) -> None:
        """Lock these names, waiting if needed, until the end of the transaction."""
        if names and (text := self.server.lock(names)):
            self.query(text).close()

    @property
    def dialect(self) -> sql.Dialect:
        return self._ready().dialect

    def lacks(self, tables: Iterable[sql.Table]) -> list[sql.Table]:
        """The tables that do not exist."""
        wanted = list(tables)
        schemas = {each.schema for each in wanted}
        there = self._call(lambda each: {name: sql.inspect(each).get_table_names(schema=name) for name in schemas})
        return [each for each in wanted if each.name not in there[each.schema]]

    def indexes(self, table: sql.Table) -> set[str]:
        found = self._call(lambda connection: sql.inspect(connection).get_indexes(table.name, table.schema))
        return {str(index["name"]) for index in found}

    def _begin(self) -> None:
        try:
            self.query(self.server.begin)
        except Again:
            raise
        except ConnectionLost:
            if self.connected or not self._used:
                raise
            self.query(self.server.begin)  # the server had closed the idle connection: nothing was done

    def _roll_back(self) -> None:
        if self._connection is None:
            return
        try:
            self.query("ROLLBACK")
        except QdError:
            self.close()

    def _failed(self, error: BaseException, *, connecting: bool = False) -> NoReturn:
        """Raises the error as one of ours."""
        if isinstance(error, UnicodeEncodeError):  # nothing was sent
            raise ServerRefused(f"the database at {self.place} keeps text: {error}") from None
        if not isinstance(error, sql.exc.SQLAlchemyError):
            self.close()
            raise error
        self.broken = True
        origin = getattr(error, "orig", None)
        kind = self.server.meaning(origin) if origin is not None else None
        if getattr(error, "connection_invalidated", False):
            kind = ConnectionLost
        if connecting:
            self.close()
            kind = Unreachable if kind is ConnectionLost else kind
        ours = error_of(kind, self.place, origin or error)
        # In these read-only states another server takes the writes, so the name must be resolved again.
        number = (getattr(origin, "args", None) or [0])[0]
        read_only = getattr(origin, "sqlstate", None) == "25006" or number in (1290, 1836)
        if kind is ConnectionLost or issubclass(kind or QdError, Unreachable) or read_only:
            self.close()
        raise ours from None

    def wait_notified(self, seconds: float, wake: int) -> bool:
        """Wait for a notification of PostgreSQL, for `seconds` at most. Returns False if the descriptor `wake` ended the
        wait. Raises ConnectionLost."""
        raw = self.raw
        if raw.notified():
            return True
        fds = ready_of([socket_of(raw), wake], seconds)
        if wake in fds:
            return False
        try:
            if fds:
                raw.notified()
        except Exception as error:
            self.close()
            raise ConnectionLost(f"the connection to the database at {self.place} broke: {error}") from None
        return True

    # -- the connection

    def _ready(self) -> sql.Connection:
        if self._connection is not None and self._pid != os.getpid():
            _left_behind.append(self._connection)
            self._connection, self.depth = None, 0
        if self._connection is not None and not self.depth and time.monotonic() - self._checked_at > CHECK:
            self._checked_at = time.monotonic()
            if self.server.has_ended(self._connection.connection.dbapi_connection):
                self.close()
        if self._connection is None:
            self._connect()
        assert self._connection is not None
        return self._connection

    def _connect(self) -> None:
        self.report_progress(RESOLVE)
        options = self.server.connect_args(self.connect_timeout, self.timeout, self.title)
        try:
            engine = sql.create_engine(self.url, poolclass=NullPool, connect_args=options, isolation_level="AUTOCOMMIT")
            sql.event.listen(
                engine, "do_connect", lambda _dialect, _record, args, more: self.server.connect(*args, **more)
            )
            self._connection = engine.connect()
            self._pid, self._checked_at = os.getpid(), time.monotonic()
            for statement in self.server.greeting(self.timeout):
                self._connection.exec_driver_sql(statement).close()
            self.server.patience(self._connection.connection.dbapi_connection, self.timeout)
        except (sql.exc.ArgumentError, TypeError) as error:  # TypeError: an unknown option of the driver
            self.close()
            raise ConfigError(f"the url of the database at {self.place}: {error}") from None
        except BaseException as error:
            self._failed(error, connecting=True)
        self._answered()

    def _answered(self) -> None:
        self._used = time.monotonic()
        self.report_progress()

    def patience(self, connect: float, answer: float) -> None:
        super().patience(connect, answer)
        if self._connection is not None and self._pid == os.getpid():
            self.server.patience(self._connection.connection.dbapi_connection, answer)

    def close(self) -> None:
        connection, self._connection, self.depth = self._connection, None, 0
        if connection is None:
            return
        if self._pid != os.getpid():
            _left_behind.append(connection)
            return
        with suppress(Exception):
            connection.invalidate()  # closes the driver's connection without asking the server for anything
        with suppress(Exception):
            connection.close()


def again(connection: DatabaseConnection, act: Callable[[], T]) -> T:
    """Run `act`, and run it again after a deadlock, which has rolled it back. Inside a transaction the error is raised at
    once, because the whole transaction must run again."""
    until = time.monotonic() + connection.timeout
    while True:
        try:
            return act()
        except Again:
            if connection.depth or time.monotonic() > until:
                raise
            time.sleep(random.uniform(*AGAIN))


def place_of(url: sql.URL) -> str:
    """The address without password and options."""
    kind, hosts, ports = url.get_backend_name(), url.query.get("host", ""), str(url.query.get("port", ""))
    if isinstance(hosts, str) and "," not in hosts:
        return sql.URL.create(kind, url.username, None, url.host, url.port, url.database).render_as_string()
    if isinstance(hosts, str):
        pairs = zip_longest(hosts.split(","), ports.split(","))
        hosts = tuple(f"{host}:{port}" if port else f"{host}" for host, port in pairs)
    user = sql.URL.create(kind, url.username).render_as_string()
    return f"{user}{','.join(hosts)}/{url.database or ''}"


def channel_of(name: bytes) -> str:
    """The channel of a push onto the list `name`."""
    return f"qd_{digest(name):x}"


def channel(table: str, queue: str) -> str:
    """The channel of a push into a queue."""
    return channel_of(f"jobs {table} {queue}".encode("utf-8", "surrogateescape"))


class Listening:
    """One waiter on one connection."""

    def __init__(self, connection: DatabaseConnection) -> None:
        self.connection = connection
        self._raw: Any = None  # the driver's connection that listens
        self._channels = set[str]()
        self._pause = SHORTEST

    def worked(self) -> None:
        """A job was found, so the next may come soon: poll quickly again."""
        self._pause = SHORTEST

    def wait(self, channels: set[str], seconds: float, wake: int) -> bool:
        """Wait until a channel is notified, `seconds` are over, or the next check is due. Returns False if the descriptor
        `wake` ended the wait. Raises ConnectionLost."""
        if self.connection.kind == "postgresql":
            if self._listen(channels):
                return True  # a push may have come before: check at once
            return self.connection.wait_notified(min(seconds, NOTIFIED), wake)
        pause, self._pause = min(seconds, self._pause), min(LONGEST, self._pause * GROWTH)
        return wake not in ready_of([wake], pause)

    def _listen(self, channels: set[str]) -> bool:
        """Listen to these channels. Returns whether one is new to this connection."""
        raw = self.connection.raw
        if raw is not self._raw:
            self._raw, self._channels = raw, set()
        new = channels - self._channels
        self._channels |= new  # before the calls: an alarm may interrupt right after one
        try:
            for each in sorted(new):
                self.connection.query(f'LISTEN "{each}"').close()
        except BaseException:
            self._raw = None  # listen to all of them again
            raise
        return bool(new)

    def end(self) -> None:
        """Stop listening."""
        if self._channels and self.connection.raw is self._raw:
            for each in sorted(self._channels):
                self.connection.query(f'UNLISTEN "{each}"').close()
        self._channels.clear()

    def abort(self) -> None:
        """Close the connection if it listens: after an error the server must not notify it any longer."""
        if self._channels:
            self.connection.close()
