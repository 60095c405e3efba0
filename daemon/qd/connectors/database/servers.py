"""What PostgreSQL, MySQL and MariaDB, and SQLite have each in their own way: how they are reached, their clock, a
transaction, the lock on names, and what their errors mean.

`server_of` gives one of them for a url; link.py uses it.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from qd.connectors.database.sockets import socket_of
from qd.connectors.database.together import FOUND_ROWS, SEVERAL
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
from qd.process.descriptors import ready_of

BUCKETS = 1024  # rows of qd_locks
EXTRA = {"postgresql": ("psycopg", "postgres"), "mysql": ("pymysql", "mysql")}  # kind -> driver, extra that brings it


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


def digest(name: bytes) -> int:
    """Of 63 bits, the same in every process."""
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest()) >> 1


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
        from qd.connectors.database.patient import Patient  # the driver is there only where it is used

        return Patient.connect(*args, **options).listens()

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
            ({1205, 1040, 1203, 1226, 1290, 1836, 1792, 1021, 1114, 1030, 1969, 3024}, ServerBusy),
            ({1142, 1143, 1227, 1370}, NoRight),
            ({1044, 1045, 1698, 2059}, WrongPassword),
            ({1049}, NotThere),
            ({2002, 2003, 2005}, Unreachable),
            ({0, 2006, 2013, 2014, 2055, 1053, 1927, 4031, 1158, 1159, 1160, 1161}, ConnectionLost),
        ]
        return next((kind for codes, kind in groups if code in codes), None)


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


def is_operational(error: object) -> bool:
    return any(kind.__name__ in ("OperationalError", "InterfaceError") for kind in type(error).__mro__)


def password_or(other: type[QdError], said: str) -> type[QdError]:
    """A refused login has no code of its own in the driver's first words."""
    if "authentication" in said or 'role "' in said or "no pg_hba.conf entry" in said or "permission denied" in said:
        return WrongPassword
    if 'database "' in said and "does not exist" in said:
        return NotThere
    return ServerBusy if "too many" in said or "starting up" in said or "remaining connection slots" in said else other


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
        url = make_url(text)
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


def told(kind: type[QdError] | None, place: str, error: object) -> QdError:
    """The error as ours, in one line."""
    from qd.masks import masked

    said = masked(" ".join(str(error).split()))[:300]
    if kind is MissingTable:
        return MissingTable(f"a table is missing in the database at {place}, run `qd migrate`: {said}")
    if kind is Unreachable:
        return Unreachable(f"the database at {place} does not answer: {said}")
    if kind is WrongPassword:
        return WrongPassword(f"the database at {place} refuses this user or password: {said}")
    if kind is NotThere:
        return NotThere(f"the database at {place} is not there, or cannot be opened: {said}")
    if kind is NotWritable:
        return NotWritable(f"the user of this process may not write the database at {place}, or its folder: {said}")
    if kind is NoRight:
        return NoRight(
            f"the user of the database at {place} lacks a right (docs/database.md, Users and rights): {said}"
        )
    if kind is None:
        return ServerRefused(f"the database at {place} refuses: {said}")
    if kind is ConnectionLost:
        return ConnectionLost(f"the connection to the database at {place} broke: {said}")
    return kind(f"the database at {place} cannot serve now: {said}")
