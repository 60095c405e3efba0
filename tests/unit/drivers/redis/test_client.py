"""Connections that redis-py opens for qd."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, cast

from qd.drivers.redis import client


def test_redis_py_repeats_nothing_and_checks_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "server.sock")
    with socket.socket(socket.AF_UNIX) as unix, socket.create_server(("127.0.0.1", 0)) as tcp:
        unix.bind(path)
        unix.listen()
        for opened in (client.opened(5.0, path=path), client.opened(5.0, host="127.0.0.1", port=tcp.getsockname()[1])):
            connection = cast(Any, opened)
            assert (connection.retry.get_retries(), connection.health_check_interval) == (0, 0)
            connection.disconnect()
