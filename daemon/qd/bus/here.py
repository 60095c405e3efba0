"""What a job has for its connection that runs here and now: no server is asked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from qd.bus.memory import MemoryBatches


class Lenient:
    """A store for the middleware that holds jobs back: there is always a place, a turn, and no rest."""

    def left(self, name: str) -> float:
        return 0.0

    def step(self, script: str, names: Sequence[str], *words: str | int) -> object:
        return (0, 0, 1) if script == "admit" else 0


class Here:
    """Limits and locks let every job through, and batches are kept in memory. batch: what is run, where it is one."""

    def __init__(self, batches: MemoryBatches, batch: object | None = None) -> None:
        self.batches, self.batch, self.store = batches, batch, Lenient()

    def within(self, seconds: float) -> AbstractContextManager[None]:
        return nullcontext()
