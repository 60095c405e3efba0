"""Compares qd on beanstalkd with Laravel's beanstalkd driver: one queue, one worker, in turn, round after round.

    python bench/beanstalkd.py [--rounds 5] [--jobs 10000] [--write]

A first job, no-op jobs and a last job are all put before the worker starts. The first and the last job record the clock and
the CPU time of the worker. beanstalkd keeps a binlog, as in production. qd's control connection is a Redis without
persistence. --write updates the section in RESULTS.md.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import greenstalk
from schedule import put

from server import Server

HERE = Path(__file__).parent
HEAD = "## beanstalkd\n"
PEERS = ("qd", "laravel")
STAMPS = {"qd": "bench.stamp", "laravel": "Stamp"}
NOOPS = {"qd": "bench.noop", "laravel": "Noop"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--write", action="store_true", help="put the table into RESULTS.md")
    args = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {peer: [] for peer in PEERS}
    with tempfile.TemporaryDirectory(prefix="qd-bench-") as name:
        folder = Path(name)
        (folder / "redis").mkdir()
        with Server(folder / "redis") as server:
            for number in range(args.rounds):
                for peer in PEERS[:: 1 if number % 2 else -1]:
                    found[peer].append(drained(peer, folder / f"{number}-{peer}", server.url, args.jobs))
    text = page(found, args.rounds, args.jobs)
    print(text)
    if args.write:
        put(HEAD, text)


def drained(peer: str, folder: Path, redis: str, jobs: int) -> tuple[float, float]:
    """Jobs per second, and the worker's CPU time per job in microseconds."""
    (folder / "binlog").mkdir(parents=True)
    port = 12000 + (os.getpid() * 7 + len(str(folder))) % 9000
    server = subprocess.Popen(["beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", str(folder / "binlog")])
    try:
        fill(peer, port, jobs)
        return watched(peer, folder, port, redis, jobs)
    finally:
        server.kill()
        server.wait()


def fill(peer: str, port: int, jobs: int) -> None:
    while True:
        try:
            client = greenstalk.Client(("127.0.0.1", port), encoding=None, use="default")
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    for number in range(jobs + 2):
        edge = {0: "first", jobs + 1: "last"}.get(number)
        data = {"label": edge, "at": time.monotonic_ns()} if edge else []
        name = STAMPS[peer] if edge else NOOPS[peer]
        body = {"uuid": f"{number:032x}", "displayName": name, "job": name, "maxTries": None, "data": data}
        if peer == "qd":  # Laravel asks beanstalkd for the attempts, qd keeps them in the payload
            body |= {"id": f"{number:032x}", "attempts": 0, "delay": None}
        client.put(json.dumps(body, separators=(",", ":")).encode(), priority=1024, ttr=90)
    client.close()


def watched(peer: str, folder: Path, port: int, redis: str, jobs: int) -> tuple[float, float]:
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    own = {"BENCH_FIFO": str(fifo), "BENCH_TMP": str(folder), "BENCH_BEANSTALKD": str(port)}
    environment = {**os.environ, **own, "PYTHONPATH": f"{HERE.parent / 'daemon'}:{HERE / 'peers'}"}
    (folder / "qd.toml").write_text(
        '[qd]\napp = "qd_app:app"\ndefault = "tubes"\ncontrol = "control"\n'
        f'[connections.control]\nurl = "{redis}"\n'
        f'[connections.tubes]\nurl = "beanstalkd://127.0.0.1:{port}"\nretry_after = 90\n'
    )
    qd = [sys.executable, "-m", "qd", "work", "-w", "1", "--log-level", "warning"]
    command = {"qd": qd, "laravel": ["php", str(HERE / "peers" / "laravel.php"), "work"]}[peer]
    worker = subprocess.Popen(command, cwd=folder, env=environment)
    try:
        with fifo.open() as lines:
            first, last = (lines.readline().split() for _ in range(2))
        took, cpu = (int(last[place]) - int(first[place]) for place in (2, 4))
        return jobs / (took / 1e9), cpu / 1000 / jobs
    finally:
        worker.terminate()
        worker.wait()


def page(found: dict[str, list[tuple[float, float]]], rounds: int, jobs: int) -> str:
    lines = [
        HEAD,
        f"Made by `python bench/beanstalkd.py --write` on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC,",
        f"load {os.getloadavg()[0]:.1f}: {jobs:,} jobs in a tube, one worker of each, in turn, {rounds} rounds, in",
        "alternating order; medians, with the minimum and maximum in brackets. For each job qd queries beanstalkd and then",
        "its control connection, so that the job runs once even if beanstalkd restarts; Laravel's worker queries only",
        "beanstalkd, three times.",
        "",
        "|  | qd | Laravel | qd / Laravel, round by round |",
        "| --- | --: | --: | --: |",
    ]
    for place, title in enumerate(("drain, jobs/s ↑", "worker CPU per job, µs ↓")):
        ours, theirs = ([sample[place] for sample in found[peer]] for peer in PEERS)
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        lines.append(f"| {title} | {shown(ours)} | {shown(theirs)} | {ratio:.2f} x |")
    return "\n".join(lines) + "\n"


def shown(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} .. {max(values):,.0f})"


if __name__ == "__main__":
    main()
