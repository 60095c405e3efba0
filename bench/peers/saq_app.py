"""The SAQ app that is measured: imported by its worker, and run as a program its producer. SAQ has no bulk call."""

import asyncio
import os
from typing import Any

import common
from saq import Queue

queue = Queue.from_url(os.environ["BENCH_REDIS_URL"])


async def anoop(_: Any) -> None:
    pass


async def stamp(_: Any, *, label: str, at: int) -> None:
    common.write_stamp(label, at)


async def sleep(_: Any) -> None:
    await common.sleep()


settings = {
    "queue": queue,
    "functions": [anoop, stamp, sleep],
    "concurrency": int(os.environ.get("BENCH_CONCURRENCY", "1")),
}


def main() -> None:
    with asyncio.Runner() as runner:
        runner.run(queue.connect())

        async def send(kind: str, count: int) -> None:
            for first in range(0, count, 50):
                await asyncio.gather(*[queue.enqueue(kind) for _ in range(min(50, count - first))])

        async def send_stamp(label: str, at: int) -> None:
            await queue.enqueue("stamp", label=label, at=at)

        async def size() -> int:
            return int(await queue.count("incomplete"))

        common.serve(
            send=lambda kind, count: runner.run(send("anoop" if kind == "noop" else kind, count)),
            stamp=common.waited(send_stamp, runner),
            size=common.waited(size, runner),
        )


if __name__ == "__main__":
    main()
