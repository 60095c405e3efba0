"""qd on a Redis Cluster of three primaries beside qd on a single server, one queue, in turn, round after round.

    python bench/cluster.py [--rounds 5] [--quick] [--write]

--write puts the table into RESULTS.md, as a section of its own.
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
    "worker_us": "worker CPU a job, µs ↓",
    "enqueue": "enqueue, one producer, one call a job, jobs/s ↑",
    "enqueue_bulk": "enqueue in bulk, jobs/s ↑",
    "pickup_p50": "pickup on an idle queue, p50, ms ↓",
    "pickup_p99": "pickup on an idle queue, p99, ms ↓",
}
SLOTS = 16384


class Everywhere:
    """A client that asks all servers the same."""

    def __init__(self, clients: list[Client]) -> None:
        self.clients = clients

    def call(self, *words: str | int) -> list[Any]:
        return [client.call(*words) for client in self.clients]


class Cluster:
    """Three primaries on loopback, a third of the slots each, nothing on disk; as Server is to a Stage."""

    def __init__(self, folder: Path) -> None:
        self.folders = [folder / f"node{number}" for number in range(3)]
        self.stack = ExitStack()

    def __enter__(self) -> "Cluster":
        self.nodes = [self.stack.enter_context(Node(folder)) for folder in self.folders]
        self.client: Any = Everywhere([node.client for node in self.nodes])
        share = SLOTS // 3 + 1
        for number, node in enumerate(self.nodes):
            node.client.call("CLUSTER", "ADDSLOTS", *range(number * share, min(SLOTS, (number + 1) * share)))
            for other in self.nodes:
                node.client.call("CLUSTER", "MEET", "127.0.0.1", other.port)
        while not all(b"cluster_state:ok" in said for said in self.client.call("CLUSTER", "INFO")):
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
    parser.add_argument("--quick", action="store_true", help="few jobs: shows that all of it runs, not how fast")
    parser.add_argument("--write", action="store_true", help="put the table into RESULTS.md")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qd-bench-") as name, ExitStack() as stack:
        places = {}
        for kind, server in (("single", Server), ("cluster", Cluster)):
            folder = Path(name) / kind
            folder.mkdir()
            places[kind] = Stage(folder, stack.enter_context(server(folder)))  # type: ignore[arg-type]
        samples = measured(places, asked.rounds, QUICK if asked.quick else Scale(samples=100))
    text = page(samples, asked.rounds)
    print(text)
    if asked.write:
        put(HEAD, text)


def measured(places: dict[str, Stage], rounds: int, scale: Scale) -> dict[str, dict[str, list[float]]]:
    """Kind of server -> row -> a number each round; the order changes from round to round."""
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
        f"{rounds} rounds, the order changing; medians, and the least and the most in brackets.",
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
