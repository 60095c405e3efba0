"""MySQL and MariaDB, by PyMySQL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qd.connectors.database.servers.base import Server, digest
from qd.connectors.database.servers.meanings import Again, MissingTable, NoRight, NotThere
from qd.connectors.database.together import FOUND_ROWS, SEVERAL
from qd.errors import ConnectionLost, QdError, ServerBusy, Unreachable, WrongPassword

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
