"""What each kind of database has in its own way: how it is reached, its clock, a transaction, the lock on names, and what
its errors mean. link.py uses one of them; postgres.py, mysql.py and sqlite.py are they.

What PostgreSQL, MySQL and MariaDB, and SQLite have each in their own way: a file each, by the contract in base.py.

What an error of a database means to qd, beside the errors that every server can give.

MySQL and MariaDB, by PyMySQL.

PostgreSQL, by psycopg.

SQLite, by the driver that Python brings.

The kind of database that a url names.

Several statements in one round trip, as PyMySQL can send them, and what the server says to each. link.py uses it.

The first one that fails ends them: those behind it are not run.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import sqlite3
import threading
import time
from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import sqlalchemy as sql
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from qd.drivers.urls import with_hosts_as_options
from qd.errors import (
    ConfigError,
    ConnectionLost,
    NeedsMending,
    QdError,
    ServerBusy,
    ServerRefused,
    Unreachable,
    WrongPassword,
)
from qd.process.descriptors import ready_of, socket_of
from qd.redaction import redact


class Server:
    """One kind of database. connect_args: of the driver; greeting: statements for a fresh connection."""

    kind = ""
    clock = ""  # SQL: unix microseconds at this moment
    begin = "BEGIN"

    def connect_args(self, connect: float, answer: float, title: str) -> dict[str, Any]:
        return {}

    def greeting(self, answer: float) -> list[str]:
        return []

    def lock(self, names: Iterable[bytes]) -> str:
        """A statement that waits until nobody else has locked any of these names, "" where none is needed. They are locked
        in one order, whoever does it, and until the end of the transaction."""
        return ""

    def meaning(self, error: Any) -> type[QdError] | None:
        """What the driver's error says; None: nothing that waiting or a new connection would mend."""
        return None

    def connect(self, *args: Any, **options: Any) -> Any:
        """A connection of the driver. None: as SQLAlchemy makes one."""

    def patience(self, raw: Any, answer: float) -> None:
        """Seconds for each answer on the driver's connection, from now on."""

    def quiet(self) -> AbstractContextManager[None]:
        """Without the driver's own log line when one of many rows is refused: the error is raised as well."""
        return nullcontext()

    def telling(self, raw: Any) -> int:
        """The descriptor that is readable when the server tells something, -1: it never does."""
        return -1

    def told(self, raw: Any) -> bool:
        """Whether it has told something since this was asked last."""
        return False

    def went_away(self, raw: Any) -> bool:
        """Whether this idle connection was closed by the server."""
        fd = socket_of(raw)
        return fd < 0 or bool(ready_of([fd], 0))


def digest(name: bytes) -> int:
    """Of 63 bits, the same in every process."""
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest()) >> 1


__all__ = [
    "BUCKETS",
    "Again",
    "Conflict",
    "MissingTable",
    "NoRight",
    "Server",
    "digest",
    "server_of",
    "told",
    "unix_us",
]


class MissingTable(NeedsMending, ServerBusy):
    """A table of qd's or of the queue is not there: nobody has run `qd migrate`."""


class NoRight(NeedsMending, ServerRefused):
    """The user is known, and may not do this: on a table, a column, a sequence."""


class NotThere(NeedsMending, Unreachable):
    """The server has no database of this name, or the file of SQLite cannot be opened."""


class NotWritable(NeedsMending, ServerBusy):
    """The file of SQLite, or its folder, is not this user's to write."""


class Again(ServerBusy):
    """A deadlock, or two transactions in one another's way: nothing was done, and it is to be run again."""


class Conflict(Again, OperationalError):
    """The same in a caller's transaction, which only the caller can run again. A retry loop for SQLAlchemy catches it as the
    driver's error: `orig` has its `sqlstate` or number."""

    def __init__(self, said: str, origin: Any) -> None:
        OperationalError.__init__(self, None, None, origin)
        self.said = said

    def __str__(self) -> str:
        return self.said


SAID: dict[type[QdError], str] = {
    MissingTable: "a table is missing in the database at {place}, run `qd migrate`: {said}",
    Unreachable: "the database at {place} does not answer: {said}",
    WrongPassword: "the database at {place} refuses this user or password: {said}",
    NotThere: "the database at {place} is not there, or cannot be opened: {said}",
    NotWritable: "the user of this process may not write the database at {place}, or its folder: {said}",
    NoRight: "the user of the database at {place} lacks a right (`qd doctor` lists what workers need): {said}",
    ServerRefused: "the database at {place} refuses: {said}",
    ConnectionLost: "the connection to the database at {place} broke: {said}",
}
SHOWN = re.compile(r"\nLINE \d+: .*\n *\^")  # PostgreSQL shows a part of qd's own statement and where in it
BUSY = "the database at {place} cannot serve now: {said}"


