"""PostgreSQL, by psycopg."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from qd.connectors.database.servers.base import Server, digest
from qd.connectors.database.servers.meanings import Again, MissingTable, NoRight, NotThere
from qd.connectors.database.sockets import socket_of
from qd.errors import ConnectionLost, QdError, ServerBusy, WrongPassword


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
