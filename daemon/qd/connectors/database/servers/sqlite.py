"""SQLite, by the driver that Python brings."""

from __future__ import annotations

import os
import sqlite3
import time
from typing import Any

from qd.connectors.database.servers.base import Server
from qd.connectors.database.servers.meanings import MissingTable, NotThere, NotWritable
from qd.errors import QdError, ServerBusy


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
