"""Measures how the cost of a job grows with what is on the server: `python bench/scale.py [--axes ready,hosts] [--write]`.

Each axis has a base and one or more larger cases, which take turns, three rounds. In each case a real `qd work` with one
worker drains no-op jobs and picks up single ones. Redis CPU is what the server used beyond its consumption just before the
drain. --write updates the section in RESULTS.md.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import lineup
from lineup import ROOT, Peer, Setup
from measures import Scale, pickup
from schedule import JOBS, put, server_has
from stage import Stage

from server import Server

HEAD = "## Scale\n"
MILLION = 1_000_000
JOBS_EACH = 8_000
CHUNK = 10_000
TOML = """
[qd]
app = "qd_app:app"
[failed]
max_count = 10000000
max_bytes = "10G"
"""


@dataclass(frozen=True)
class Case:
    """load: puts jobs on the server and returns the bytes of each. queues: of the worker. kind: of the jobs that it drains.
    picks: whether pickup is measured. fleet: simulated hosts, their workers, and whether these run jobs."""

    title: str
    load: Callable[[Stage], float]
    queues: tuple[str, ...] = ("default",)
    kind: str = "noop"
    picks: bool = True
    fleet: tuple[int, int, bool] | None = None
    schedule: int = 0


def nothing(_: Stage) -> float:
    return 0.0


# --- what is put on the server: a real payload, repeated by the server with other ids

FILL = """
local template, first, last = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
for i = first, last do
  local text = string.gsub(template, '@', string.format('%032d', i), 2)
  if ARGV[4] == 'ready' then
    redis.call('RPUSH', KEYS[1], text)
    redis.call('RPUSH', KEYS[1] .. ':notify', '1')
  elseif ARGV[4] == 'delayed' then redis.call('ZADD', KEYS[1] .. ':delayed', 4000000000 + i / 1000, text)
  else
    local id = string.format('%032d', i)
    redis.call('HSET', KEYS[1] .. ':failed', id, text)
    redis.call('ZADD', KEYS[1] .. ':failed_at', ARGV[5] + i / 1000000, id)
    redis.call('ZINCRBY', KEYS[1] .. ':failed_at', -#text, 'bytes')
  end
end
"""
PAYLOAD = {
    "uuid": "@", "displayName": "bench.noop", "job": "bench.noop", "maxTries": None, "maxExceptions": None,
    "failOnTimeout": False, "backoff": None, "timeout": None, "data": {}, "createdAt": 1795814118, "id": "@",
    "attempts": 0, "delay": None,
}  # fmt: skip
RECORD = {
    "id": "@", "job": "bench.noop", "error": "ValueError", "reason": "as it is meant to", "attempts": 1,
    "host": "host-1", "failed_at": 1795814118.123,
}  # fmt: skip


def fill(kind: str, count: int, queue: str = "default") -> Callable[[Stage], float]:
    """Put jobs on the server. The load returns the bytes of memory that each takes."""

    def load(stage: Stage) -> float:
        client = stage.server.client
        text = json.dumps(PAYLOAD, separators=(",", ":"))
        if kind == "failed":
            text = json.dumps(RECORD) + "\n" + text
        before = int(client.info("memory")["used_memory"])
        for first in range(0, count, CHUNK):
            last = min(count, first + CHUNK) - 1
            client.call("EVAL", FILL, 1, f"queues:{queue}", text, first, last, kind, f"{time.time() - 3600:.0f}")
        return (int(client.info("memory")["used_memory"]) - before) / max(1, count)

    return load


def hosts(number: int, workers: int, busy: bool) -> Case:
    title = f"{workers:,} workers on {number} host{'s' * (number > 1)}"
    load = fill("ready", workers) if busy else nothing
    return Case(title, load, fleet=(number, workers, busy))


HUNDRED = tuple(f"q{number:02d}" for number in range(99))
AXES = {
    "ready": [
        Case("0 ready jobs behind", nothing, picks=False),
        Case("1,000,000 ready jobs behind", fill("ready", MILLION), picks=False),
    ],
    "delayed": [Case("0 delayed jobs", nothing), Case("1,000,000 delayed jobs", fill("delayed", MILLION))],
    "queues": [
        Case("1 queue per worker", nothing),
        Case("100 queues, jobs in the first", nothing, queues=("default", *HUNDRED)),
        Case("100 queues, jobs in the last", nothing, queues=(*HUNDRED, "default")),
    ],
    "failed": [Case("0 failed jobs", nothing), Case("1,000,000 failed jobs", fill("failed", MILLION))],
    "failing": [
        Case("jobs that fail, 0 failed before", nothing, kind="fail", picks=False),
        Case("jobs that fail, 1,000,000 failed before", fill("failed", MILLION), kind="fail", picks=False),
    ],
    "busy": [hosts(1, 8, True), hosts(10, 1_000, True), hosts(100, 10_000, True)],
    "idle": [hosts(1, 8, False), hosts(10, 1_000, False), hosts(100, 10_000, False)],
    "schedule": [Case("no schedule", nothing), Case("10,000 schedule entries", nothing, schedule=10_000)],
}
TITLES = {
    "busy": "other workers, each with a running job",
    "idle": "other workers, all idle",
}


# --- the measurement


def measured(stage: Stage, peer: Peer, case: Case) -> dict[str, float]:
    """One sample of a case."""
    work = [sys.executable, "-m", "qd", "work", *case.queues, "--no-schedule", "--log-level", "error"]
    setups = {
        "one": Setup([[*work, "-w", "1"]]),
        "drain": Setup([[*work, "-w", "1"]]),
    }
    peer = replace(peer, setups=setups)
    sample: dict[str, float] = {}
    with ExitStack() as stack:
        producer = stack.enter_context(stage.producer(peer))
        if case.fleet:  # its workers take all jobs that are there
            case.load(stage)
            stack.enter_context(beside(stage, peer, case))
        producer.ask("stamp", label="first")
        producer.ask("bulk", jobs=JOBS_EACH, kind=case.kind)
        producer.ask("stamp", label="last")
        if not case.fleet:
            sample["bytes"] = case.load(stage)
            stack.enter_context(beside(stage, peer, case))
        rate = idle_rate(stage)
        sample["server_idle"] = 100 * rate
        with stage.workers(peer, "drain"):
            (first,) = stage.stamps(1)
            before, began = stage.server.cpu(), time.monotonic()
            (last,) = stage.stamps(1)
            used = stage.server.cpu() - before - rate * (time.monotonic() - began)
        turns = JOBS_EACH + 1
        sample |= {"server_us": used * 1e6 / turns, "worker_us": (last.cpu - first.cpu) / 1e3 / turns}
        if case.picks:
            sample |= pickup(stage, peer, Scale(samples=100))
    return sample


def idle_rate(stage: Stage, seconds: float = 4.0) -> float:
    """The share of a core that the server uses without the measured worker."""
    before, began = stage.server.cpu(), time.monotonic()
    time.sleep(seconds)
    return (stage.server.cpu() - before) / (time.monotonic() - began)


@contextmanager
def beside(stage: Stage, peer: Peer, case: Case) -> Iterator[None]:
    """What else uses the server: a fleet, or a scheduler."""
    env = {**stage.environment(peer), "PYTHONPATH": os.pathsep.join([str(lineup.APPS), str(ROOT / "daemon")])}
    if case.fleet:
        count, workers, busy = case.fleet
        fleet = [str(ROOT / "bench" / "fleet.py"), "--hosts", str(count), "--workers", str(workers)]
        argv = [sys.executable, *fleet, *(["--queue", "default", "--busy"] if busy else ["--queue", "idle"])]
    elif case.schedule:
        (stage.folder / "entries.py").write_text(JOBS.format(entries=case.schedule, cron='"0 3 * * *"'))
        argv = [sys.executable, "-m", "qd", "schedule", "work", "--app", "entries:app", "--log-level", "error"]
        env["PYTHONPATH"] += os.pathsep + str(stage.folder)
    else:
        yield
        return
    process = subprocess.Popen(argv, cwd=stage.folder, env=env, stdout=subprocess.PIPE, text=True)
    try:
        if case.fleet:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("the simulated workers did not start")
            time.sleep(4.0)  # their first waits are spread over three seconds
        else:
            server_has(stage.server, case.schedule)
        yield
    finally:
        process.terminate()
        process.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", default=",".join(AXES), help=", ".join(AXES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="update the section in RESULTS.md")
    args = parser.parse_args()
    before = os.getloadavg()[0]
    samples: dict[str, dict[str, list[dict[str, float]]]] = {}
    with tempfile.TemporaryDirectory(prefix="qd-bench-") as name, Server(Path(name), "--maxclients", "15000") as server:
        (Path(name) / "qd.toml").write_text(TOML)
        stage, peer = Stage(Path(name), server), next(iter(lineup.peers().values()))
        for axis in args.axes.split(","):
            samples[axis] = {case.title: [] for case in AXES[axis]}
            for number in range(1, args.rounds + 1):
                for case in AXES[axis]:
                    stage.clear()
                    sample = measured(stage, peer, case)
                    samples[axis][case.title].append(sample)
                    shown = " ".join(f"{metric}={value:.4g}" for metric, value in sample.items())
                    print(f"round {number} {axis:9} {case.title:32} {shown}", file=sys.stderr, flush=True)
    text = section(samples, args.rounds, before)
    print(text)
    if args.write:
        put(HEAD, text)


# --- the page

COLUMNS = [
    ("server_us", "Redis CPU per job, µs", "{:.1f}"),
    ("worker_us", "worker CPU per job, µs", "{:.0f}"),
    ("pickup_p50", "pickup p50, ms", "{:.2f}"),
    ("pickup_p99", "p99, ms", "{:.2f}"),
    ("server_idle", "Redis CPU without these jobs, % of a core", "{:.1f}"),
    ("bytes", "memory, bytes each", "{:,.0f}"),
]


NOTE = """

Not flat: each further queue of a worker adds some reads to a turn, and each empty one in front of the job's queue a
search; all keepers call at the same moment, at each whole second. Beside many idle workers a job seems cheaper, because a
busy Redis serves several calls with one system call.
"""


def section(samples: dict[str, dict[str, list[dict[str, float]]]], rounds: int, before: float) -> str:
    """CPU times are the lowest of the rounds, because other work on the machine only adds to them; the rest are medians."""
    commit = lineup.versions()["qd"]
    lines = [
        HEAD,
        f"Made by `python bench/scale.py --write` on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {commit},",
        f"{os.cpu_count()} CPUs, load {before:.1f} before and {os.getloadavg()[0]:.1f} after: {rounds} rounds, the cases of",
        "an axis in turn. CPU times are the lowest of the rounds, because other work only adds to them; pickups medians.",
        "In brackets: the ratio to the first line of the axis. docs/explanation/sizing.md explains what follows.",
    ]
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        lines.append("The machine had other work, with lower priority than this.")
    elif before > 1:
        lines.append("Other work ran on the machine during this run: compare ratios and CPU times, not pickups.")
    lines += ["", "| | " + " | ".join(title for _, title, _ in COLUMNS) + " |", "| --- |" + " --: |" * len(COLUMNS)]
    for axis, cases in samples.items():
        if axis in TITLES:
            lines.append(f"| *{TITLES[axis]}* |" + " |" * len(COLUMNS))
        base = next(iter(cases.values()))
        for title, taken in cases.items():
            cells = [cell(base, taken, metric, form) for metric, _, form in COLUMNS]
            lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + NOTE


def cell(base: list[dict[str, float]], taken: list[dict[str, float]], metric: str, form: str) -> str:
    best = min if metric.endswith("_us") else median
    values, of_base = ([sample[metric] for sample in of if metric in sample] for of in (taken, base))
    if not any(values):
        return "-"
    shown = form.format(best(values))
    if base is taken or metric in ("server_idle", "bytes"):
        return shown
    return f"{shown} ({best(values) / best(of_base):.2f} x)"


if __name__ == "__main__":
    main()
