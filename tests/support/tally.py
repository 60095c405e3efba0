"""What a long run has done so far, read on from where the last look ended: every job, its runs, and where it is now.

At the end it judges: a job that was taken by the server has finished, has failed or stands in Redis, and one that
finished twice has a reason: its process was ended in the moment between the end and the answer, or its lease was lost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

UNANSWERED = 5.0  # seconds that may lie between the end of a job and the death of its process, no other job begun


class Following:
    """A file that grows: its whole lines, each once."""

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
    """One attempt of a job. Moments are monotonic seconds; next: when its process began another job."""

    n: int
    pid: int
    master: int
    began: float
    ended: float | None = None
    next: float = float("inf")


@dataclass
class Ended:
    """A process that somebody ended, or held up. why: what was done."""

    pid: int
    at: float
    why: str


@dataclass
class Double:
    n: int
    kind: str
    at: float
    reason: str  # empty: nobody knows


@dataclass
class Tally:
    root: Path
    kinds: dict[int, str] = field(default_factory=dict)  # of all jobs that the server has taken
    unsure: dict[int, str] = field(default_factory=dict)  # pushes that were answered by an error
    numbers: dict[str, int] = field(default_factory=dict)  # id -> number
    runs: defaultdict[int, list[Run]] = field(default_factory=lambda: defaultdict(list))
    failed: Counter[int] = field(default_factory=Counter)
    ended: list[Ended] = field(default_factory=list)
    leases: list[tuple[int, float]] = field(default_factory=list)  # pid or -number of the job, moment
    overlaps: list[int] = field(default_factory=list)
    _last: dict[int, Run] = field(default_factory=dict)  # by pid
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
        kind, number, _, pid, master, moment = line.split()
        n, at = int(number), int(moment) / 1e9
        if kind == "S":
            run = Run(n, int(pid), int(master), at)
            if run.pid in self._last:
                self._last[run.pid].next = at
            self._last[run.pid] = run
            self.runs[n].append(run)
            return
        run = self._last[int(pid)]
        assert run.n == n, f"process {pid} ended job {n} while it had job {run.n}"
        run.ended = at
        if any(other.pid != run.pid and run.began < other.began < at for other in self.runs[n]):
            self.overlaps.append(n)

    # -- judging

    def open(self, standing: Counter[int]) -> list[int]:
        """Jobs that are neither finished nor failed nor standing anywhere in Redis."""
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
        """Why a run that came to its end was not the last one."""
        end = run.ended or 0.0
        for one in self.ended:
            if one.pid in (run.pid, run.master) and -0.01 <= one.at - end <= UNANSWERED and one.at <= run.next:
                return one.why
        if any(abs(at - end) < 30 and pid in (run.pid, -run.n) for pid, at in self.leases):
            return "its lease was lost"
        return ""
