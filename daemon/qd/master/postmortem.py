"""Why a child died: whether the out-of-memory killer took it, and the stack of its job.

OomKills reads the kernel's counter in this program's memory cgroup. The counter rises when the kernel chooses its victim,
which is reaped a moment later: a recent kill is attributed to the next child that ended by SIGKILL and that qd did not
kill itself.

job_stack cuts the stack that a worker's fault handler wrote (most recent call first) to the job's own code. It has one
block per thread: a heading, and below it lines of the form `  File "/app/shop/jobs.py", line 7 in ship`.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from qd.process import proc

LATELY = 10.0  # seconds a large process may take to end
EACH = 1.0  # seconds between two routine checks
GROUPS = Path("/sys/fs/cgroup")


class OomKills:
    def __init__(self) -> None:
        self._file = next((file for file in places() if count_in(file) is not None), None)
        self._counted = self._count()
        self._unclaimed: deque[float] = deque(maxlen=64)
        self._next_at = 0.0

    def look(self) -> None:
        """Check the counter regularly, so that the time of each kill is roughly known."""
        at = time.monotonic()
        if at >= self._next_at:
            self._next_at = at + EACH
            self._recount()

    def _recount(self) -> None:
        counted = self._count()
        for _ in range(min(counted - self._counted, 64)):
            self._unclaimed.append(time.monotonic())
        self._counted = counted

    def killed(self, status: int) -> bool | None:
        """Whether the kernel killed the child with this wait status for lack of memory. None: no counter here."""
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            return False
        if self._file is None:
            return None
        self._recount()
        while self._unclaimed:
            if time.monotonic() - self._unclaimed.popleft() < LATELY:
                return True
        return False

    def _count(self) -> int:
        return (count_in(self._file) or 0) if self._file is not None else 0


def places() -> Iterator[Path]:
    """Files that may have the counter: of the own group (v2, v1), of those above it, of the whole host."""
    for group in proc.groups(proc.text("/proc/self/cgroup"), GROUPS, "memory"):
        yield from (group / "memory.events", group / "memory.oom_control")
    yield Path("/proc/vmstat")


def count_in(file: Path) -> int | None:
    """The value of `oom_kill`. None if it cannot be read."""
    try:
        lines = file.read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
    except (OSError, ValueError, IndexError):
        return None


HOME = str(Path(__file__).parent.parent) + os.sep


def job_stack(stack: str, home: str = HOME) -> str:
    """Cut the stack to the job's code. home: the folder of qd's code. A thread without code of a job stays whole."""
    return "\n\n".join(_cut(block, home) for block in stack.split("\n\n"))


def stack_of(stack: str, thread: int, home: str = HOME) -> str:
    """The part about one thread, cut in the same way. thread: its number, 0: the main thread, which comes last."""
    head = f"Thread 0x{thread:016x} " if thread else "\n\n"
    return _cut(stack.rstrip().rpartition(head)[2].partition("\n\n")[0], home)


def crash_stack(written: str) -> str:
    """The stack of the thread that has crashed, cut in the same way: a part of the last note. "" if there is none."""
    _, found, note = written.rpartition("Fatal Python error")
    return _cut(note.partition("\n\n")[2].partition("\n\n")[0].rstrip(), HOME) if found else ""


def crashed_on_loop(stack: str, home: str = HOME) -> bool:
    """Whether the last note of a fault handler is about the thread with the event loop of a ConcurrentWorker. A very deep
    stack does not tell."""
    note = stack.rpartition("Fatal Python error")[2].splitlines()
    entry = f'  File "{home}worker{os.sep}concurrent.py", line '
    return any(line.startswith(entry) and line.endswith(" in run") for line in note)


def _cut(block: str, home: str) -> str:
    ours = f'  File "{home}'
    # All user code runs below Alarm.guard, or as a task.
    entries = {
        f"{ours}worker{os.sep}timeout.py": (" in guard",),
        f"{ours}worker{os.sep}lanes.py": ("whole",),
    }
    lines = block.splitlines()
    found = [i for i, line in enumerate(lines) if line.endswith(entries.get(line.partition('", ')[0], ()))]
    at = found[0] if found else 0
    while at and lines[at - 1].startswith(ours):
        at -= 1
    has_frames = any(line.startswith("  File ") for line in lines[:at])
    return "\n".join(lines[:at]) if has_frames else block
