"""The events of a worker's own life: told between jobs, where somebody listens. The loop says when."""

from __future__ import annotations

import os
from collections.abc import Callable

from qd import events
from qd.listeners import Listeners
from qd.options import WorkOptions
from qd.process import vitals
from qd.process.exits import StopReason

SECONDS = 60.0  # what a listener may take between two jobs before the master misses this worker


class Telling:
    """about: told how long the next sign of life may take."""

    def __init__(self, listeners: Listeners, work: WorkOptions, about: Callable[[float], None]) -> None:
        self.listeners, self.work, self._about = listeners, work, about

    def tell(self, event: events.Event) -> None:
        if self.listeners.has(type(event)):
            self._emit(event)

    def _emit(self, event: events.Event) -> bool:
        """What follows the listeners is as quick as ever: the time that was announced for them is taken back."""
        self._about(SECONDS)
        agreed = self.listeners.emit(event)
        self._about(0.0)
        return agreed

    def starting(self) -> None:
        self.tell(events.WorkerStarting(self.work.connection, self.work.queues))

    def looping(self, before: Callable[[], None]) -> bool:
        """Whether nobody says no. before: called where somebody listens, who may take their time."""
        if not self.listeners.has(events.Looping):
            return True
        before()
        return self._emit(events.Looping(self.work.connection, self.work.queues))

    def popping(self, before: Callable[[], None]) -> None:
        if self.listeners.has(events.JobPopping):
            before()
            self.tell(events.JobPopping(self.work.connection, self.work.queues))

    def idle(self) -> None:
        if self.listeners.has(events.WorkerIdle):
            self.tell(events.WorkerIdle(self.work.connection, self.work.queues))

    def stopping(self, why: StopReason, jobs: int) -> None:
        if self.listeners.has(events.WorkerStopping):
            where = (self.work.connection, self.work.queues)
            memory = vitals.rss_of(os.getpid()) or 0
            self.tell(events.WorkerStopping(why.word, int(why.code), *where, jobs, memory))
