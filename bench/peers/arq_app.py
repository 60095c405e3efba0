"""The arq app that is measured: imported by its worker, and run as a program its producer. arq has no bulk call: the
producer writes what enqueue_job writes, in pipelines."""

import asyncio
import logging
import os
import uuid
from typing import Any, ClassVar

import common
from arq.connections import ArqRedis, RedisSettings, create_pool
from arq.constants import default_queue_name, job_key_prefix
from arq.jobs import serialize_job
from arq.utils import timestamp_ms

SETTINGS = RedisSettings.from_dsn(os.environ["BENCH_REDIS_URL"])


async def anoop(_: Any) -> None:
    pass


async def stamp(_: Any, label: str, at: int) -> None:
    common.write_stamp(label, at)


async def sleep(_: Any) -> None:
    await common.sleep()


async def quiet(_: Any) -> None:
    logging.getLogger("arq").setLevel(logging.WARNING)


class Worker:
    functions: ClassVar = [anoop, stamp, sleep]
    redis_settings = SETTINGS
    max_jobs = int(os.environ.get("BENCH_CONCURRENCY", "1"))
    on_startup = quiet


def main() -> None:
    with asyncio.Runner() as runner:
        redis: ArqRedis = runner.run(create_pool(SETTINGS))

        async def send(kind: str, count: int) -> None:
            for first in range(0, count, 1000):
                async with redis.pipeline(transaction=False) as pipe:
                    for _ in range(min(1000, count - first)):
                        id, now = uuid.uuid4().hex, timestamp_ms()
                        pipe.psetex(job_key_prefix + id, 86_400_000, serialize_job(kind, (), {}, None, now))
                        pipe.zadd(default_queue_name, {id: now})
                    await pipe.execute()

        async def send_stamp(label: str, at: int) -> None:
            await redis.enqueue_job("stamp", label, at)

        async def size() -> int:
            return int(await redis.zcard(default_queue_name))

        common.serve(
            send=lambda kind, count: runner.run(send("anoop" if kind == "noop" else kind, count)),
            stamp=common.waited(send_stamp, runner),
            size=common.waited(size, runner),
        )


if __name__ == "__main__":
    main()
