"""The scheduler's own lines, as its commands show them: told to people as results, not logged."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qd.log import Log, to_stderr

Hear = Callable[[str, Mapping[str, object]], bool]


class Heard(Log):
    """Lines about the schedule go to `hear` first; what it answers with False, and all else, is a line on stderr. Runs that
    are forked have a plain log of their own."""

    def __init__(self, hear: Hear, *, format: str = "text", level: str = "warning") -> None:
        super().__init__("scheduler", format=format, level=level, write=to_stderr)
        self._hear = hear

    def line(self, level: str, event: str, fields: Mapping[str, object]) -> None:
        if not (event.startswith("schedule.") and self._hear(event, fields)):
            super().line(level, event, fields)
