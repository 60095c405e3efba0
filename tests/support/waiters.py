"""Who waits for the lock "report": told by its line in Redis."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.support.clock import eventually
from tests.support.resp import Client
from tests.support.server import Server

LINE = "qd:mutex:{report}:line"


def in_line(redis: Client, count: int) -> None:
    eventually(lambda: redis.call("ZCARD", LINE) == count, 20, what=f"{count} waiters in line")


def waiting_on(server: Server) -> None:
    redis = server.client()
    try:
        in_line(redis, 1)
    finally:
        redis.close()


def in_thread(body: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=body)
    thread.start()
    return thread
