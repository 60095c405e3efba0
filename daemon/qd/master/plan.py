"""What the master is given: the options of `qd work`, and the bodies of its children. It calls the bodies in forks and never
looks inside."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qd.options import WorkOptions
from qd.process.hands import Hands, Seat
from qd.process.scoreboard import Role

SILENCE = 10.0  # seconds for which a worker between two jobs may be silent, at least
ANSWER = 10.0  # seconds that a connection and an answer of Redis may take together


@dataclass(frozen=True, slots=True)
class Plan:
    """One configuration as the master sees it."""

    work: WorkOptions
    template: Callable[[Hands, Any], int]  # hands, the stream its orders come on
    fresh: Callable[[Hands, Seat], int]  # a worker or scheduler that imports the app by itself
    # hands, stream, what the app's import has resolved, queues of earlier settings
    keeper: Callable[[Hands, Any, str, tuple[str, ...]], int]

    @property
    def preload(self) -> bool:
        """Whether a template imports the app once, before the workers fork."""
        return not self.work.no_preload and sys.platform == "linux"

    @property
    def silence(self) -> float:
        """Seconds for which a worker between two jobs may be silent."""
        return max(SILENCE, 3 * self.work.sleep + self.work.rest + ANSWER)

    @property
    def leads(self) -> Role:
        """Whose boot makes this program ready."""
        return Role.WORKER if self.work.workers else Role.SCHEDULER

    def schedulers(self, entries: int) -> int:
        """How many run with so many entries. Without workers only a scheduler runs here, whatever the import finds."""
        return int(self.work.runs_schedule and (entries > 0 or not self.work.workers))
