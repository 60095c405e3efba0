"""The streaq app that is measured: imported by its worker, and run as a program its producer."""

import asyncio
import logging
import os

import common
from streaq import Worker

worker = Worker(redis_url=os.environ["BENCH_REDIS_URL"], concurrency=int(os.environ.get("BENCH_CONCURRENCY", "1")))
logging.getLogger("streaq").setLevel(logging.WARNING)


@worker.task()
async def anoop() -> None:
    pass


@worker.task()
async def stamp(label: str, at: int) -> None:
    common.write_stamp(label, at)


@worker.task()
async def sleep() -> None:
    await common.sleep()


KINDS = {"noop": anoop, "anoop": anoop, "sleep": sleep}


def main() -> None:
    import streaq_app as app  # by its importable name, which is part of a task's name

    async def produce() -> None:
        async with app.worker:
            await asyncio.to_thread(serve, asyncio.get_running_loop())

    def serve(loop: asyncio.AbstractEventLoop) -> None:
        async def send(kind: str, count: int) -> None:
            for first in range(0, count, 1000):
                await app.worker.enqueue_many([app.KINDS[kind].enqueue() for _ in range(min(1000, count - first))])

        async def send_stamp(label: str, at: int) -> None:
            await app.stamp.enqueue(label, at)

        common.serve(
            send=lambda kind, count: asyncio.run_coroutine_threadsafe(send(kind, count), loop).result(),
            stamp=lambda label, at: asyncio.run_coroutine_threadsafe(send_stamp(label, at), loop).result(),
            size=lambda: asyncio.run_coroutine_threadsafe(app.worker.queue_size(), loop).result(),
        )

    asyncio.run(produce())


if __name__ == "__main__":
    main()
