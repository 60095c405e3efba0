"""Results of a soak test so far, read incrementally: every job, its runs, and its current place; and growth over time.

At the end it checks that each job accepted by the server has finished, has failed or is in Redis, and that each job that
finished twice has a reason: its process was killed between the end of the job and its ack, or its lease was lost.

Growth is measured for memory and file descriptors of qd's processes, and for the data in Redis.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.support.processes import Procs, titled
from tests.support.redis import Client

UNANSWERED = 5.0  # maximum seconds between the end of a job and the death of its process without another job


class Following:
    """Reads each whole line of a growing file once."""

    def __init__(self, path: Path) -> None:
        self.path, self._read, self._rest = path, 0, b""

    def lines(self) -> Iterator[str]:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            text = self._rest + file.read()
            self._read = file.tell()
        *whole, self._rest = text.split(b"\n")
        yield from (line.decode() for line in whole)


@dataclass(slots=True)
class Run:
    """One attempt of a job. Moments are monotonic seconds; next: when its process, after that, began another job."""

    n: int
    pid: int
    master: int
    began: float
    attempt: int
    ended: float | None = None
    next: float = float("inf")


@dataclass
class Ended:
    """A process that the test killed or suspended. why: what was done. until: when its workers were gone, for a master."""

    pid: int
    at: float
    why: str
    until: float = 0.0


@dataclass
class Double:
    n: int
    kind: str
    at: float
    reason: str  # empty: unknown


@dataclass
class Tally:
    root: Path
    kinds: dict[int, str] = field(default_factory=dict)  # of all jobs accepted by the server
    unsure: dict[int, str] = field(default_factory=dict)  # pushes that raised an error
    numbers: dict[str, int] = field(default_factory=dict)  # id -> number
    runs: defaultdict[int, list[Run]] = field(default_factory=lambda: defaultdict(list))
    failed: Counter[int] = field(default_factory=Counter)
    ended: list[Ended] = field(default_factory=list)
    leases: list[tuple[int, float]] = field(default_factory=list)  # pid or -number of the job, moment
    overlaps: list[int] = field(default_factory=list)
    late: float = 0.0  # seconds that the answer to a job may wait while its process begins the next one
    _running: dict[tuple[int, int], Run] = field(default_factory=dict)  # by pid and number
    _latest: defaultdict[int, list[Run]] = field(default_factory=lambda: defaultdict(list))  # by pid: no next yet
    _files: dict[str, Following] = field(default_factory=dict)

    # -- reading

    def read(self) -> None:
        for name in ["ledger", *sorted(path.name for path in self.root.glob("pushed.*"))]:
            file = self._files.setdefault(name, Following(self.root / name))
            for line in file.lines():
                self._note(line) if name == "ledger" else self._sent(line)

    def _sent(self, line: str) -> None:
        taken, n, kind, word = line.split()
        if taken == "P":
            self.sent(int(n), kind, word)
        else:
            self.unsure[int(n)] = kind

    def sent(self, n: int, kind: str, id: str) -> None:
        self.kinds[n], self.numbers[id] = kind, n

    def _note(self, line: str) -> None:
        kind, number, attempt, pid, master, moment = line.split()
        n, at = int(number), int(moment) / 1e9
        if kind == "S":
            run = Run(n, int(pid), int(master), at, int(attempt))
            for before in self._latest.pop(run.pid, ()):
                before.next = at
            self._running[run.pid, n] = run
            self.runs[n].append(run)
            return
        assert (int(pid), n) in self._running, f"process {pid} ended job {n}, which it did not have"
        run = self._running.pop((int(pid), n))
        if kind == "X":  # it raised an error, or was released
            return
        run.ended = at
        self._latest[run.pid].append(run)
        if any(other.pid != run.pid and run.began < other.began < at for other in self.runs[n]):
            self.overlaps.append(n)

    def end(self, pid: int, why: str) -> Ended:
        """Note a kill, right before it."""
        self.ended.append(Ended(pid, time.monotonic(), why))
        return self.ended[-1]

    # -- judging

    def running(self) -> list[Run]:
        """Attempts that have not ended. Processes may be dead."""
        return list(self._running.values())

    def open(self, standing: Counter[int]) -> list[int]:
        """Jobs that have neither finished nor failed and are not in Redis."""
        return [n for n in self.kinds if not self.finished(n) and not self.failed[n] and not standing[n]]

    def finished(self, n: int) -> int:
        return sum(run.ended is not None for run in self.runs.get(n, ()))

    def doubles(self) -> list[Double]:
        found = []
        for n, runs in list(self.runs.items()):
            if self.finished(n) + self.failed[n] < 2:
                continue
            first = [run for run in runs if run.ended is not None]
            for run in first if self.failed[n] else first[:-1]:
                found.append(Double(n, self.kinds.get(n, "unsure"), run.ended or 0.0, self._reason(run)))
        return found

    def _reason(self, run: Run) -> str:
        """Why a finished run was not the last one."""
        end = run.ended or 0.0
        for one in self.ended:
            unanswered = one.at - end <= UNANSWERED and one.at <= run.next + self.late
            if one.pid in (run.pid, run.master) and unanswered and end <= max(one.at, one.until) + 0.01:
                return one.why
        if any(abs(at - end) < 30 and pid in (run.pid, -run.n) for pid, at in self.leases):
            return "its lease was lost"
        return ""


ROLES = ("master", "keeper", "template")
LEAVE_OUT = 60.0  # seconds after the start of a process that are ignored
LONG = 240.0  # seconds of life after that before a slope is meaningful


def processes(work: Procs) -> Iterable[tuple[str, psutil.Process]]:
    """Master, keeper and template, with their roles."""
    for process in work.session():
        title = titled(process)
        yield from ((role, process) for role in ROLES if title.startswith(f"qd: {role}"))


def look(work: Procs) -> list[dict[str, Any]]:
    """One sample per process: role, pid, age in seconds, resident bytes, open descriptors."""
    found = []
    for role, process in processes(work):
        try:
            age, rss, fds = time.time() - process.create_time(), process.memory_info().rss, process.num_fds()
        except psutil.Error:
            continue  # it was just killed
        found.append({"role": role, "pid": process.pid, "age": round(age, 2), "rss": rss, "fds": fds})
    return found


def sizes(client: Client) -> dict[str, int]:
    """The number of elements of each key."""
    count = {"list": "LLEN", "hash": "HLEN", "zset": "ZCARD", "string": "STRLEN", "set": "SCARD", "stream": "XLEN"}
    found = {}
    for key in client.text("KEYS", "*"):
        kind = client.text("TYPE", key)
        if kind != "none":  # gone since
            found[key] = int(client.call(count[kind], key))
    return found


def slope(points: list[tuple[float, float]]) -> float:
    """The slope of the regression line through these points."""
    middle_x, middle_y = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    across = sum((x - middle_x) ** 2 for x, _ in points)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / across if across else 0.0


def by_role(samples: Iterable[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Maximum memory (MB) and descriptors per role, and growth per hour of the process that lived longest."""
    lives: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        lives[sample["role"]][sample["pid"]].append(sample)
    found = {}
    for role, of_pid in lives.items():
        every = [sample for life in of_pid.values() for sample in life]
        longest = max(of_pid.values(), key=lambda life: float(life[-1]["age"]))
        steady = [sample for sample in longest if sample["age"] > LEAVE_OUT]
        figures = {
            "processes": float(len(of_pid)),
            "rss": max(sample["rss"] for sample in every) / 1e6,
            "fds": float(max(sample["fds"] for sample in every)),
            "life": float(longest[-1]["age"]),
        }
        if steady and steady[-1]["age"] - steady[0]["age"] > LONG:
            figures["rss_hour"] = slope([(s["age"] / 3600, s["rss"] / 1e6) for s in steady])
            figures["fds_hour"] = slope([(s["age"] / 3600, float(s["fds"])) for s in steady])
        found[role] = figures
    return found
