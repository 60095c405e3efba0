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
    """Until one waits in line, and was told so: who has never heard of the server does not wait for it when it is gone."""
    redis = server.client()
    try:
        in_line(redis, 1)
        blocked: Callable[[], bool] = lambda: "blocked_clients:1\r" in redis.text("INFO", "clients")  # noqa: E731
        eventually(blocked, 20, what="a waiter that waits for its token")
    finally:
        redis.close()


def in_thread(body: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=body)
    thread.start()
    return thread
