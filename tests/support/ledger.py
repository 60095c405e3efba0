"""A record of jobs under faults, kept outside Redis, and the invariant: each pushed job is in exactly one place.

Each attempt writes `S n attempt pid moment` when it begins and `E ...` when it ends, in one write each; the moment is the
monotonic clock of the machine, the same for every process. Compared with Redis, it shows which jobs were lost, which ran
twice and why, and how long each interrupted job waited for its next start.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from qd.payload.build import make
from tests.support.modes import MODES
from tests.support.payloads import push_raw
from tests.support.project import Project
from tests.support.redis import Client, Seen
from tests.support.waiting import eventually

JOBS = """
import ctypes, json, signal, subprocess, threading

def mark(kind, n):
    line = f"{kind} {n} {current_job().attempt} {os.getpid()} {time.monotonic_ns()}\\n"
    fd = os.open("ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, line.encode())
    os.close(fd)

def hold(seconds):
    "In C, with the interpreter's lock kept: no Python code runs in this process meanwhile."
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        ctypes.PyDLL(None).usleep(int(min(left, 100) * 1e6))

def cpu(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))

WAYS = {"sleep": time.sleep, "hold": hold, "cpu": cpu, "sub": lambda s: subprocess.run(["sleep", str(s)])}

@app.job("work", tries=5)
def work(n: int, seconds: float = 0.0, how: str = "sleep", again: float | None = None) -> None:
    "again: seconds once it was killed, was over its timeout, or its lease has run out."
    mark("S", n)
    job = current_job()
    if again is not None and (job.attempt > 1 or job.interrupted or json.loads(job.payload).get("crashes")):
        seconds = again
    if seconds:
        WAYS[how](seconds)
    mark("E", n)