def told(kind: type[QdError] | None, place: str, error: object) -> QdError:
    """The driver's error as ours, in one line. kind: what it means (Server.meaning)."""
    said, kind = redact(" ".join(SHOWN.sub("", str(error)).split()))[:300], kind or ServerRefused
    return kind(SAID.get(kind, BUSY).format(place=place, said=said))


BUCKETS = 1024  # rows of qd_locks


class MySql(Server):
    """MariaDB, too."""

    kind = "mysql"
    clock = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))"
    begin = "START TRANSACTION"

    def connect_args(self, connect: float, answer: float, title: str) -> dict[str, Any]:
        times = {"connect_timeout": max(1, round(connect)), "read_timeout": answer, "write_timeout": answer}
        return {**times, "client_flag": SEVERAL | FOUND_ROWS}

    def greeting(self, answer: float) -> list[str]:
        limit = max(1, round(answer))
        return [
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
            f"SET SESSION innodb_lock_wait_timeout = {limit}",
        ]

    def lock(self, names: Iterable[bytes]) -> str:
        numbers = ",".join(str(number) for number in sorted({digest(name) % BUCKETS for name in names}))
        return (
            f"SELECT bucket FROM qd_locks FORCE INDEX (PRIMARY) WHERE bucket IN ({numbers}) ORDER BY bucket FOR UPDATE"
        )

    def patience(self, raw: Any, answer: float) -> None:
        raw._read_timeout = raw._write_timeout = answer

    def meaning(self, error: Any) -> type[QdError] | None:
        code = error.args[0] if getattr(error, "args", None) else 0
        groups: list[tuple[set[int], type[QdError]]] = [
            ({1213, 1020}, Again),
            ({1146}, MissingTable),
            ({1205, 1467, 1040, 1203, 1226, 1290, 1836, 1792, 1021, 1114, 1030, 1969, 3024}, ServerBusy),
            ({1142, 1143, 1227, 1370}, NoRight),
            ({1044, 1045, 1698, 2059}, WrongPassword),
            ({1049}, NotThere),
            ({2002, 2003, 2005}, Unreachable),
            ({0, 2006, 2013, 2014, 2055, 1053, 1927, 4031, 1158, 1159, 1160, 1161}, ConnectionLost),
        ]
        return next((kind for codes, kind in groups if code in codes), None)


class Postgres(Server):
    kind = "postgresql"
    clock = "CAST(extract(epoch from clock_timestamp()) * 1000000 AS bigint)"
    begin = "BEGIN ISOLATION LEVEL READ COMMITTED"

    def connect_args(self, connect: float, answer: float, title: str) -> dict[str, Any]:
        return {
            "connect_timeout": max(1, round(connect)),
            "application_name": title[:63] or "qd",
            "client_encoding": "utf8",
        }

    def greeting(self, answer: float) -> list[str]:
        limit = max(1, round(answer * 1000))
        limits = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
        values = (limit, limit, max(60_000, 2 * limit))
        pairs = zip(limits, values, strict=True)
        return ["SELECT " + ", ".join(f"set_config('{name}', '{value}', false)" for name, value in pairs)]

    def lock(self, names: Iterable[bytes]) -> str:
        numbers = ",".join(str(number) for number in sorted({digest(name) for name in names}))
        return f"SELECT count(pg_advisory_xact_lock(k)) FROM unnest(ARRAY[{numbers}]::bigint[]) k"

    def connect(self, *args: Any, **options: Any) -> Any:
        from qd.drivers.database.psycopg import BoundedConnection  # the driver is there only where it is used

        return BoundedConnection.connect(*args, **options).listens()

    def quiet(self) -> AbstractContextManager[None]:
        return quiet()

    def telling(self, raw: Any) -> int:
        return socket_of(raw)

    def told(self, raw: Any) -> bool:
        return bool(raw.told())

    def went_away(self, raw: Any) -> bool:
        return bool(raw.went_away())

    def patience(self, raw: Any, answer: float) -> None:
        raw.answer = answer

    def meaning(self, error: Any) -> type[QdError] | None:
        state = getattr(error, "sqlstate", None)
        if state is None:
            return password_or(ConnectionLost, str(error)) if is_operational(error) else None
        exact = {"42P01": MissingTable, "40001": Again, "40P01": Again, "55P03": ServerBusy, "57014": ServerBusy,
                 "25006": ServerBusy, "42501": NoRight, "57P03": ServerBusy, "3D000": NotThere}  # fmt: skip
        classes = {"08": ConnectionLost, "57": ConnectionLost, "53": ServerBusy, "28": WrongPassword, "58": ServerBusy}
        return exact.get(state) or classes.get(state[:2])


