"""What a turn costs the Redis server: CPU per job of two versions of qd, in turn, on a server each.

    python bench/turn.py [--rounds 3] [--jobs 20000] [--lanes 1,4,16,64] [OLD_TREE]

OLD_TREE: a checkout of an earlier version, of which one job per turn is measured. One client drains a queue of no-op jobs as
fast as it can; the figures are used_cpu_user + used_cpu_sys of the server's INFO (with the reading and writing of its
sockets), and the CPU of the client, in microseconds per job.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent


def job(n: int) -> bytes:
    """As qd and Laravel push it."""
    fields = {
        "uuid": f"{n:08x}-0000-4000-8000-000000000000",
        "displayName": "noop",
        "job": "noop",
        "maxTries": None,
        "timeout": None,
        "data": {"n": n},
        "createdAt": 1795225685,
        "id": f"{n:032x}",
        "attempts": 0,
        "delay": None,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def cpu(server: dict[bytes, bytes]) -> float:
    return float(server[b"used_cpu_user"]) + float(server[b"used_cpu_sys"])


def drain(socket: str, jobs: int, lanes: int) -> None:
    """In a process of its own, with the version of qd that is first in PYTHONPATH."""
    try:
        from qd.config.settings import ConnectionSettings
    except ImportError:
        from qd.config import ConnectionSettings

    try:
        from qd.drivers.base import ClientIdentity
        from qd.drivers.redis.queue import RedisQueue
    except ImportError:  # their names in November 2026
        from qd.connectors.redis.queue import RedisQueue
        from qd.connectors.reserver import Reserver as ClientIdentity

    settings = ConnectionSettings(name="redis", url=f"unix://{socket}", prefix="", retry_after=90.0)
    queue = RedisQueue(settings, ClientIdentity("Tok3nTok3n", 1), max_payload=1 << 20)
    queue.space.call("FLUSHALL")
    for at in range(0, jobs, 1000):
        for n in range(at, at + 1000):
            queue.push("default", job(n))

    def info() -> dict[bytes, bytes]:
        text: bytes = queue.space.call("INFO", "cpu")
        return dict(line.split(b":", 1) for line in text.split(b"\r\n") if b":" in line)

    queue.turn(None, ["none"])
    before, began, own, done = cpu(info()), time.monotonic(), time.process_time(), 0
    if lanes == 1:
        held = queue.turn(None, ["default"]).reserved
        while held is not None:
            held, done = queue.turn(held, ["default"]).reserved, done + 1
    else:
        from qd.drivers.types import LaneTurn

        free = tuple(range(1, lanes + 1))
        jobs_held = queue.turn_lanes(LaneTurn(("default",), lanes=free)).jobs
        while jobs_held:
            done += len(jobs_held)
            jobs_held = queue.turn_lanes(LaneTurn(("default",), done=jobs_held, lanes=free)).jobs
        queue.leave_lanes()
    spent, took, mine = cpu(info()) - before, time.monotonic() - began, time.process_time() - own
    assert done == jobs, (done, jobs)
    assert queue.space.call("DBSIZE") == 0, queue.space.call("KEYS", "*")
    print(json.dumps([spent / jobs * 1e6, mine / jobs * 1e6, took / jobs * 1e6]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("old", nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=20000)
    parser.add_argument("--lanes", default="1,4,16,64")
    parser.add_argument("--drain", nargs=2, metavar=("SOCKET", "LANES"))
    args = parser.parse_args()
    if args.drain:
        return drain(args.drain[0], args.jobs, int(args.drain[1]))
    kinds = [("old", Path(args.old), 1)] if args.old else []
    kinds += [("new", HERE, int(lanes)) for lanes in args.lanes.split(",")]
    figures: dict[tuple[str, int], list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        socket = f"{folder}/redis.sock"
        options = ["--port", "0", "--unixsocket", socket, "--save", "", "--dir", folder, "--loglevel", "warning"]
        server = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
        try:
            while not os.path.exists(socket):
                time.sleep(0.01)
            for _ in range(args.rounds):
                for name, tree, lanes in kinds:
                    command = [sys.executable, __file__, "--jobs", str(args.jobs), "--drain", socket, str(lanes)]
                    env = {**os.environ, "PYTHONPATH": str(tree / "daemon")}
                    line = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
                    figures.setdefault((name, lanes), []).append(json.loads(line))
        finally:
            server.terminate()
            server.wait()
    print("version  lanes   Redis us/job: median  least   client us/job   wall us/job")
    for (name, lanes), rounds in figures.items():
        redis, client, wall = (statistics.median(each) for each in zip(*rounds, strict=True))
        print(f"{name:7} {lanes:6} {redis:22.1f} {min(each[0] for each in rounds):6.1f} {client:15.1f} {wall:13.1f}")


if __name__ == "__main__":
    main()
