"""Masters of two versions of qd that share one server, kills of their processes, and what became of their jobs.

    old    the code of an earlier commit, in a folder of its own, first on PYTHONPATH
    new    this checkout

Each version has one master, whose place is taken again after a kill, and one producer. Jobs write the ledger of
support/tally.py. Kills are chosen by a seed; each waits for the fact that makes it worthwhile, such as a job that runs.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from tests.support.processes import QD, Procs
from tests.support.project import SOURCE, START, Project
from tests.support.reliability import Figures
from tests.support.tally import Ended, Run, Tally
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
BAD = re.compile(r" (job\.failed|job\.lease_lost|job\.missing|lease\.lost|master\.message_rejected) ")
WORKERS = 3
RATE = 6  # jobs a second of each producer


def code_of(commit: str, folder: Path) -> Path:
    """Put daemon/ of that commit into `folder`, with its bytecode. Returns the folder to import from. Not by `git worktree`:
    a test that is killed would leave an entry in the repository."""
    done = subprocess.run(
        ["git", "archive", "--format=tar", commit, "daemon"], cwd=ROOT, capture_output=True, check=False
    )
    if done.returncode != 0:
        why = "this test runs the code of that commit: clone the whole history (git fetch --unshallow)"
        pytest.fail(f"commit {commit} is missing here; {why}\n{done.stderr.decode().strip()}", pytrace=False)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=done.stdout, check=True)
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(folder / "daemon" / "qd")], check=True)
    return folder / "daemon"


@dataclass
class Seat:
    """The place of one master, taken again after each kill. options: of its `qd work`."""

    name: str
    code: Path  # the folder to import qd from
    options: Sequence[str] = ()
    masters: list[Procs] = field(default_factory=list)
    checked: int = 0  # lines of the log of this master

    @property
    def work(self) -> Procs:
        return self.masters[-1]

    def check(self) -> None:
        """Fail at once if the log reports what must not happen."""
        lines = self.work.lines
        found = [line for line in lines[self.checked :] if BAD.search(line)]
        self.checked = len(lines)
        if found:
            pytest.fail(f"{self.name} version: {found[0]}")


class Fleet:
    def __init__(
        self,
        shop: Project,
        seats: Sequence[Seat],
        *,
        seed: int,
        late: float = 0.0,
        rate: int = RATE,
        burst: float = 0.02,
        ahead: int = 10**6,
    ) -> None:
        """late: see Tally. rate: jobs a second of each producer. burst: seconds between two bursts of them. ahead: jobs that
        may be sent and not done."""
        self.shop, self.seats, self.draw = shop, seats, random.Random(seed)
        self.rate, self.burst, self.ahead = rate, burst, ahead
        self.tally = Tally(shop.root, late=late)
        self.kills: Counter[str] = Counter()
        self.crossed: Counter[str] = Counter()  # jobs of a killed master that another version began next
        self.producers: list[subprocess.Popen[bytes]] = []
        (shop.root / "producer.py").write_text(PRODUCER)
        shop.allowed |= {"ledger", "producer.py", "enough", *(f"pushed.{number}" for number in range(len(seats)))}

    # -- the run

    def begin(self) -> None:
        for number, seat in enumerate(self.seats):
            self.start(seat)
            self._produce(number, seat)
        for seat in self.seats:
            self._ready(seat)

    def start(self, seat: Seat) -> None:
        env = {} if seat.code == SOURCE else {"PYTHONPATH": str(seat.code)}
        words = ["-w", str(WORKERS), "--max-crashes", "1000", *seat.options]
        seat.checked = 0
        seat.masters.append(self.shop.work(*words, **env))

    def _ready(self, seat: Seat) -> None:
        seat.work.wait_line("master.ready", START)
        assert f"runs {seat.code / 'qd'}" in seat.work.output, f"not the code of {seat.code}: {seat.work.output}"

    def _produce(self, number: int, seat: Seat) -> None:
        numbers = (number, len(self.seats), self.draw.randrange(2**31), self.rate, self.burst, self.ahead)
        words = [QD[0], "producer.py", *map(str, numbers)]
        env = self.shop.env(PYTHONPATH=str(seat.code))
        self.producers.append(subprocess.Popen(words, cwd=self.shop.root, env=env, stdin=subprocess.DEVNULL))

    def finish(self, seconds: float = 60.0) -> None:
        """Send no more jobs, wait for the end of all, and stop the masters."""
        (self.shop.root / "enough").touch()
        for producer in self.producers:
            assert producer.wait(30) == 0
        eventually(self._quiet, seconds, every=0.1, what="the end of every job")
        for seat in self.seats:
            seat.work.stop(seconds=30)
        self._read()

    def _read(self) -> None:
        self.tally.read()
        for seat in self.seats:
            seat.check()

    def _quiet(self) -> bool:
        self._read()
        return not self.tally.open(Counter()) and not any(self.standing().values())

    def standing(self) -> dict[str, int]:
        """How many jobs the server has, by state."""
        (row,) = json.loads(self.shop.quick("status", "--json").stdout)["queues"]
        return {state: row[state] for state in ("ready", "delayed", "reserved", "failed")}

    def close(self) -> None:
        for producer in self.producers:
            producer.kill()
            producer.wait()

    # -- kills

    def running(self, seat: Seat) -> list[Run]:
        """What the workers of this master are running."""
        self._read()
        pids = {worker.pid for worker in seat.work.children("qd: worker")} - {end.pid for end in self.tally.ended}
        return [run for run in self.tally.running() if run.pid in pids]

    def _kill(self, pid: int, what: str) -> Ended:
        noted = self.tally.end(pid, f"kill of its {what}")
        self.kills[what] += 1
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return noted

    def kill_worker(self, seat: Seat) -> None:
        """In a job."""
        run = self.draw.choice(eventually(lambda: self.running(seat), what=f"a job of the {seat.name} version"))
        self._kill(run.pid, "worker")

    def kill_keeper(self, seat: Seat) -> None:
        self._kill(seat.work.child("qd: keeper").pid, "keeper")

    def kill_master(self, seat: Seat, by: Literal["successor", "keeper", "lease"]) -> None:
        """While its workers run long jobs. by: what requeues these: the next master of its version, a new keeper of the
        other one, or the end of their leases."""
        runs = eventually(
            lambda: [run for run in self.running(seat) if self.tally.kinds.get(run.n) == "long"],
            what=f"a long job of the {seat.name} version",
        )
        noted = self._kill(seat.work.pid, "master")
        seat.work.wait(10)
        eventually(lambda: not seat.work.session(), what="the end of all processes of a killed master")
        noted.until = time.monotonic()
        seat.check()
        if by == "keeper":
            self.kill_keeper(next(other for other in self.seats if other is not seat))
        if by != "successor":
            eventually(lambda: self._went_on(runs), 40, what="the jobs of a killed master in the other version")
            self.crossed[seat.name] += len([run for run in runs if run.ended is None])
        self.start(seat)
        self._ready(seat)

    def _went_on(self, runs: Sequence[Run]) -> bool:
        """Whether the jobs of those of these runs that were interrupted have begun again."""
        self._read()
        return not [run for run in runs if run.ended is None and self.tally.runs[run.n][-1] is run]


def storm(fleet: Fleet, rounds: int, jobs: int = 0) -> None:
    """In each round and seat: workers, the keeper, and the master twice. In each fifth round only the end of the lease
    brings the jobs of a master back. There are more rounds until so many jobs were sent, and a few more if no job went from
    one seat to the other."""
    done = 0
    while (
        done < rounds or len(fleet.tally.kinds) < jobs or (done < rounds + 5 and len(+fleet.crossed) < len(fleet.seats))
    ):
        done += 1
        for seat in fleet.seats:
            fleet.kill_worker(seat)
            fleet.kill_worker(seat)
            fleet.kill_master(seat, by="keeper" if done % 5 else "lease")
            fleet.kill_keeper(seat)
            fleet.kill_worker(seat)
            fleet.kill_master(seat, by="successor")
    fleet.finish()


def judge(fleet: Fleet, figures: Figures) -> None:
    """Assert that no job is lost, has spent an attempt or ran twice without a reason, and that each seat ran jobs of each
    producer."""
    tally, masters = fleet.tally, {seat.name: {work.pid for work in seat.masters} for seat in fleet.seats}
    assert not tally.unsure
    assert not tally.open(tally.failed), "lost"
    assert not any(fleet.standing().values())
    assert not tally.overlaps, "in two processes at once"
    doubles = tally.doubles()
    assert not [double for double in doubles if not double.reason], "twice without a reason"
    for n, runs in tally.runs.items():
        attempts = [run.attempt for run in runs]
        assert attempts == sorted(attempts), f"job {n}: {attempts}"
        assert attempts[-1] == (1 if tally.kinds[n] in ONCE else 2), f"job {n} ({tally.kinds[n]}): {attempts}"
    for number, seat in enumerate(fleet.seats):
        assert fleet.crossed[seat.name], "no job of a killed master went on in the other seat"
        for sender in range(len(fleet.seats)):
            ran = any(
                run.master in masters[seat.name]
                for n, runs in tally.runs.items()
                for run in runs
                if n % len(fleet.seats) == sender
            )
            assert ran, f"no job of producer {sender} was run by number {number}"
    figures.add(lost=0, doubles=len(doubles), jobs=len(tally.kinds))


# Each job notes its start (S) and end (E), or that it has to run again (X). Those in ONCE have one attempt, so a kill that
# spends it is a failed job. KINDS: weights.
ONCE = ("plain", "long", "delayed", "saves", "single", "link", "task", "bunch")
JOBS = """
import qd
print("runs", os.path.dirname(qd.__file__), flush=True)

