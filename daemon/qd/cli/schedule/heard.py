"""The scheduler's own lines, as its commands show them: told to people as results, not logged."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qd.log import LEVELS, Log, Write

Hear = Callable[[str, Mapping[str, object]], bool]
LEAST = "warning"  # what is not heard is a line from here on


class Heard(Log):
    """Lines about the schedule go to `hear` first; what it answers with False, and all else, is a line on stderr from
    a warning on."""

    def __init__(self, hear: Hear) -> None:
        super().__init__("scheduler")
        self._hear = hear

    def of(self, role: str, write: Write | None = None) -> Log:
        """That of a run in a process of its own, which nobody here hears."""
        return Log(role, level=LEAST, write=write or self.write)

    def line(self, level: str, event: str, fields: Mapping[str, object]) -> None:
        heard = event.startswith("schedule.") and self._hear(event, fields)
        if not heard and LEVELS[level] >= LEVELS[LEAST]:
            super().line(level, event, fields)
