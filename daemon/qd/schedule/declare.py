"""app.schedule: what declares entries.

app.schedule(report.bind(7), cron="0 7 * * *")
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from qd.errors import DeclarationError
from qd.jobs import Call
from qd.jobs.calls import caller
from qd.schedule.entry import CallTask, Entry, JobTask, Missed, Task
from qd.schedule.timing import Cron, Every, Timing


class Schedule:
    """The entries of an app, in the order in which they were declared."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def __call__(
        self,
        what: Call[Any] | Callable[[], object],
        *,
        cron: str = "",
        every: float | timedelta = 0,
        timezone: str = "UTC",
        overlap: bool = True,
        missed: Missed = "skip",
        name: str = "",
    ) -> None:
        """Let `what` run at each tick. Raises DeclarationError."""
        task, own = task_of(what)
        seconds = every.total_seconds() if isinstance(every, timedelta) else every
        timing: Timing = Cron(cron, timezone) if cron else Every(seconds)
        self._add(Entry(name or own, task, timing, missed, alone=not overlap, origin=caller()))

    def _add(self, entry: Entry) -> None:
        if entry.name in self._entries:
            raise DeclarationError(f"two entries of the schedule are called '{entry.name}': give one a name of its own")
        self._entries[entry.name] = entry

    def entries(self) -> tuple[Entry, ...]:
        """All of them, checked. Raises DeclarationError."""
        return tuple(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)


def task_of(what: Call[Any] | Callable[[], object]) -> tuple[Task, str]:
    """The task, and the name that it has by itself."""
    if isinstance(what, Call):
        what._origin = None  # it is as good as sent
        return JobTask(what), what._plan.declared.name
    name = getattr(what, "__qualname__", "")
    return CallTask(what), f"{getattr(what, '__module__', '')}.{name}"
