"""What each kind of database does in its own way, and what its errors mean.

    Server     the contract: connecting, the clock, a transaction, locks on names, notifications, errors
    MySql      MySQL and MariaDB, by PyMySQL
    Postgres   PostgreSQL, by psycopg
    Sqlite     SQLite, by Python's own driver
    server_of  the kind of database of a url

`run_together` sends several statements in one round trip, with their values written into them.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
import time
from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
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
from qd.options.extras import to_install
from qd.process.descriptors import Identity, identity, ready_of, socket_of
from qd.redaction import redact


class Server:
    """One kind of database. connect_args: arguments of the driver. greeting: statements for a new connection."""

    kind = ""
    clock = ""  # SQL: the current unix time in microseconds
    begin = "BEGIN"

    def connect_args(self, connect: float, answer: float, title: str) -> dict[str, Any]:
        return {}

    def greeting(self, answer: float) -> list[str]:
        return []

    def lock(self, names: Iterable[bytes]) -> str:
        """A statement that locks these names until the end of the transaction, "" if none is needed. All clients lock them
        in the same order."""
        return ""

    def meaning(self, error: Any) -> type[QdError] | None:
        """The class of a driver's error; None if neither waiting nor a new connection helps."""
        return None

    def connect(self, *args: Any, **options: Any) -> Any:
        """A connection of the driver. None: SQLAlchemy makes it."""

    def patience(self, raw: Any, answer: float) -> None:
        """Set the seconds for each answer."""

    def has_ended(self, raw: Any) -> bool:
        """Whether the server has closed this idle connection."""
        fd = socket_of(raw)
        return fd < 0 or bool(ready_of([fd], 0))


def digest(name: bytes) -> int:
    """63 bits, the same in every process."""
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest()) >> 1


class MissingTable(NeedsMending, ServerBusy):
    """A table of qd or of the queue is missing: `qd migrate` has not run."""


class ForeignTable(NeedsMending, ServerRefused):
    """A table lacks a column: it has the name of qd's table of jobs, and another program has created it."""


class NoRight(NeedsMending, ServerRefused):
    """The user lacks a right on a table, column or sequence."""


class NotThere(NeedsMending, Unreachable):
    """The server has no database of this name, or the SQLite file cannot be opened."""


class NotWritable(NeedsMending, ServerBusy):
    """This user may not write the SQLite file or its folder."""


class Again(ServerBusy):
    """A deadlock or serialization failure: nothing was done; run the transaction again."""


class Conflict(Again, OperationalError):
    """Again in a transaction of the caller, which only the caller can run again. A retry loop for SQLAlchemy catches it as
    the driver's error: `orig` has its `sqlstate` or number."""

    def __init__(self, text: str, origin: Any) -> None:
        OperationalError.__init__(self, None, None, origin)
        self.text = text

    def __str__(self) -> str:
        return self.text


MESSAGES: dict[type[QdError], str] = {
    MissingTable: "a table is missing in the database at {place}, run `qd migrate`: {text}",
    ForeignTable: "a table in the database at {place} is not qd's ({text}): choose another name for the table of jobs, "
    'table = "qd_jobs" below [connections.database] in qd.toml, and run `qd migrate`',
    Unreachable: "the database at {place} does not answer: {text}",
    WrongPassword: "the database at {place} refuses this user or password: {text}",
    NotThere: "the database at {place} does not exist, or cannot be opened: {text}",
    NotWritable: "the user of this process may not write the database at {place}, or its folder: {text}",
    NoRight: "the user of the database at {place} lacks a right (`qd doctor` lists what workers need): {text}",
    ServerRefused: "the database at {place} refuses: {text}",
    ConnectionLost: "the connection to the database at {place} broke: {text}",
}
SHOWN = re.compile(r"\nLINE \d+: .*\n *\^")  # PostgreSQL shows a part of qd's own statement and where in it
BUSY = "the database at {place} cannot serve now: {text}"


def error_of(kind: type[QdError] | None, place: str, error: object) -> QdError:
    """The driver's error as ours, in one line. kind: from Server.meaning."""
    text, kind = redact(" ".join(SHOWN.sub("", str(error)).split()))[:300], kind or ServerRefused
    return kind(MESSAGES.get(kind, BUSY).format(place=place, text=text))


BUCKETS = 1024  # rows of qd_locks


