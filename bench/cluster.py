"""Compares qd on a Redis Cluster of three primaries with qd on a single server: one queue, in turn, round after round.

    python bench/cluster.py [--rounds 5] [--quick] [--write]

--write updates the section in RESULTS.md.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lineup
from measures import QUICK, Scale, drain, enqueue, pickup
from schedule import put
from stage import Stage

from server import Client, Server

HEAD = "## Redis Cluster\n"
ROWS = {
    "drain": "drain, one process, one job at a time, jobs/s ↑",
    "worker_us": "worker CPU per job, µs ↓",
    "enqueue": "enqueue, one producer, one call per job, jobs/s ↑",
    "enqueue_bulk": "enqueue in bulk, jobs/s ↑",
    "pickup_p50": "pickup on an idle queue, p50, ms ↓",
    "pickup_p99": "pickup on an idle queue, p99, ms ↓",
}
SLOTS = 16384


class AllNodes:
    """A client that sends each command to all servers."""

    def __init__(self, clients: list[Client]) -> None:
        self.clients = clients

    def call(self, *words: str | int) -> list[Any]:
        return [client.call(*words) for client in self.clients]


class Cluster:
    """Three primaries on loopback with a third of the slots each, nothing on disk. A Stage uses it like a Server."""

    def __init__(self, folder: Path) -> None:
        self.folders = [folder / f"node{number}" for number in range(3)]
        self.stack = ExitStack()

    def __enter__(self) -> "Cluster":
        self.nodes = [self.stack.enter_context(Node(folder)) for folder in self.folders]
        self.client: Any = AllNodes([node.client for node in self.nodes])
        share = SLOTS // 3 + 1
        for number, node in enumerate(self.nodes):
            node.client.call("CLUSTER", "ADDSLOTS", *range(number * share, min(SLOTS, (number + 1) * share)))
            for other in self.nodes:
                node.client.call("CLUSTER", "MEET", "127.0.0.1", other.port)
        while not all(b"cluster_state:ok" in reply for reply in self.client.call("CLUSTER", "INFO")):
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def cpu(self) -> float:
        return sum(node.cpu() for node in self.nodes)

    def round_trip(self, count: int) -> float:
        return self.nodes[0].round_trip(count)


class Node(Server):
    def __enter__(self) -> "Node":
        self.folder.mkdir()
        self.port = 11000 + (os.getpid() * 7 + int(self.folder.name[-1]) * 97) % 9000
        own = ["--port", str(self.port), "--cluster-enabled", "yes", "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen(["redis-server", *own, "--dir", str(self.folder), "--logfile", "log"])
        self.client = self._connect()
        return self


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="few jobs: a smoke test, not a measurement")
    parser.add_argument("--write", action="store_true", help="update the section in RESULTS.md")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qd-bench-") as name, ExitStack() as stack:
        places = {}
        for kind, server in (("single", Server), ("cluster", Cluster)):
            folder = Path(name) / kind
            folder.mkdir()
            places[kind] = Stage(folder, stack.enter_context(server(folder)))  # type: ignore[arg-type]
        samples = measured(places, args.rounds, QUICK if args.quick else Scale(samples=100))
    text = page(samples, args.rounds)
    print(text)
    if args.write:
        put(HEAD, text)


def measured(places: dict[str, Stage], rounds: int, scale: Scale) -> dict[str, dict[str, list[float]]]:
    """Kind of server -> row -> one number per round; the order alternates."""
    found: dict[str, dict[str, list[float]]] = {kind: {} for kind in places}
    peer = lineup.peers()["qd"]
    for measure in (drain, enqueue, pickup):
        for number in range(rounds):
            for kind in list(places)[:: 1 if number % 2 else -1]:
                places[kind].clear()
                for row, value in measure(places[kind], peer, scale).items():
                    found[kind].setdefault(row, []).append(value)
    return found


def page(samples: dict[str, dict[str, list[float]]], rounds: int) -> str:
    lines = [
        HEAD,
        f"Made by `python bench/cluster.py --write` on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC,",
        f"load {os.getloadavg()[0]:.1f}: one queue on a single Redis and on a cluster of three primaries, in turn,",
        f"{rounds} rounds, in alternating order; medians, with the minimum and maximum in brackets.",
        "",
        "|  | single | cluster | cluster / single, round by round |",
        "| --- | --: | --: | --: |",
    ]
    for row, title in ROWS.items():
        single, cluster = samples["single"][row], samples["cluster"][row]
        ratio = statistics.median(b / a for a, b in zip(single, cluster, strict=True))
        lines.append(f"| {title} | {shown(single)} | {shown(cluster)} | {ratio:.2f} x |")
    return "\n".join(lines) + "\n"


def shown(values: list[float]) -> str:
    digits = 0 if max(values) > 100 else 2
    low, high = min(values), max(values)
    return f"{statistics.median(values):,.{digits}f} ({low:,.{digits}f} .. {high:,.{digits}f})"


if __name__ == "__main__":
    main()
