"""The celery app that is measured: imported by its worker, and run as a program its producer.

celery has no bulk call.
"""

import os
from datetime import UTC, datetime

from celery import Celery
from common import serve, write_stamp

app = Celery("celery_app", broker=os.environ["BENCH_REDIS_URL"])
app.conf.worker_prefetch_multiplier = 1
app.conf.broker_connection_retry_on_startup = True


@app.task(name="bench.noop", ignore_result=True)
def noop() -> None:
    pass


@app.task(name="bench.stamp", ignore_result=True)
def stamp(label: str, at: int) -> None:
    write_stamp(label, at)


def later(label: str, due: int) -> None:
    stamp.apply_async((label, due), eta=datetime.fromtimestamp(due / 1e9, UTC))


def size() -> int:
    with app.connection_or_acquire() as connection:
        client = connection.default_channel.client
        return int(client.llen("celery")) + int(client.hlen("unacked"))


if __name__ == "__main__":
    serve(single=noop.delay, stamp=stamp.delay, later=later, size=size)