def mark(kind, n):
    line = f"{kind} {n} {current_job().attempt} {os.getpid()} {os.getppid()} {time.monotonic_ns()}\\n"
    fd = os.open("ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, line.encode())
    os.close(fd)

@app.job("plain", tries=1)
def plain(n: int, seconds: float) -> None:
    mark("S", n)
    time.sleep(seconds)
    mark("E", n)

@app.job("single", tries=1, unique="single:{n}")
def single(n: int) -> None:
    mark("S", n)
    time.sleep(0.05)
    mark("E", n)

@app.job("saves", tries=1)
def saves(n: int) -> None:
    mark("S", n)
    job = current_job()
    for step in range((job.saved or {"step": 0})["step"], 5):
        time.sleep(0.05)
        job.checkpoint({"step": step + 1})
    mark("E", n)

@app.job("shaky", tries=2, backoff=0.1)
def shaky(n: int) -> None:
    mark("S", n)
    if current_job().attempt == 1:
        mark("X", n)
        raise ValueError("this one works the second time")
    mark("E", n)

@app.job("released", tries=2)
def released(n: int) -> None:
    mark("S", n)
    if current_job().attempt == 1:
        mark("X", n)
        current_job().release(0.1)
    mark("E", n)

KINDS = dict(plain=50, long=10, delayed=8, saves=5, single=5, shaky=5, released=5, link=5)
"""
# More of them, for one version only.
MIXED = (
    JOBS
    + """
import asyncio

@app.job("task", tries=1)
async def task(n: int) -> None:
    mark("S", n)
    await asyncio.sleep(0.01)
    mark("E", n)

KINDS = dict(plain=60, task=60, long=2, delayed=8, saves=2, single=5, shaky=4, released=4, link=5, bunch=3)
"""
)

# sys.argv: its number, the number of producers, the seed, jobs per second, seconds between two bursts, jobs ahead. Ends when
# a file `enough` exists.
PRODUCER = """
import os, random, sys, time
import jobs

number, step, seed, rate = map(int, sys.argv[1:5])
draw = random.Random(seed)
log = open(f"pushed.{number}", "w", buffering=1)
began, sent, n = time.monotonic(), 0, number

def send(n):
    kind = draw.choices([*jobs.KINDS], [*jobs.KINDS.values()])[0]
    numbers = [n]
    if kind == "link":
        numbers = [n, n + step, n + 2 * step]
        jobs.app.chain(*(jobs.plain.bind(each, 0.02) for each in numbers)).dispatch()
    elif kind == "bunch":
        numbers = [n + each * step for each in range(4)]
        jobs.app.batch(*(jobs.plain.bind(each, 0.01) for each in numbers)).dispatch()
    elif kind in ("plain", "long", "delayed"):
        seconds = round(draw.uniform(1, 1.5) if kind == "long" else draw.uniform(0, 0.05), 3)
        job = jobs.plain.using(delay=draw.uniform(0.05, 2)) if kind == "delayed" else jobs.plain
        job.dispatch(n, seconds)
    else:
        getattr(jobs, kind).dispatch(n)
    for each in numbers:
        log.write(f"P {each} {kind} {each}\\n")
    return numbers[-1] + step

open("ledger", "a").close()
ledger, done = open("ledger"), 0  # of all producers
while not os.path.exists("enough"):
    done += ledger.read().count("E ")
    while sent < (time.monotonic() - began) * rate and n // step * step < done + int(sys.argv[6]):
        n = send(n)
        sent += 1
    time.sleep(float(sys.argv[5]))
jobs.app.connections.close_all()
"""