"""

UNSENT = 0.15  # seconds for which a worker with several jobs may keep an ack: 10 ms; 100 ms during a longer job


class Note(NamedTuple):
    kind: str  # S or E
    n: int
    attempt: int
    pid: int
    at: float  # monotonic seconds


@dataclass
class Kill:
    """A process that the test killed, between `at` and `until` (if not 0); monotonic seconds."""

    pid: int
    at: float
    until: float = 0.0


class Ledger:
    def __init__(self, project: Project, client: Client, queue: str = "default") -> None:
        self.file: Path = project.root / "ledger"
        project.allowed.add("ledger")
        self.client, self.queue = client, queue
        self.pushed: list[int] = []
        self.ids: dict[int, str] = {}  # as in the log
        self.kills: list[Kill] = []
        self.several = project.mode != MODES["1"]  # jobs may be in the hands of one worker

    # -- acting

    def push(self, count: int = 1, job: str = "work", **arguments: object) -> list[int]:
        """Push jobs with new numbers, ready now."""
        first = len(self.pushed)
        numbers = list(range(first, first + count))
        made = [make(job, json.dumps({"n": n, **arguments}).encode(), created_at=int(time.time())) for n in numbers]
        self.pushed += numbers
        self.ids |= {n: json.loads(raw)["id"] for n, raw in zip(numbers, made, strict=True)}
        push_raw(self.client, *made, queue=self.queue)
        return numbers

    def kill(self, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Kill a process, unless it has already ended."""
        at = time.monotonic()
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            self.kills.append(Kill(pid, at, time.monotonic()))

    # -- reading

    @property
    def notes(self) -> list[Note]:
        lines = (
            self.file.read_text().split("\n")[:-1] if self.file.exists() else []
        )  # a line being written does not count
        split = [line.split() for line in lines]
        return [Note(w[0], int(w[1]), int(w[2]), int(w[3]), int(w[4]) / 1e9) for w in split]

    def starts(self, n: int | None = None) -> list[Note]:
        return [note for note in self.notes if note.kind == "S" and n in (None, note.n)]

    def ends(self, n: int | None = None) -> list[Note]:
        return [note for note in self.notes if note.kind == "E" and n in (None, note.n)]

    def wait_start(self, n: int, count: int = 1, seconds: float = 20.0) -> Note:
        """Wait for the `count`-th start of job n."""
        return eventually(
            lambda: len(self.starts(n)) >= count and self.starts(n)[count - 1],
            seconds,
            what=f"start {count} of job {n}",
        )

    def wait_end(self, n: int, seconds: float = 20.0) -> Note:
        eventually(lambda: self.ends(n), seconds, what=f"the end of job {n}")
        return self.ends(n)[0]

    def wait_all(self, seconds: float = 60.0) -> None:
        """Wait until every pushed job has ended and its reservation is acked."""
        every = set(self.pushed)
        eventually(
            lambda: every <= {note.n for note in self.ends()} and not self.standing(),
            seconds,
            every=0.05,
            what="the end of every job",
        )

    def standing(self) -> Counter[int]:
        """How many times each job is stored in Redis: ready, delayed, reserved or failed."""
        seen = Seen(self.client)
        return Counter(number_in(raw) for raw in seen.everywhere(self.queue).elements())

    def leases(self) -> list[float]:
        """Remaining seconds of each reservation."""
        seen = Seen(self.client)
        now = seen.now()
        return [score - now for score in seen.reserved(self.queue).values()]

    # -- judging

    def lost(self) -> list[int]:
        """Jobs that were pushed, never finished, and are not in Redis."""
        finished, standing = {note.n for note in self.ends()}, self.standing()
        return [n for n in self.pushed if n not in finished and not standing[n]]

    def doubles(self) -> list[int]:
        """Jobs that ran to their end more than once, or that ended and are still in Redis."""
        ends = Counter(note.n for note in self.ends())
        ends.update({n: count for n, count in self.standing().items() if n in ends})
        return sorted(n for n, count in ends.items() if count > 1)

    def in_flight(self) -> set[int]:
        """The jobs that killed processes were running, or had ended but not acked."""
        found = set[int]()
        for kill, mine in self._killed():
            late = [note.n for note in mine if note.kind == "E" and note.at > kill.at - UNSENT]
            found |= {mine[-1].n, *self._running(mine), *(late if self.several else ())}
        return found

    def _killed(self) -> list[tuple[Kill, list[Note]]]:
        """Each kill of a process that had begun a job, with the notes of that process until then."""
        of_pid: dict[int, list[Note]] = {}
        for note in self.notes:
            of_pid.setdefault(note.pid, []).append(note)
        ends = [(kill, max(kill.at, kill.until) + 0.2) for kill in self.kills]
        until = [(kill, [note for note in of_pid.get(kill.pid, ()) if note.at <= end]) for kill, end in ends]
        return [(kill, mine) for kill, mine in until if mine]

    def _running(self, notes: Iterable[Note]) -> set[int]:
        """The jobs that this process was running after these notes. One that raised an error has no end."""
        running = set[int]()
        for note in notes:
            running = running if self.several else set()
            running.add(note.n) if note.kind == "S" else running.discard(note.n)
        return running

    def overlaps(self) -> list[int]:
        """Jobs that ran in two processes at once. An attempt without an end lasts until its process was killed, else until
        the next note of the same process, or of the same job there if a process runs several."""
        ended_at = {kill.pid: kill.at for kill in self.kills}
        spans: dict[int, list[tuple[float, float]]] = {}
        later: dict[object, float] = {}  # process, or process and job -> its note after this one
        for note in reversed(self.notes):
            of = (note.pid, note.n) if self.several else note.pid
            if note.kind == "S":
                end = later.get(of, ended_at.get(note.pid, note.at))
                spans.setdefault(note.n, []).append((note.at, end))
            later[of] = note.at
        return sorted(n for n, each in spans.items() if crosses(sorted(each)))

    def recoveries(self) -> list[float]:
        """For each kill that interrupted a job: seconds until that job started again."""
        found, starts = [], dict[int, list[float]]()
        for note in self.starts():
            starts.setdefault(note.n, []).append(note.at)
        for kill, mine in self._killed():
            for n in self._running(mine):
                found.append(min((at for at in starts[n] if at > kill.at), default=float("inf")) - kill.at)
        return found

    def conserve(self, *, doubles: Iterable[int] = ()) -> None:
        """Assert that no job is lost, none ran twice except `doubles`, and none in two processes at once."""
        assert not self.lost(), f"lost: {self.lost()}"
        unexplained = set(self.doubles()) - set(doubles)
        assert not unexplained, f"twice without a reason: {sorted(unexplained)}"
        assert not self.overlaps(), f"in two places at once: {self.overlaps()}"


def number_in(raw: bytes) -> int:
    """The number of the job, or -1 if the payload has none."""
    try:
        return int(json.loads(raw)["data"]["n"])
    except (ValueError, KeyError, TypeError):
        return -1


def crosses(spans: list[tuple[float, float]]) -> bool:
    return any(start < end for (_, end), (start, _) in pairwise(spans))
