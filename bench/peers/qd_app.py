"""The qd app that is measured: imported by `qd work`, and run as a program its producer."""

import asyncio
from datetime import UTC, datetime

import common
from common import serve, write_stamp

from qd import Qd, current_job

app = Qd()


@app.job("bench.noop")
def noop() -> None:
    pass


@app.job("bench.stamp")
def stamp(label: str, at: int) -> None:
    write_stamp(label, at)


@app.job("bench.anoop")
async def anoop() -> None:
    pass


@app.job("bench.nap1")
def nap1() -> None:
    common.nap(1)


@app.job("bench.nap10")
def nap10() -> None:
    common.nap(10)


@app.job("bench.sleep")
async def sleep() -> None:
    await common.sleep()


@app.job("bench.hang", tries=3, timeout=120)
async def hang() -> None:
    await common.hang(current_job().attempt)


@app.job("bench.block", tries=1, timeout=2)
async def block() -> None:
    common.block()


@app.job("bench.fail")
def fail() -> None:
    raise ValueError("as it is meant to")


KINDS = {
    "noop": noop, "anoop": anoop, "nap1": nap1, "nap10": nap10, "sleep": sleep, "hang": hang, "block": block,
    "fail": fail,
}  # fmt: skip


def send(kind: str, count: int) -> None:
    job = KINDS[kind]
    for first in range(0, count, 1000):
        app.dispatch(*[job.bind() for _ in range(min(1000, count - first))])


def gathered(count: int) -> None:
    async def send_all() -> None:
        for first in range(0, count, 500):
            await asyncio.gather(*[noop.adispatch() for _ in range(min(500, count - first))])

    asyncio.run(send_all())


def later(label: str, due: int) -> None:
    stamp.using(delay=datetime.fromtimestamp(due / 1e9, UTC)).dispatch(label, due)


def urgent(label: str, at: int) -> None:
    stamp.using(queue="high").dispatch(label, at)


if __name__ == "__main__":
    serve(
        single=noop.dispatch,
        send=send,
        gathered=gathered,
        stamp=stamp.dispatch,
        later=later,
        urgent=urgent,
        size=app.queue("default").size,
    )
