"""One peer of bench/locks.py: reads `MEASURE COUNT` lines, answers each with a number. argv: qd or redis-py, a socket."""

import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


def maker(kind: str, socket: str) -> Callable[[str], AbstractContextManager[Any]]:
    """A new lock of this name, as each library's users make it."""
    if kind == "qd":
        from qd import Qd

        app = Qd(f"unix://{socket}")
        return lambda name: app.lock(name, ttl=30)
    import redis

    client = redis.Redis(unix_socket_path=socket)
    return lambda name: client.lock(name, timeout=30)


def pairs(lock: Callable[[str], AbstractContextManager[Any]], count: int) -> float:
    """Acquired and released without contention, per second."""
    began = time.perf_counter()
    for _ in range(count):
        with lock("pairs"):
            pass
    return count / (time.perf_counter() - began)


def hand_over(lock: Callable[[str], AbstractContextManager[Any]], count: int) -> float:
    """From just before the release to the first line of the next holder: the median, in milliseconds."""
    took = []
    for _ in range(count):
        inside: list[float] = []

        def wait(inside: list[float] = inside) -> None:
            with lock("handed"):
                inside.append(time.perf_counter())

        with lock("handed"):
            thread = threading.Thread(target=wait)
            thread.start()
            time.sleep(0.03)
            given = time.perf_counter()
        thread.join()
        took.append((inside[0] - given) * 1000)
    return statistics.median(took)


if __name__ == "__main__":
    make = maker(*sys.argv[1:3])
    for line in sys.stdin:
        measure, count = line.split()
        print({"pairs": pairs, "hand_over": hand_over}[measure](make, int(count)), flush=True)