class MySql(Server):
    """MySQL and MariaDB."""

    kind = "mysql"
    clock = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))"
    begin = "START TRANSACTION"

    def connect_args(self, connect: float, answer: float, title: str) -> dict[str, Any]:
        times = {"connect_timeout": max(1, round(connect)), "read_timeout": answer, "write_timeout": answer}
        return {**times, "client_flag": MULTI_STATEMENTS | FOUND_ROWS}

    def greeting(self, answer: float) -> list[str]:
        limit = f"SET SESSION innodb_lock_wait_timeout = {max(1, round(answer))}"
        return ["SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", limit]

    def lock(self, names: Iterable[bytes]) -> str:
        numbers = ",".join(str(number) for number in sorted({digest(name) % BUCKETS for name in names}))
        rows = f"FROM qd_locks FORCE INDEX (PRIMARY) WHERE bucket IN ({numbers})"
        return f"SELECT bucket {rows} ORDER BY bucket FOR UPDATE"

    def patience(self, raw: Any, answer: float) -> None:
        raw._read_timeout = raw._write_timeout = answer

    def meaning(self, error: Any) -> type[QdError] | None:
        code = error.args[0] if getattr(error, "args", None) else 0
        groups: list[tuple[set[int], type[QdError]]] = [
            ({1213, 1020}, Again),
            ({1146}, MissingTable),
            ({1054, 1072}, ForeignTable),
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
        name = title[:63] or "qd"
        return {"connect_timeout": max(1, round(connect)), "application_name": name, "client_encoding": "utf8"}

    def greeting(self, answer: float) -> list[str]:
        limit = max(1, round(answer * 1000))
        values = {"statement_timeout": limit, "lock_timeout": limit}
        values["idle_in_transaction_session_timeout"] = max(60_000, 2 * limit)
        return ["SELECT " + ", ".join(f"set_config('{name}', '{value}', false)" for name, value in values.items())]

    def lock(self, names: Iterable[bytes]) -> str:
        numbers = ",".join(str(number) for number in sorted({digest(name) for name in names}))
        return f"SELECT count(pg_advisory_xact_lock(k)) FROM unnest(ARRAY[{numbers}]::bigint[]) k"

    def connect(self, *args: Any, **options: Any) -> Any:
        from qd.drivers.database.psycopg import BoundedConnection  # the driver may be missing

        return BoundedConnection.connect(*args, **options).note_notifications()

    def has_ended(self, raw: Any) -> bool:
        return bool(raw.has_ended())

    def patience(self, raw: Any, answer: float) -> None:
        raw.answer = answer

    def meaning(self, error: Any) -> type[QdError] | None:
        state = getattr(error, "sqlstate", None)
        if state is None:
            names = {kind.__name__ for kind in type(error).__mro__}
            return login_error(str(error)) if names & {"OperationalError", "InterfaceError"} else None
        exact = {"42P01": MissingTable, "42703": ForeignTable,
                 "40001": Again, "40P01": Again, "55P03": ServerBusy, "57014": ServerBusy,
                 "25006": ServerBusy, "42501": NoRight, "57P03": ServerBusy, "3D000": NotThere}  # fmt: skip
        classes = {"08": ConnectionLost, "57": ConnectionLost, "53": ServerBusy, "28": WrongPassword, "58": ServerBusy}
        return exact.get(state) or classes.get(state[:2])


def login_error(text: str) -> type[QdError]:
    """The class of an error without a code: psycopg has none for a refused login or a lost connection."""
    if any(each in text for each in ("authentication", 'role "', "no pg_hba.conf entry", "permission denied")):
        return WrongPassword
    if 'database "' in text and "does not exist" in text:
        return NotThere
    busy = ("too many", "starting up", "remaining connection slots")
    return ServerBusy if any(each in text for each in busy) else ConnectionLost


class Sqlite(Server):
    """Its clock is this host's, since all users of the file are on it."""

    kind = "sqlite"
    clock = "qd_clock()"
    begin = "BEGIN IMMEDIATE"
    file: tuple[str, Identity | None] = ("", None)  # of the connection: its path and identity

    def connect_args(self, connect: float, answer: float, title: str) -> dict[str, Any]:
        return {"timeout": answer, "check_same_thread": False}

    def connect(self, *args: Any, **options: Any) -> Any:
        made = sqlite3.connect(*args, **options)
        made.create_function("qd_clock", 0, unix_us)
        # any program may have written bytes that are not UTF-8
        made.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        made.execute("PRAGMA schema_version").close()  # opens it
        self.file = str(args[0]), identity(str(args[0]))
        return made

    def greeting(self, answer: float) -> list[str]:
        return ["PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", "PRAGMA foreign_keys=OFF"]

    def has_ended(self, raw: Any) -> bool:
        """Whether the file was replaced or removed: no process would read what is written into the old one."""
        path, known = self.file
        return identity(path) != known

    def patience(self, raw: Any, answer: float) -> None:
        raw.execute(f"PRAGMA busy_timeout={max(1, round(answer * 1000))}").close()

    def meaning(self, error: Any) -> type[QdError] | None:
        name, text = getattr(error, "sqlite_errorname", "") or "", str(error)
        if "no such table" in text:
            return MissingTable
        if "no such column" in text or "has no column" in text:
            return ForeignTable
        if name.startswith("SQLITE_CANTOPEN") or "unable to open" in text:
            return NotThere
        if name.startswith("SQLITE_READONLY"):
            return NotWritable
        busy = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_PROTOCOL")
        return ServerBusy if name.startswith(busy) else None


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
    """The url with a driver, for SQLAlchemy, and its kind of database. Raises ConfigError."""
    try:
        url = make_url(with_hosts_as_options(text))
    except (ArgumentError, ValueError):  # ValueError: its port; the message may contain a part of the password
        raise ConfigError("not the url of a database (written postgresql://user:password@host:5432/name)") from None
    kind, _, driver = url.drivername.partition("+")
    if kind not in SERVERS:
        raise ConfigError(f"'{kind}' is not a database that qd supports (known: {', '.join(SERVERS)})")
    server = SERVERS[kind]()
    if server.kind == "sqlite":
        if url.database in (None, "", ":memory:"):
            way = "name a file (written sqlite:///jobs.sqlite)"
            raise ConfigError(f"a database in memory belongs to one process: {way}")
        return url.set(drivername="sqlite+pysqlite"), server
    module, extra = EXTRA[server.kind]
    if driver not in ("", module):
        raise ConfigError(f"qd uses {module} for {kind}, not '{driver}': write {kind}://...")
    if find_spec(module) is None:
        raise ConfigError(f"{kind} needs {module}: {to_install(extra)}")
    if server.kind == "mysql" and "charset" not in url.query:
        url = url.update_query_dict({"charset": "utf8mb4"})
    return url.set(drivername=f"{server.kind}+{module}"), server


Statement = tuple[sql.TextClause, Mapping[str, Any]]
MANY = re.compile(r"IN \(__\[POSTCOMPILE_(\w+)\]\)")  # a parameter with several values, as SQLAlchemy marks it
MULTI_STATEMENTS, FOUND_ROWS = 1 << 16, 1 << 1  # flags of a connection; SQLAlchemy counts rows by the second


class StatementResult(NamedTuple):
    """rows: with the names of their columns. changed: number of changed rows."""

    rows: list[Any]
    changed: int


def run_together(connection: sql.Connection, statements: Sequence[Statement]) -> list[StatementResult]:
    """Raises DBAPIError for the first statement that fails; those after it are not run."""
    raw: Any = connection.connection.dbapi_connection
    cursor = raw.literal_cursor() if hasattr(raw, "literal_cursor") else raw.cursor()
    try:
        texts = [cursor.mogrify(compiled(each, connection.dialect), dict(values)) for each, values in statements]
        cursor.execute(";".join(texts))
        results, more = list[StatementResult](), True
        while more:
            row_type = row_of(tuple(each[0] for each in cursor.description or ()))
            rows = cursor.fetchall() if cursor.description else ()
            results.append(StatementResult([row_type(*row) for row in rows], cursor.rowcount))
            more = cursor.nextset()
    except UnicodeEncodeError:
        raise
    except Exception as error:
        raise DBAPIError(None, None, error) from None
    cursor.close()
    return results


@cache
def compiled(statement: sql.TextClause, dialect: sql.Dialect) -> str:
    values = r"= ANY(%(\1)s)" if dialect.name == "postgresql" else r"IN %(\1)s"
    return MANY.sub(values, str(statement.compile(dialect=dialect)))


@cache
def row_of(names: tuple[str, ...]) -> Any:
    return namedtuple("Row", names, rename=True)
