"""What qd, Celery and RQ do when something dies, in turn on a Redis of their own: "Faults" in RESULTS.md.

    python bench/faults.py [--rounds 5] [--peers qd,celery,rq] [--write]

Each peer has two workers. Its jobs (peers/faults.py) write their begin and end to a file. The scenarios, in this order:

    worker    kill -9 of the process that runs a job, until the job begins again
    tree      kill -9 of all its processes, from the new start until the job begins again, at most 12 s
    backlog   kill -9 of all with 20 jobs, then a new start: jobs without an end after 60 s
    server    kill -9 of Redis (appendfsync always) with 400 short jobs, then a new start: jobs without an end after 60 s
    stuck     a job in C code that holds the GIL, timeout 2 s: until its process is gone
    segfault  a job that always crashes, three tries: how often it begins within 40 s
    hostile   twelve malformed payloads, then ten good jobs: how many of those end within 20 s

Celery runs with task_acks_late and task_reject_on_worker_lost, RQ with a Retry(max=2) for each job; both would lose more
without. Run it alone: the times are the latencies of single processes.
"""

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import psutil
from lineup import APPS, ROOT, VENV, install, python_of, versions
from schedule import put
from tree import family

from server import Client, Server

HEAD = "## Faults\n"
LIMIT = 12.0  # seconds for a job to begin again


class Peer(NamedTuple):
    """queue: the list in Redis that its workers take jobs from."""

    name: str
    python: str
    work: list[str]
    queue: str


def peers() -> dict[str, Peer]:
    celery = [python_of("celery"), "-m", "celery", "-A", "faults:app", "worker", "-c", "2", "-l", "WARNING"]
    rq = [str(VENV / "rq" / "bin" / "rq"), "worker-pool", "-n", "2", "--logging-level", "WARNING", "default"]
    qd = [sys.executable, "-m", "qd", "work", "-w", "2", "--app", "faults:app"]
    return {
        "qd": Peer("qd", sys.executable, qd, "queues:default"),
        "celery": Peer("celery", python_of("celery"), celery, "celery"),
        "rq": Peer("rq", python_of("rq"), rq, "rq:queue:default"),
    }


class Line(NamedTuple):
    """What a job writes: begin or end, its label, its process, and the monotonic clock in seconds."""

    event: str
    label: str
    pid: int
    at: float


