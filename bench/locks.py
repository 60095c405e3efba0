"""Compares app.lock with redis-py's Lock: both on one server, in turn, so that changes of the machine affect both alike.

    python bench/locks.py [--rounds 5]

Prints the medians of the rounds; bench/README.md explains the numbers.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from lineup import ROOT

MEASURES = {"pairs": 2000, "hand_over": 30}
UNITS = {"pairs": "per second, acquired and released", "hand_over": "ms until the next holder runs"}


class Peer:
    def __init__(self, kind: str, python: str, socket: Path) -> None:
        self.kind = kind
        self.process = subprocess.Popen(
            [python, str(Path(__file__).parent / "peers" / "lock.py"), kind, str(socket)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "daemon") if kind == "qd" else ""},
        )

    def sample(self, measure: str, count: int) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(measure, count, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=5)
    rounds = options.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="qd-bench-") as folder:
        socket = Path(folder) / "r.sock"
        command = ["redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", folder]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        peers: list[Peer] = []
        try:
            while not socket.exists():
                assert server.poll() is None
            peers += [Peer("qd", sys.executable, socket), Peer("redis-py", sys.executable, socket)]
            compare(peers, rounds)
        finally:
            for peer in peers:
                peer.close()
            server.kill()
            server.wait()


def compare(peers: list[Peer], rounds: int) -> None:
    for measure, count in MEASURES.items():
        for peer in peers:
            peer.sample(measure, max(3, count // 20))  # warm
        seen: dict[str, list[float]] = {peer.kind: [] for peer in peers}
        for _ in range(rounds):
            for peer in peers:
                seen[peer.kind].append(peer.sample(measure, count))
        print(f"{measure}: {UNITS[measure]}")
        for kind, samples in seen.items():
            print(f"  {kind:9} {statistics.median(samples):10.2f}   ({min(samples):.2f} .. {max(samples):.2f})")


if __name__ == "__main__":
    main()
