"""The scheduler's own lines, as its commands show them: told to people as results, not logged."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qd.log import LEVELS, Log, Write

Hear = Callable[[str, Mapping[str, object]], bool]


class Heard(Log):
    """Lines about the schedule go to `hear` first; what it answers with False, and all else, is a line on stderr.

    level: the least of those. Runs in processes of their own, which nobody here hears, have it too: for what the app logs.
    """

    def __init__(self, hear: Hear, level: str) -> None:
        super().__init__("scheduler")
        self._hear, self._level = hear, level

    def of(self, role: str, write: Write | None = None) -> Log:
        return Log(role, level=self._level, write=write or self.write)

    def line(self, level: str, event: str, fields: Mapping[str, object]) -> None:
        heard = event.startswith("schedule.") and self._hear(event, fields)
        if not heard and LEVELS[level] >= LEVELS[self._level]:
            super().line(level, event, fields)
