"""What event streams cost the server: jobs that emit, and followers that read, in one worker and one program.

    python bench/streams.py [--jobs 200] [--workers 1] [--rate 50] [--seconds 10] [--rounds 3]

Each round runs the jobs in three ways, in turn: without events, with events, and with a follower of each job. Prints the
medians of the CPU time of Redis (INFO) in percent of a core, and how long an event needs from emit() to its follower.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from lineup import ROOT

sys.path.insert(0, str(ROOT / "daemon"))

from qd import Qd
from qd.jobs.plan import Handle

WAYS = ("no events", "events", "events, followed")
JOBS = """
import asyncio, time
from qd import Qd, current_job

app = Qd()

@app.job("talk", timeout=0)
async def talk(rate: float, seconds: float, emits: bool) -> None:
    job, ends = current_job(), time.monotonic() + seconds
    while time.monotonic() < ends:
        if emits:
            job.emit({"token": "some ", "at": time.time()})
        await asyncio.sleep(1 / rate)
"""


class Sample(NamedTuple):
    server: float  # percent of a core
    events: float  # per second
    late: float  # ms from emit() to the follower, median


class Follower(threading.Thread):
    """Follows all jobs in one event loop."""

    def __init__(self, url: str, ids: list[str]) -> None:
        super().__init__()
        self.app, self.ids, self.late = Qd(url), ids, list[float]()

    def run(self) -> None:
        async def follow(handle: Handle[object]) -> None:
            async for event in handle.events():
                self.late.append(time.time() - event.data["at"])

        async def all_of_them() -> None:
            await asyncio.gather(*(follow(self.app.handle(id, queue="default")) for id in self.ids))
            self.app.connections.close()

        asyncio.run(all_of_them())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", type=int, default=200)
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--rate", type=float, default=50.0, help="events of each job in a second")
    options.add_argument("--seconds", type=float, default=10.0)
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="qd-bench-") as folder:
        socket = Path(folder) / "r.sock"
        command = ["redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", folder]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        Path(folder, "jobs.py").write_text(JOBS)
        env = {**os.environ, "PYTHONPATH": f"{ROOT / 'daemon'}:{folder}", "QD_REDIS_URL": f"unix://{socket}"}
        lanes = -(-given.jobs // given.workers)
        words = ["work", "-w", str(given.workers), "--concurrency", str(lanes), "--app", "jobs:app"]
        try:
            while not socket.exists():
                assert server.poll() is None
            seen: dict[str, list[Sample]] = {way: [] for way in WAYS}
            for _ in range(given.rounds):
                for way in WAYS:
                    work = subprocess.Popen(
                        [sys.executable, "-m", "qd", *words], cwd=folder, env=env, stderr=subprocess.DEVNULL
                    )
                    try:
                        seen[way].append(sample(f"unix://{socket}", way, given.jobs, given.rate, given.seconds))
                    finally:
                        work.terminate()
                        work.wait(60)
            report(seen)
        finally:
            server.kill()
            server.wait()


def sample(url: str, way: str, jobs: int, rate: float, seconds: float) -> Sample:
    app = Qd(url)
    queue, space = app.queue("default"), app.connections.get(None).kept[0]
    space.call("FLUSHALL")

    def used() -> float:
        facts = dict(line.split(":", 1) for line in space.call("INFO", "cpu").decode().split("\r\n") if ":" in line)
        return float(facts["used_cpu_sys"]) + float(facts["used_cpu_user"])

    talk = {"rate": rate, "seconds": seconds + 6, "emits": way != "no events"}
    ids = [queue.push("talk", talk).id for _ in range(jobs)]
    while space.call("ZCARD", "queues:default:reserved") < jobs:
        time.sleep(0.05)
    follower = Follower(url, ids) if way == "events, followed" else None
    if follower is not None:
        follower.start()
    time.sleep(2)  # the beginning does not count
    began, before, numbers = time.perf_counter(), used(), count(space, ids)
    first = len(follower.late) if follower else 0
    time.sleep(seconds)
    took = time.perf_counter() - began
    server, events = 100 * (used() - before) / took, (count(space, ids) - numbers) / took
    late = statistics.median(follower.late[first:]) * 1000 if follower else 0.0
    if follower is not None:
        follower.join()
    app.connections.close()
    return Sample(server, events, late)


def count(space: object, ids: list[str]) -> int:
    """The number of the last event of each job, added up."""
    entries = space.call_many([("LINDEX", f"qd:job:{id}:events", -1) for id in ids])  # type: ignore[attr-defined]
    return sum(int(entry.split(b" ")[0]) for entry in entries if entry)


def report(seen: dict[str, list[Sample]]) -> None:
    for way, samples in seen.items():
        server, events, late = (statistics.median(values) for values in zip(*samples, strict=True))
        loads = [sample.server for sample in samples]
        print(
            f"  {way:18} {events:8.0f} events/s   Redis {server:5.1f} % of a core ({min(loads):.1f} .. {max(loads):.1f})"
            + (f"   {late:.0f} ms to the follower" if late else "")
        )


if __name__ == "__main__":
    main()
