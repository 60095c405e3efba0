"""Why a worker leaves by itself after a job: it has grown, has done enough, or is old enough (Laravel 13, Worker.php)."""

from __future__ import annotations

import random
import time

from qd.options import WorkOptions
from qd.process import vitals
from qd.process.exits import StopReason
from qd.process.scoreboard import Slot, W, now

MEASURE_NS = 5_000_000
JITTER = 0.2  # how much --max-jobs and --max-time differ between workers, so that they do not leave together


class Leaving:
    def __init__(self, work: WorkOptions, slot: Slot) -> None:
        self.work, self.slot = work, slot
        self._max_jobs, self._leave_at, self._anon, self._measured_at = 0, 0.0, 0, 0

    def open(self) -> None:
        """From now on it is counted."""
        work = self.work
        jitter = random.uniform(1 - JITTER, 1 + JITTER) if work.workers > 1 else 1.0
        self._max_jobs = max(1, round(work.max_jobs * jitter)) if work.max_jobs else 0
        self._leave_at = time.monotonic() + work.max_time * jitter if work.max_time else 0.0
        self._anon = vitals.own_anon_bytes()

    def reason(self, jobs: int) -> StopReason | None:
        if self.work.memory and self._over_memory():
            return StopReason.MEMORY
        if self.work.once and jobs:
            return StopReason.ONCE
        if self._leave_at and time.monotonic() >= self._leave_at:
            return StopReason.MAX_TIME
        if self._max_jobs and jobs >= self._max_jobs:
            return StopReason.MAX_JOBS
        return None

    def _over_memory(self) -> bool:
        """Asked after every job, looked up every 5 ms: what very short jobs leak in between is little."""
        at = now()
        if at - self._measured_at > MEASURE_NS:
            self._measured_at = at
            self.slot[W.GROWN] = max(0, vitals.own_anon_bytes() - self._anon)
        return self.slot[W.GROWN] > self.work.memory
