"""Workers between two jobs that give no sign of life: stopped, swapped out, stuck in a listener.

A worker says W.BEAT at each turn, and ahead of time how long a step may take. What counts is how long the master has seen
the same word while it was awake itself: after a stop of the whole tree nobody is blamed.
"""

from __future__ import annotations

from collections.abc import Iterable

from qd.master.children import Worker
from qd.process.scoreboard import W, now

AWAY = 2.0  # seconds between two looks after which it was the master that stood still


class Silence:
    def __init__(self) -> None:
        self._looked_at = now()

    def look(self, workers: Iterable[Worker]) -> None:
        """Remember since when each is silent."""
        at = now()
        away = at - self._looked_at
        self._looked_at = at
        for worker in workers:
            beat = worker.slot[W.BEAT]
            if worker.has_job or not worker.ready or beat != worker.beat:
                worker.beat, worker.quiet_since = beat, at
            elif away > AWAY * 1e9:
                worker.quiet_since += away

    def of(self, worker: Worker) -> float:
        """Seconds for which a worker has been silent longer than it had announced; below 0 while it has not."""
        return (now() - max(worker.quiet_since, worker.beat)) / 1e9
