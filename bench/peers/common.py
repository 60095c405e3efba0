"""Shared by the measured Python apps: the line that a job writes, and the command loop of a producer.

Orders are JSON lines on stdin, each is answered by one JSON line on stdout; laravel.php, sidekiq.rb and bullmq.mjs
understand the same. Kinds of jobs that `bulk` sends:

    noop     nothing                    nap1, nap10   sleeps for 1 or 10 ms, then reports its process and both times
    anoop    nothing, a coroutine       sleep         reports, awaits one second, reports
    hang     reports its attempt; sleeps for a minute, unless the file `again` exists
    block    reports, and blocks the event loop for a minute
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any

SECOND = 1.0


@cache
def _pipe() -> int:
    return os.open(os.environ["BENCH_FIFO"], os.O_WRONLY)


def write_stamp(label: str, at: int) -> None:
    """Report to the driver that this job has started: label, `at`, then monotonic, wall and process CPU time in ns."""
    started = time.monotonic_ns()
    os.write(_pipe(), b"%s %d %d %d %d\n" % (label.encode(), at, started, time.time_ns(), time.process_time_ns()))


def nap(ms: int) -> None:
    """Sleep, then report: the process in place of `at`, the begin in place of the CPU time."""
    began = time.monotonic_ns()
    time.sleep(ms / 1000)
    line = b"nap %d %d %d %d\n" % (os.getpid(), time.monotonic_ns(), time.time_ns(), began)
    os.write(_pipe(), line)


async def sleep() -> None:
    write_stamp("begin", 0)
    await asyncio.sleep(SECOND)
    write_stamp("end", 0)


async def hang(attempt: int) -> None:
    write_stamp(f"attempt{attempt}", 0)
    if not again():
        await asyncio.sleep(60)


def block() -> None:
    write_stamp("block", 0)
    time.sleep(60)


def again() -> bool:
    return (Path(os.environ["BENCH_TMP"]) / "again").exists()


def waited(call: Callable[..., Awaitable[Any]], runner: asyncio.Runner) -> Callable[..., Any]:
    """A function that runs this coroutine function to its end."""

    async def awaited(*args: object) -> Any:
        return await call(*args)

    return lambda *args: runner.run(awaited(*args))


def serve(
    *,
    stamp: Callable[[str, int], object],
    size: Callable[[], int],
    send: Callable[[str, int], object] | None = None,
    single: Callable[[], object] | None = None,
    gathered: Callable[[int], object] | None = None,
    later: Callable[[str, int], object] | None = None,
    urgent: Callable[[str, int], object] | None = None,
) -> None:
    """Run commands until stdin ends. What a peer does not have is None.

    send(kind, count): many jobs of a kind, in bulk where the peer has a bulk call. single: one no-op job. gathered: many
    awaited calls at once. later: due at unix ns. urgent: a stamp in a queue of higher priority.
    """

    def timed(call: Callable[[], object]) -> float:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    def repeat(count: int) -> None:
        assert single is not None
        for _ in range(count):
            single()

    def bulk(kind: str, count: int) -> None:
        if send is None:
            repeat(count)
        else:
            send(kind, count)

    def execute(order: dict[str, Any]) -> object:
        match order:
            case {"do": "single", "jobs": int(jobs)}:
                return timed(lambda: repeat(jobs))
            case {"do": "gathered", "jobs": int(jobs)} if gathered is not None:
                return timed(lambda: gathered(jobs))
            case {"do": "bulk", "jobs": int(jobs)}:
                return timed(lambda: bulk(str(order.get("kind", "noop")), jobs))
            case {"do": "stamp", "label": str(label)}:
                return stamp(label, time.monotonic_ns())
            case {"do": "urgent", "label": str(label)} if urgent is not None:
                return urgent(label, time.monotonic_ns())
            case {"do": "later", "due": list(moments)} if later is not None:
                for number, due in enumerate(moments):
                    later(str(number), due)
                return None
            case {"do": "size"}:
                return size()
        raise ValueError(f"unknown order {order!r}")

    for line in sys.stdin:
        answer = execute(json.loads(line))
        print(json.dumps(answer if isinstance(answer, int | float) else None), flush=True)