@contextmanager
def quiet() -> Iterator[None]:
    """psycopg sends many rows in a pipeline and warns that its end fails, too, when one of them was refused."""
    thread, logger = threading.get_ident(), logging.getLogger("psycopg")

    def wanted(record: logging.LogRecord) -> bool:
        return record.thread != thread or "error ignored terminating" not in str(record.msg)

    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)


def is_operational(error: object) -> bool:
    return any(kind.__name__ in ("OperationalError", "InterfaceError") for kind in type(error).__mro__)


def password_or(other: type[QdError], said: str) -> type[QdError]:
    """A refused login has no code of its own in the driver's first words."""
    if "authentication" in said or 'role "' in said or "no pg_hba.conf entry" in said or "permission denied" in said:
        return WrongPassword
    if 'database "' in said and "does not exist" in said:
        return NotThere
    return ServerBusy if "too many" in said or "starting up" in said or "remaining connection slots" in said else other


class Sqlite(Server):
    """Its clock is this host's: whoever uses the file is on it."""

    kind = "sqlite"
    clock = "qd_clock()"
    begin = "BEGIN IMMEDIATE"
    file: tuple[str, object] = ("", None)  # that of the connection: its path, and which one stood there

    def connect_args(self, connect: float, answer: float, title: str) -> dict[str, Any]:
        return {"timeout": answer, "check_same_thread": False}

    def connect(self, *args: Any, **options: Any) -> Any:
        made = sqlite3.connect(*args, **options)
        made.create_function("qd_clock", 0, unix_us)
        made.text_factory = any_text
        made.execute("PRAGMA schema_version").close()  # opens it
        self.file = str(args[0]), which(str(args[0]))
        return made

    def greeting(self, answer: float) -> list[str]:
        return ["PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", "PRAGMA foreign_keys=OFF"]

    def went_away(self, raw: Any) -> bool:
        """Another file stands there, or none: what is written into the old one is written for nobody."""
        path, known = self.file
        return which(path) != known

    def patience(self, raw: Any, answer: float) -> None:
        raw.execute(f"PRAGMA busy_timeout={max(1, round(answer * 1000))}").close()

    def meaning(self, error: Any) -> type[QdError] | None:
        name, said = getattr(error, "sqlite_errorname", "") or "", str(error)
        if "no such table" in said:
            return MissingTable
        if name.startswith("SQLITE_CANTOPEN") or "unable to open" in said:
            return NotThere
        if name.startswith("SQLITE_READONLY"):
            return NotWritable
        busy = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_PROTOCOL")
        return ServerBusy if name.startswith(busy) else None


def which(path: str) -> object:
    """What tells a file from another of the same name; None: there is none, or only memory."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def any_text(raw: bytes) -> str:
    """Of SQLite: any program may have written bytes there that are not UTF-8."""
    return raw.decode("utf-8", "surrogateescape")


def unix_us() -> int:
    return time.time_ns() // 1000


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


Statement = tuple[sql.TextClause, Mapping[str, Any]]
SEVERAL, FOUND_ROWS = 1 << 16, 1 << 1  # flags of a connection; the second is what SQLAlchemy counts rows by


class Said(NamedTuple):
    """rows: with the names of their columns. changed: how many it has."""

    rows: list[Any]
    changed: int


def together(connection: sql.Connection, asked: Sequence[Statement]) -> list[Said]:
    """Raises DBAPIError."""
    cursor: Any = connection.connection.cursor()
    try:
        cursor.execute(";".join(written(cursor, connection.dialect, *each) for each in asked))
        found = list(heard(cursor))
    except UnicodeEncodeError:
        raise
    except Exception as error:
        raise DBAPIError(None, None, error) from None
    cursor.close()
    return found


def written(cursor: Any, dialect: sql.Dialect, statement: sql.TextClause, values: Mapping[str, Any]) -> str:
    said: str = cursor.mogrify(compiled(statement, dialect), dict(values))
    return said


@cache
def compiled(statement: sql.TextClause, dialect: sql.Dialect) -> str:
    """As the driver takes it."""
    return str(statement.compile(dialect=dialect))


def heard(cursor: Any) -> Iterator[Said]:
    there = True
    while there:
        rows = cursor.fetchall() if cursor.description else ()
        named = row_of(tuple(each[0] for each in cursor.description or ()))
        yield Said([named(*row) for row in rows], cursor.rowcount)
        there = cursor.nextset()


@cache
def row_of(names: tuple[str, ...]) -> Any:
    return namedtuple("Row", names, rename=True)
