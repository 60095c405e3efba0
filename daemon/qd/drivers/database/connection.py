"""One connection to a database, through SQLAlchemy: what wire.py is for Redis.

No call is ever repeated behind the caller's back, every wait is bounded, and every error is one of qd's, without a
password. Forks and threads do not share a Link. The connection commits each statement by itself but inside
`transaction()`.

The wait for a push: PostgreSQL notifies who waits (LISTEN), the other databases are polled in growing pauses.

A PHP producer sends no notification, and a pooler may lose one, so a waiter on PostgreSQL looks once a second as well.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import zip_longest
from typing import Any, NoReturn, TypeVar

import sqlalchemy as sql
from sqlalchemy.pool import NullPool

from qd.drivers.base import Patience
from qd.drivers.database.dialects import Again, Said, Statement, digest, server_of, together, told
from qd.errors import ConfigError, ConnectionLost, QdError, ServerRefused, Unreachable
from qd.process.descriptors import ready_of

T = TypeVar("T")
AGAIN = 0.001, 0.02  # seconds of the pause before a step that met another in a deadlock runs again
NAMED = 60.0  # seconds that finding the address of a name may take
LOOK = 1.0  # seconds after which a connection is looked at before it is used: the server may have hung up
_left_behind: list[object] = []  # connections of a parent process: to end them is its right


class DatabaseConnection(Patience):
    """Connects on first use. After ConnectionLost it is closed, and the next call connects anew.

    timeout: seconds for each answer, connect_timeout: for a connection; both are always finite.
    """

    def __init__(self, url: str, *, title: str = "", connect_timeout: float = 5.0, timeout: float = 5.0) -> None:
        self.url, self.server = server_of(url)
        self.place = place_of(self.url)
        self.title = title
        self.connect_timeout, self.timeout = connect_timeout, timeout
        self.depth = 0  # of transactions
        self.broken = False  # nothing more can be done in this transaction, but to end it
        self._connection: sql.Connection | None = None
        self._pid, self._used, self._looked = 0, 0.0, 0.0

    @property
    def kind(self) -> str:
        """postgresql, mysql (MariaDB, too) or sqlite."""
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
        """values: a mapping, or a list of them for many. Raises ConnectionLost, ServerBusy or ServerRefused; outside of a
        transaction after ServerBusy and ServerRefused nothing was done, inside of one nothing stays."""
        connection = self._ready()
        try:
            with self.server.quiet() if isinstance(values, list) else nullcontext():
                result: sql.CursorResult[Any] = connection.execute(statement, values)
        except BaseException as error:
            self._failed(error)
        self._answered()
        return result

    def say(self, text: str) -> sql.CursorResult[Any]:
        """One statement as it is written."""
        connection = self._ready()
        try:
            result = connection.exec_driver_sql(text.replace("%", "%%") if self.kind != "sqlite" else text)
        except BaseException as error:
            self._failed(error)
        self._answered()
        return result

    def together(self, asked: Sequence[Statement]) -> list[Said]:
        """Several statements in one round trip, of MySQL and MariaDB. The first that fails is raised, as by `execute`."""
        connection = self._ready()
        try:
            said = together(connection, asked)
        except BaseException as error:
            self._failed(error)
        self._answered()
        return said

    @contextmanager
    def transaction(self, *, said: bool = False) -> Iterator[None]:
        """All that is executed inside comes to pass at its end, or nothing of it when it raises. Inside of another it is a
        part of that one. Raises ConnectionLost at its end when nobody knows whether it did. said: who is inside says its
        begin and its COMMIT together with other statements."""
        if self.depth:
            yield
            return
        if not said:
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
            if not said:
                self.say("COMMIT")
        finally:
            self.depth = 0

    def lock(self, names: list[bytes]) -> None:
        """Wait until nobody else has any of these names, and have them until the end of the transaction."""
        if names and (text := self.server.lock(names)):
            self.say(text).close()

    @property
    def dialect(self) -> sql.Dialect:
        return self._ready().dialect

    def lacks(self, tables: Iterable[sql.Table]) -> list[sql.Table]:
        """Those that are not there."""
        asked = list(tables)
        schemas = {each.schema for each in asked}
        there = {name: self._inspected(partial(names_in, schema=name)) for name in schemas}
        return [each for each in asked if each.name not in there[each.schema]]

    def indexes(self, table: sql.Table) -> set[str]:
        found = self._inspected(lambda found: found.get_indexes(table.name, table.schema))
        return {str(index["name"]) for index in found}

    def _inspected(self, ask: Callable[[sql.Inspector], Any]) -> Any:
        connection = self._ready()
        try:
            found = ask(sql.inspect(connection))
        except BaseException as error:
            self._failed(error)
        self._answered()
        return found

    def _begin(self) -> None:
        try:
            self.say(self.server.begin)
        except Again:
            raise
        except ConnectionLost:
            if self.connected or not self._used:
                raise
            self.say(self.server.begin)  # an idle connection that the server had closed: nothing was done

    def _roll_back(self) -> None:
        if self._connection is None:
            return
        try:
            self.say("ROLLBACK")
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
        ours = told(kind, self.place, origin or error)
        if kind is ConnectionLost or issubclass(kind or QdError, Unreachable) or self._read_only(origin):
            self.close()
        raise ours from None

    def _read_only(self, origin: Any) -> bool:
        """Another server is to be written to now: the name is to be resolved anew."""
        return getattr(origin, "sqlstate", None) == "25006" or (getattr(origin, "args", None) or [0])[0] in (1290, 1836)

    def rest(self, seconds: float, wake: int) -> bool:
        """Wait until the server tells something that this connection listens for, or `seconds` are over. False: the
        descriptor `wake` ended it. Raises ConnectionLost."""
        told = self.server.told(self.raw)
        if told:
            return True
        fds = ready_of([self.server.telling(self.raw), wake], seconds)
        if wake in fds:
            return False
        try:
            if fds:
                self.server.told(self.raw)
        except Exception as error:
            self.close()
            raise ConnectionLost(f"the connection to the database at {self.place} broke: {error}") from None
        return True

    # -- the connection

    def _ready(self) -> sql.Connection:
        if self._connection is not None and self._pid != os.getpid():
            _left_behind.append(self._connection)
            self._connection, self.depth = None, 0
        if self._connection is not None and not self.depth and time.monotonic() - self._looked > LOOK:
            self._still_there()
        if self._connection is None:
            self._connect()
        assert self._connection is not None
        return self._connection

    def _still_there(self) -> None:
        """A connection that nothing is asked on and that is readable was closed by the server."""
        self._looked = time.monotonic()
        if self._connection is not None and self.server.went_away(self._connection.connection.dbapi_connection):
            self.close()

    def _connect(self) -> None:
        if self.about is not None:
            self.about(NAMED)
        options = self.server.connect_args(self.connect_timeout, self.timeout, self.title)
        try:
            engine = sql.create_engine(self.url, poolclass=NullPool, connect_args=options, isolation_level="AUTOCOMMIT")
            sql.event.listen(engine, "do_connect", self._made)
            self._connection = engine.connect()
            self._pid, self._looked = os.getpid(), time.monotonic()
            for statement in self.server.greeting(self.timeout):
                self._connection.exec_driver_sql(statement).close()
            self.server.patience(self._connection.connection.dbapi_connection, self.timeout)
        except (sql.exc.ArgumentError, TypeError) as error:  # TypeError: an option that the driver does not know
            self.close()
            raise ConfigError(f"the url of the database at {self.place}: {error}") from None
        except BaseException as error:
            self._failed(error, connecting=True)
        self._answered()

    def _made(self, _dialect: Any, _record: Any, args: Any, options: Any) -> Any:
        return self.server.connect(*args, **options)

    def _answered(self) -> None:
        self._used = time.monotonic()
        if self.about is not None:
            self.about(0.0)

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


def again(link: DatabaseConnection, act: Callable[[], T]) -> T:
    """Run `act`; run it again if it met another transaction in a deadlock, for then nothing of it has happened. Inside a
    transaction the whole transaction must be run again, so there the error is raised at once."""
    until = time.monotonic() + link.timeout
    while True:
        try:
            return act()
        except Again:
            if link.depth or time.monotonic() > until:
                raise
            time.sleep(random.uniform(*AGAIN))


def names_in(found: sql.Inspector, schema: str | None) -> list[str]:
    return found.get_table_names(schema)


def place_of(url: sql.URL) -> str:
    """For people: without password and options."""
    kind, hosts, ports = url.get_backend_name(), url.query.get("host", ""), str(url.query.get("port", ""))
    if isinstance(hosts, str) and "," not in hosts:
        return sql.URL.create(kind, url.username, None, url.host, url.port, url.database).render_as_string()
    if isinstance(hosts, str):
        pairs = zip_longest(hosts.split(","), ports.split(","))
        hosts = tuple(f"{host}:{port}" if port else f"{host}" for host, port in pairs)
    user = sql.URL.create(kind, url.username).render_as_string()
    return f"{user}{','.join(hosts)}/{url.database or ''}"


NOTIFIED = 1.0  # seconds between two looks where the server notifies
SHORTEST, LONGEST, MORE = 0.01, 0.3, 1.3  # seconds between two polls, and how much longer each pause is than the last


def channel_of(name: bytes) -> str:
    """The channel that a push onto the list `name` notifies."""
    return f"qd_{digest(name):x}"


def channel(table: str, queue: str) -> str:
    """The channel that a push into a queue notifies."""
    return channel_of(f"jobs {table} {queue}".encode("utf-8", "surrogateescape"))


class Listening:
    """One waiter on one connection."""

    def __init__(self, link: DatabaseConnection) -> None:
        self.link = link
        self._by: Any = None  # the driver's connection that listens
        self._to = set[str]()
        self._pause = SHORTEST

    def worked(self) -> None:
        """There was a job: the next one may come soon."""
        self._pause = SHORTEST

    def wait(self, channels: set[str], seconds: float, wake: int) -> bool:
        """Wait until a channel is notified, `seconds` are over, or the next look is due. False: the descriptor `wake` ended
        the wait. Raises ConnectionLost."""
        if self.link.kind == "postgresql":
            if self._listen(channels):
                return True  # a push may have come before: look at once
            return self.link.rest(min(seconds, NOTIFIED), wake)
        pause, self._pause = min(seconds, self._pause), min(LONGEST, self._pause * MORE)
        return wake not in ready_of([wake], pause)

    def _listen(self, channels: set[str]) -> bool:
        """Whether the connection did not listen to all of them before."""
        raw = self.link.raw
        if raw is not self._by:
            self._by, self._to = raw, set()
        new = channels - self._to
        self._to |= new  # before the calls: an alarm may ring right after one of them
        try:
            for each in sorted(new):
                self.link.say(f'LISTEN "{each}"').close()
        except BaseException:
            self._by = None  # listen to all of them again
            raise
        return bool(new)

    def end(self) -> None:
        """Listen to none of the channels any more."""
        if self._to and self.link.raw is self._by:
            for each in sorted(self._to):
                self.link.say(f'UNLISTEN "{each}"').close()
        self._to.clear()

    def abort(self) -> None:
        """Close the connection if it listens: an error has ended the wait, and the server must not notify it for ever."""
        if self._to:
            self.link.close()


def popped(link: DatabaseConnection, take: Callable[[bytes], bool], name: bytes, seconds: float, wake: int) -> bool:
    """Keyspace.pop on the list `name`. take: removes the first item and returns at once, False if there is none."""
    until, listening, found = time.monotonic() + seconds, Listening(link), True
    try:
        while not take(name):
            left = until - time.monotonic()
            if left <= 0 or not listening.wait({channel_of(name)}, left, wake):
                found = False
                break
    except BaseException:
        listening.abort()
        raise
    listening.end()
    return found
