"""What the master is handed: numbers, and the bodies of its children. It calls them in forks and never looks inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qd.process.hands import Hands, Seat
from qd.process.scoreboard import Role


@dataclass(frozen=True, slots=True)
class Plan:
    """One configuration as the master sees it. Seconds and bytes; 0 means none, as in the options."""

    pool: str
    workers: int  # 0: only a scheduler runs here, whatever the import finds
    scheduler: bool  # one runs beside the workers where the import finds entries
    preload: bool
    respawn: bool
    stop_timeout: float
    min_uptime: float
    memory_hard: int
    silence: float  # what a worker between two jobs may be silent for
    once: bool
    stop_when_empty: bool
    stop_when_empty_for: float
    reload: bool
    log_format: str
    log_level: str
    template: Callable[[Hands, Any], int]  # hands, the stream its orders come on
    fresh: Callable[[Hands, Seat], int]  # a worker or scheduler that imports the app by itself
    # hands, stream, what the app's import has resolved, queues of earlier settings
    keeper: Callable[[Hands, Any, str, tuple[str, ...]], int]

    @property
    def leads(self) -> Role:
        """Whose boot makes this program ready."""
        return Role.WORKER if self.workers else Role.SCHEDULER

    def schedulers(self, entries: int) -> int:
        """How many run with so many entries."""
        return int(self.scheduler and (entries > 0 or not self.workers))
