"""Compares dispatch() in a loop with adispatch() in one asyncio.gather: one process, one server, in turn.

    python bench/adispatch.py [--rounds 5] [--jobs 10000]

Prints the medians of the rounds in jobs per second.
"""

import argparse
import asyncio
import gc
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from lineup import ROOT

sys.path.insert(0, str(ROOT / "daemon"))

from qd import Qd


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--jobs", type=int, default=10_000)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="qd-bench-") as folder:
        socket = Path(folder) / "r.sock"
        command = ["redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", folder]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            while not socket.exists():
                assert server.poll() is None
            for kind, samples in compare(Qd(f"unix://{socket}"), given.jobs, given.rounds).items():
                median, least, most = statistics.median(samples), min(samples), max(samples)
                print(f"  {kind:12} {median:8.0f} jobs/s   ({least:.0f} .. {most:.0f})")
        finally:
            server.kill()
            server.wait()


def compare(app: Qd, jobs: int, rounds: int) -> dict[str, list[float]]:
    @app.job("mail.welcome")
    def welcome(to: str) -> None: ...

    async def gathered(count: int) -> float:
        await welcome.adispatch("ada@example.org")  # connects
        began = time.perf_counter()
        await asyncio.gather(*(welcome.adispatch("ada@example.org") for _ in range(count)))
        return count / (time.perf_counter() - began)

    def looped(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            welcome.dispatch("ada@example.org")
        return count / (time.perf_counter() - began)

    ways: dict[str, Callable[[int], float]] = {
        "dispatch": looped,
        "adispatch": lambda count: asyncio.run(gathered(count)),
    }
    seen: dict[str, list[float]] = {kind: [] for kind in ways}
    for kind in ways:
        ways[kind](jobs // 20)  # warm
    for _ in range(rounds):
        for kind in ways:
            app.queue("default").clear()
            gc.collect()
            seen[kind].append(ways[kind](jobs))
    return seen


if __name__ == "__main__":
    main()
