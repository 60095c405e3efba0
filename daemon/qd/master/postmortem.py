"""Was it the kernel's out-of-memory killer? Its own counter tells, of the memory cgroup this program lives in.

The counter moves when the kernel chooses its victim, the victim is reaped a moment later: what was counted lately is
claimed by the next child that SIGKILL has ended and that nobody of us has killed.

The stack of a worker that is to be killed, as its fault handler wrote it (most recent call first), cut to the job's own
code: what led there is the same for every job.

A block for each thread: a heading, and below it lines of the form `  File "/srv/shop/jobs.py", line 7 in ship`.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

LATELY = 10.0  # seconds a large process may take to end
EACH = 1.0  # seconds between two looks that nothing asks for
GROUPS = Path("/sys/fs/cgroup")


class OomKills:
    def __init__(self) -> None:
        self._file = next((file for file in places() if count_in(file) is not None), None)
        self._counted = self._count()
        self._unclaimed: deque[float] = deque(maxlen=64)
        self._next_at = 0.0

    def look(self) -> None:
        """So that it is known about when each of them was counted."""
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
        """Whether the kernel ended the child with this wait status for want of memory. None: it does not tell here."""
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
    """Where the counter may stand: the own group (v2, v1), the container's root, the whole host."""
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        groups = []
    for line in groups:
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            yield from (top / path.lstrip("/") / "memory.events" for top in (GROUPS, GROUPS / "unified"))
        elif "memory" in controllers.split(","):
            yield GROUPS / "memory" / path.lstrip("/") / "memory.oom_control"
    yield from (GROUPS / "memory.events", GROUPS / "memory" / "memory.oom_control", Path("/proc/vmstat"))


def count_in(file: Path) -> int | None:
    """The number behind `oom_kill`. None: not to be read there."""
    try:
        lines = file.read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
    except (OSError, ValueError, IndexError):
        return None


HOME = str(Path(__file__).parent.parent) + os.sep


def of_the_job(stack: str, home: str = HOME) -> str:
    """home: the folder of qd's own code. A thread in which no code of a job runs stays whole."""
    return "\n\n".join(_cut(block, home) for block in stack.split("\n\n"))


def _cut(block: str, home: str) -> str:
    ours = f'  File "{home}'
    door = f"{ours}worker{os.sep}timeout.py"  # all code of users runs below Alarm.guard
    lines = block.splitlines()
    at = next((i for i, line in enumerate(lines) if line.startswith(door) and line.endswith(" in guard")), 0)
    while at and lines[at - 1].startswith(ours):
        at -= 1
    has_frames = any(line.startswith("  File ") for line in lines[:at])
    return "\n".join(lines[:at]) if has_frames else block
