"""The rq jobs that are measured: imported by the worker, and run as a program its producer."""

import os
from datetime import UTC, datetime

from common import serve, write_stamp
from redis import Redis
from rq import Queue
from rq.registry import ScheduledJobRegistry, StartedJobRegistry


def noop() -> None:
    pass


def stamp(label: str, at: int) -> None:
    write_stamp(label, at)


def main() -> None:
    import rq_app as jobs  # by its importable name: rq rejects functions of __main__

    queue = Queue(connection=Redis.from_url(os.environ["BENCH_REDIS_URL"]))

    def send(_kind: str, count: int) -> None:
        for first in range(0, count, 1000):
            queue.enqueue_many([Queue.prepare_data(jobs.noop) for _ in range(min(1000, count - first))])

    def later(label: str, due: int) -> None:
        queue.enqueue_at(datetime.fromtimestamp(due / 1e9, UTC), jobs.stamp, label, due)

    def size() -> int:
        waiting = [StartedJobRegistry(queue=queue), ScheduledJobRegistry(queue=queue)]
        return len(queue) + sum(len(registry) for registry in waiting)

    serve(
        single=lambda: queue.enqueue(jobs.noop),
        send=send,
        stamp=lambda label, at: queue.enqueue(jobs.stamp, label, at),
        later=later,
        size=size,
    )


if __name__ == "__main__":
    main()
