"""Shared by the measured Python apps: the line that a job writes, and the command loop of a producer.

Orders are JSON lines on stdin, each is answered by one JSON line on stdout; laravel.php speaks the same.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from functools import cache


@cache
def _pipe() -> int:
    return os.open(os.environ["BENCH_FIFO"], os.O_WRONLY)


def write_stamp(label: str, at: int) -> None:
    """Report to the driver that this job has started: label, `at`, then monotonic, wall and process CPU time in ns."""
    started = time.monotonic_ns()
    os.write(_pipe(), b"%s %d %d %d %d\n" % (label.encode(), at, started, time.time_ns(), time.process_time_ns()))


def serve(
    *,
    single: Callable[[], object],
    bulk: Callable[[int], object] | None,
    stamp: Callable[[str, int], object],
    later: Callable[[str, int], object],
    size: Callable[[], int],
) -> None:
    """Run commands until stdin ends. `bulk` is None if the peer has no bulk call; `later` gets its due time in unix ns."""

    def timed(jobs: int, in_bulk: bool) -> float:
        began = time.perf_counter()
        if in_bulk and bulk:
            bulk(jobs)
        else:
            for _ in range(jobs):
                single()
        return time.perf_counter() - began

    def execute(order: dict[str, object]) -> object:
        match order:
            case {"do": "single" | "bulk" as how, "jobs": int(jobs)}:
                return timed(jobs, how == "bulk")
            case {"do": "stamp", "label": str(label)}:
                return stamp(label, time.monotonic_ns())
            case {"do": "later", "due": list(moments)}:
                for number, due in enumerate(moments):
                    later(str(number), due)
                return None
            case {"do": "size"}:
                return size()
        raise ValueError(f"unknown order {order!r}")

    for line in sys.stdin:
        answer = execute(json.loads(line))
        print(json.dumps(answer if isinstance(answer, int | float) else None), flush=True)