class Stage:
    """A folder, a Redis that keeps everything on disk, and one peer's processes."""

    def __init__(self, folder: Path, peer: Peer) -> None:
        self.folder, self.peer, self.journal = folder, peer, folder / "journal"
        self.journal.touch()
        options = ("--appendonly", "yes", "--appendfsync", "always")
        self.server = Server(folder, *options)
        self.work: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Stage":
        self.server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.server.process.kill()
        self.server.process.wait()

    def environment(self) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("QD_", "RQ_", "CELERY_"))}
        url, path = self.server.url, os.pathsep.join([str(APPS), str(ROOT / "daemon")])
        ours = {"QD_REDIS_URL": url, "RQ_REDIS_URL": url, "BENCH_REDIS_URL": url, "PYTHONPATH": path}
        return inherited | ours | {"BENCH_JOURNAL": str(self.journal), "BENCH_PEER": self.peer.name}

    def start(self) -> float:
        """Start the workers. Returns the time of the start."""
        began = time.monotonic()
        with (self.folder / "log").open("ab") as log:
            self.work = subprocess.Popen(
                self.peer.work, cwd=self.folder, env=self.environment(), stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        return began

    def kill(self) -> None:
        if self.work is None:
            return
        for process in family([self.work.pid]):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.work.wait()
        self.work = None

    def send(self, kind: str, *labels: str) -> None:
        words = [self.peer.python, str(APPS / "faults.py"), kind, *labels]
        subprocess.run(words, cwd=self.folder, env=self.environment(), check=True)

    def lines(self, label: str | None = None, event: str | None = None) -> list[Line]:
        rows = [line.split() for line in self.journal.read_text().splitlines()]
        found = [Line(row[0], row[1], int(row[2]), int(row[3]) / 1e9) for row in rows if len(row) == 4]
        return [one for one in found if label in (None, one.label) and event in (None, one.event)]

    def begin(self, label: str, number: int = 1, limit: float = 60.0) -> Line | None:
        """The line of its begin with this number. None: it was not written in time."""
        self.until(lambda: len(self.lines(label, "begin")) >= number, limit)
        return next(iter(self.lines(label, "begin")[number - 1 :]), None)

    def until(self, holds: Callable[[], bool], limit: float) -> bool:
        end = time.monotonic() + limit
        while not holds():
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        return True

    def missing(self, labels: Sequence[str], limit: float) -> int:
        """Those that have not ended within the limit."""
        wanted = set(labels)
        self.until(lambda: wanted <= {one.label for one in self.lines(event="end")}, limit)
        return len(wanted - {one.label for one in self.lines(event="end")})

    def ready(self) -> None:
        """The workers run: a job of theirs has ended."""
        label = f"ready{random.random()}"
        self.send("short", label)
        if self.missing([label], 60):
            raise TimeoutError(
                f"the workers of {self.peer.name} ran no job: {(self.folder / 'log').read_text()[-2000:]}"
            )


# --- scenarios: each returns the cell of the table, or a time in seconds (None: not within the limit)


def worker(stage: Stage) -> float | None:
    stage.start()
    stage.ready()
    stage.send("slow", "lone")
    first = stage.begin("lone")
    assert first
    os.kill(first.pid, signal.SIGKILL)
    killed = time.monotonic()
    again = stage.begin("lone", 2, LIMIT)
    return again.at - killed if again else None


def tree(stage: Stage) -> float | None:
    stage.start()
    stage.ready()
    stage.send("slow", "lone")
    assert stage.begin("lone")
    stage.kill()
    began = stage.start()
    again = stage.begin("lone", 2, LIMIT)
    return again.at - began if again else None


def backlog(stage: Stage) -> str:
    labels = [f"one{number}" for number in range(20)]
    stage.start()
    stage.ready()
    stage.send("half", *labels)
    stage.until(lambda: len(stage.lines(event="end")) > 4, 60)
    stage.kill()
    stage.start()
    return str(stage.missing(labels, 60))


def server(stage: Stage) -> str:
    labels = [f"one{number}" for number in range(400)]
    stage.start()
    stage.ready()
    stage.send("tick", *labels)
    stage.until(lambda: len(stage.lines(event="end")) > 100, 60)
    stage.server.process.kill()
    stage.server.process.wait()
    words = stage.server.process.args
    time.sleep(1.0)
    stage.server.process = subprocess.Popen(words)  # type: ignore[arg-type]  # the words that Server gave
    return str(stage.missing(labels, 60))


def stuck(stage: Stage) -> str:
    stage.start()
    stage.ready()
    stage.send("stuck", "stuck")
    first = stage.begin("stuck")
    assert first
    ended = stage.until(lambda: not psutil.pid_exists(first.pid) or zombie(first.pid), LIMIT)
    took = time.monotonic() - first.at
    if not ended:
        return f"not within {LIMIT:.0f} s"
    again = stage.begin("stuck", 2, LIMIT)
    return f"{took:.1f} s, {'retried' if again else 'job dropped'}"


def zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def segfault(stage: Stage) -> str:
    stage.start()
    stage.ready()
    stage.send("crash", "crash")
    time.sleep(40.0)  # the measure: how often it begins within this time
    starts = stage.lines("crash", "begin")
    over = time.monotonic() - starts[-1].at > 20
    return f"{len(starts)} starts, {'then no more' if over else 'no end'}"


HOSTILE = (
    "", "x", "null", "[]", "{}", '{"job": 7}', '{"id": null, "body": "!", "headers": {}}', "\x00\xff", '{"uuid": "a"',
    '{"job": "nobody", "data": {}}', "[" * 100_000, '{"headers": {"task": "nobody", "id": "1"}, "body": "W10="}',
)  # fmt: skip


def hostile(stage: Stage) -> str:
    labels = [f"good{number}" for number in range(10)]
    stage.start()
    stage.ready()
    client = Client(stage.server.port)
    for payload in HOSTILE:
        client.call("RPUSH", stage.peer.queue, payload)
    client.close()
    stage.send("short", *labels)
    done = len(labels) - stage.missing(labels, 20)
    assert stage.work
    exited = stage.work.poll() is not None
    return f"{done} done" + (", worker exited" if exited else "")


TIMED: dict[str, tuple[str, Callable[[Stage], float | None]]] = {
    "worker": ("kill -9 of a worker: the job begins again after (p50)", worker),
    "tree": ("kill -9 of the process tree: the job begins again after the new start (p50)", tree),
}
ONCE: dict[str, tuple[str, Callable[[Stage], str]]] = {
    "backlog": ("the same with 20 jobs: jobs missing after 60 s", backlog),
    "server": ("kill -9 of Redis: jobs missing of 400", server),
    "stuck": ("job stuck in C code, timeout 2 s: its process is gone after", stuck),
    "segfault": ("job that segfaults, 3 tries", segfault),
    "hostile": ("12 hostile payloads, then 10 good jobs", hostile),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of the scenarios that measure a time")
    parser.add_argument("--peers", default="qd,celery,rq")
    parser.add_argument("--scenarios", default=",".join([*TIMED, *ONCE]))
    parser.add_argument("--write", action="store_true", help="update the section in RESULTS.md")
    args = parser.parse_args()
    install({"celery", "rq"})
    chosen = [peers()[name] for name in args.peers.split(",")]
    rows: list[list[str]] = []
    for name in args.scenarios.split(","):
        title = (TIMED.get(name) or ONCE[name])[0]
        taken: dict[str, list[float | None]] = {peer.name: [] for peer in chosen}
        cells: dict[str, str] = {}
        for _ in range(args.rounds if name in TIMED else 1):
            for peer in chosen:
                with tempfile.TemporaryDirectory(prefix="qd-bench-") as folder, Stage(Path(folder), peer) as stage:
                    if name in TIMED:
                        taken[peer.name].append(TIMED[name][1](stage))
                    else:
                        cells[peer.name] = ONCE[name][1](stage)
                print(name, peer.name, taken[peer.name][-1:] or cells[peer.name], file=sys.stderr, flush=True)
        rows.append([title, *(cells.get(peer.name) or median(taken[peer.name]) for peer in chosen)])
    text = section(rows, chosen, args.rounds)
    print(text)
    if args.write:
        put(HEAD, text)


def median(taken: Sequence[float | None]) -> str:
    known = [LIMIT if one is None else one for one in taken]
    middle = statistics.median(known)
    return f"not within {LIMIT:.0f} s" if middle == LIMIT else f"{middle:.3f} s" if middle < 1 else f"{middle:.2f} s"


def section(rows: list[list[str]], chosen: Sequence[Peer], rounds: int) -> str:
    known = versions()
    head = ["fault", *(f"{peer.name} {known.get(peer.name, '')}" for peer in chosen)]
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    text = (
        f"Made by `python bench/faults.py --write` on {when}, load {os.getloadavg()[0]:.1f}: the first two rows are\n"
        f"medians of {rounds} rounds in turn, the others one run each. Two workers each. Celery with late acks and\n"
        "reject_on_worker_lost, RQ with Retry(max=2).\n"
    )
    return (
        f"{HEAD}\n{text}\n"
        + "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rows])
        + "\n"
    )


if __name__ == "__main__":
    main()
