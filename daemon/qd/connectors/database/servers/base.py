"""What each kind of database has in its own way: how it is reached, its clock, a transaction, the lock on names, and what
its errors mean. link.py uses one of them; postgres.py, mysql.py and sqlite.py are they."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from qd.connectors.database.sockets import socket_of
from qd.errors import QdError
from qd.process.descriptors import ready_of


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
