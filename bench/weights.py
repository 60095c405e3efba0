"""What weighted queues cost: CPU per job of Redis and of the worker's turns, against strict order, in turn in one run.

    python bench/weights.py [--rounds 7] [--jobs 18000] [--lanes 1,64]

One client drains three queues that hold jobs in the proportion 5:3:1, `strict` (high, default, low) or `weighted`. lanes:
how many jobs a turn takes at most; a weighted turn takes fewer. The figures are those of turn.py.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from turn import cpu, job

from qd.config.settings import ConnectionSettings
from qd.drivers.base import ClientIdentity
from qd.drivers.redis.queue import RedisQueue
from qd.drivers.types import LaneTurn
from qd.worker.queues import Rota, WeightedRota

QUEUES, WEIGHTS = ("high", "default", "low"), (5, 3, 1)


def drain(queue: RedisQueue, rota: Rota, jobs: int, lanes: int) -> tuple[float, float, float]:
    """Microseconds per job: Redis, client; and how many jobs a turn took."""
    queue.space.call("FLUSHALL")
    for name, weight in zip(QUEUES, WEIGHTS, strict=True):
        for n in range(jobs * weight // sum(WEIGHTS)):
            queue.push(name, job(n))

    def spent() -> float:
        text: bytes = queue.space.call("INFO", "cpu")
        return cpu(dict(line.split(b":", 1) for line in text.split(b"\r\n") if b":" in line))

    before, own, done, turns = spent(), time.process_time(), 0, 0
    if lanes == 1:
        held = queue.turn(None, rota.order).reserved
        while held is not None:
            rota.took(held.queue, time.monotonic())
            held, done, turns = queue.turn(held, rota.order).reserved, done + 1, turns + 1
    else:
        free = range(1, lanes + 1)
        several = queue.turn_lanes(LaneTurn(rota.order, lanes=free[: rota.most])).jobs
        while several:
            rota.took(several[0].queue, time.monotonic(), len(several))
            done, turns = done + len(several), turns + 1
            several = queue.turn_lanes(LaneTurn(rota.order, done=several, lanes=free[: rota.most])).jobs
        queue.leave_lanes()
    mine = time.process_time() - own
    return (spent() - before) / done * 1e6, mine / done * 1e6, done / turns


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=18000)
    parser.add_argument("--lanes", default="1,64")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder, "redis.sock")
        options = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", folder, "--loglevel", "warning"]
        server = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
        try:
            while not os.path.exists(socket):
                time.sleep(0.01)
            at = ConnectionSettings(name="redis", url=f"unix://{socket}", prefix="", retry_after=90.0)
            queue = RedisQueue(at, ClientIdentity("Tok3nTok3n", 1), max_payload=1 << 20)
            print("lanes  order     Redis us/job: median  least   client us/job: median  least   jobs/turn")
            for lanes in map(int, args.lanes.split(",")):
                figures: dict[str, list[tuple[float, ...]]] = {"strict": [], "weighted": []}
                for _ in range(args.rounds):
                    figures["strict"].append(drain(queue, Rota(QUEUES), args.jobs, lanes))
                    figures["weighted"].append(drain(queue, WeightedRota(QUEUES, WEIGHTS), args.jobs, lanes))
                for name, rounds in figures.items():
                    (redis, client, size), least = map(statistics.median, zip(*rounds, strict=True)), min(rounds)
                    print(
                        f"{lanes:5}  {name:9} {redis:20.1f} {least[0]:6.1f} {client:23.1f} {least[1]:6.1f} {size:11.1f}"
                    )
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
