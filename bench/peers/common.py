"""What the Python apps under measurement share: the line a job writes, and the loop in which a producer takes orders.

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
    """Tell the driver that this job has begun: label, `at` as given, then monotonic, wall and own CPU time in ns."""
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
    """Take orders until stdin ends. `bulk` is None where the peer has none; `later` gets its due moment in unix ns."""

    def timed(jobs: int, in_bulk: bool) -> float:
        began = time.perf_counter()
        if in_bulk and bulk:
            bulk(jobs)
        else:
            for _ in range(jobs):
                single()
        return time.perf_counter() - began

    def obey(order: dict[str, object]) -> object:
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
        answer = obey(json.loads(line))
        print(json.dumps(answer if isinstance(answer, int | float) else None), flush=True)
