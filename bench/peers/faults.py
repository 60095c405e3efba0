"""The jobs of bench/faults.py for qd, Celery and RQ: imported by the workers, and run as a program to send them.

python faults.py KIND LABEL...
"""

import ctypes
import os
import sys
import time
from collections.abc import Callable

PEER = os.environ["BENCH_PEER"]


def note(event: str, label: str) -> None:
    line = f"{event} {label} {os.getpid()} {time.monotonic_ns()}\n"
    with open(os.environ["BENCH_JOURNAL"], "a") as journal:
        journal.write(line)


def wait(label: str, seconds: float) -> None:
    note("begin", label)
    time.sleep(seconds)
    note("end", label)


def short(label: str) -> None:
    wait(label, 0)


def tick(label: str) -> None:
    wait(label, 0.01)


def half(label: str) -> None:
    wait(label, 0.5)


def slow(label: str) -> None:
    wait(label, 5)


def stuck(label: str) -> None:
    note("begin", label)
    sum(range(10**12))  # C code that keeps the GIL for hours and runs no signal handler
    note("end", label)


def crash(label: str) -> None:
    note("begin", label)
    ctypes.string_at(0)


KINDS = (short, tick, half, slow, stuck, crash)
TRIES, TIMEOUT = 3, 2  # seconds


def of_qd() -> Callable[[str, str], object]:
    global app
    from qd import Qd

    app = Qd()
    jobs = {
        each.__name__: app.job(f"faults.{each.__name__}", tries=TRIES, timeout=TIMEOUT if each is stuck else 60)(each)
        for each in KINDS
    }
    return lambda kind, label: jobs[kind].dispatch(label)


def of_celery() -> Callable[[str, str], object]:
    global app
    from celery import Celery

    app = Celery("faults", broker=os.environ["BENCH_REDIS_URL"])
    app.conf.update(
        task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=1, task_ignore_result=True,
        broker_connection_retry_on_startup=True,
    )  # fmt: skip
    tasks = {
        each.__name__: app.task(name=f"faults.{each.__name__}", time_limit=TIMEOUT if each is stuck else 60)(each)
        for each in KINDS
    }
    return lambda kind, label: tasks[kind].delay(label)


def of_rq() -> Callable[[str, str], object]:
    import faults  # by its importable name: rq rejects functions of __main__
    from redis import Redis
    from rq import Queue, Retry

    queue = Queue(connection=Redis.from_url(os.environ["BENCH_REDIS_URL"]))

    def send(kind: str, label: str) -> object:
        limit = TIMEOUT if kind == "stuck" else 60
        return queue.enqueue(getattr(faults, kind), label, job_timeout=limit, retry=Retry(max=TRIES - 1))

    return send


if __name__ == "__main__" or PEER != "rq":
    send = {"qd": of_qd, "celery": of_celery, "rq": of_rq}[PEER]()
if __name__ == "__main__":
    for label in sys.argv[2:]:
        send(sys.argv[1], label)
