"""The taskiq app that is measured, on a Redis stream: imported by its worker, and run as a program its producer."""

import asyncio
import os

import common
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(os.environ["BENCH_REDIS_URL"], consumer_id="0")  # "$", the default, skips what waits


@broker.task
async def anoop() -> None:
    pass


@broker.task
async def stamp(label: str, at: int) -> None:
    common.write_stamp(label, at)


@broker.task
async def sleep() -> None:
    await common.sleep()


KINDS = {"noop": anoop, "anoop": anoop, "sleep": sleep}


def main() -> None:
    import taskiq_app as app  # by its importable name, which is part of a task's name

    with asyncio.Runner() as runner:
        runner.run(app.broker.startup())

        async def send(kind: str, count: int) -> None:
            for first in range(0, count, 50):
                await asyncio.gather(*[app.KINDS[kind].kiq() for _ in range(min(50, count - first))])

        async def send_stamp(label: str, at: int) -> None:
            await app.stamp.kiq(label, at)

        async def size() -> int:
            from redis.asyncio import Redis

            async with Redis.from_url(os.environ["BENCH_REDIS_URL"]) as client:
                (group,) = await client.xinfo_groups("taskiq")
            return int(group["pending"]) + int(group["lag"])

        common.serve(
            send=lambda kind, count: runner.run(send(kind, count)),
            stamp=common.waited(send_stamp, runner),
            size=common.waited(size, runner),
        )


if __name__ == "__main__":
    main()
