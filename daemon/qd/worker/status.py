"""The events of a worker's own life: told between jobs, where somebody listens. The loop says when.

What maintenance mode leaves for this worker to do: asked before each job.

What `ps` shows of a worker: `qd: worker 3 [mail] mail.welcome since 12:00:01`, and the same for the scoreboard.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from setproctitle import setproctitle

from qd import events
from qd.events import Listeners
from qd.options.tables import WorkOptions
from qd.process import proc, scoreboard
from qd.process.exit_codes import StopReason
from qd.process.scoreboard import H, Scoreboard, Slot

SECONDS = 60.0  # what a listener may take between two jobs before the master misses this worker


class WorkerEvents:
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
            memory = proc.rss_of(os.getpid()) or 0
            self.tell(events.WorkerStopping(why.word, int(why.code), *where, jobs, memory))


class ShutQueues:
    """shut: the queues that nothing is taken from; () when there is no maintenance, or `force` goes on in it."""

    def __init__(self, board: Scoreboard, queues: tuple[str, ...], force: bool) -> None:
        self.board, self.queues, self.force = board, queues, force
        self._digests = [scoreboard.digest(queue) for queue in queues]
        self._seen = 0
        self.shut: tuple[str, ...] = ()

    def look(self) -> bool:
        """Whether there is a queue that may be worked on."""
        down = 0 if self.force else self.board.header(H.DOWN)
        if down != self._seen:
            self._read(down)
        return not self._seen or len(self.shut) < len(self.queues)

    @property
    def holds(self) -> bool:
        """Whether nothing may be taken at all, by the last look."""
        return bool(self._seen) and len(self.shut) == len(self.queues)

    def _read(self, down: int) -> None:
        open_ones = scoreboard.open_queues(self.board, down)
        if down and self.board.header(H.DOWN) != down:
            down = scoreboard.ALL_SHUT  # it is being changed: nothing for now, and the next look reads it again
        pairs = zip(self.queues, self._digests, strict=True)
        self.shut = tuple([queue for queue, digest in pairs if down and digest not in open_ones])
        self._seen = down


class Titles:
    def __init__(self, number: int, pool: str) -> None:
        self._head = f"qd: worker {number}" + (f" [{pool}]" if pool else "")
        self._said = self._queue = ""
        self._second, self._clock = 0, ""
        self._names: dict[str, str] = {}

    def idle(self, what: str) -> None:
        if what != self._said:
            self._said = what
            setproctitle(f"{self._head} {what}")

    def job(self, slot: Slot, name: str, queue: str) -> None:
        second = int(time.time())
        if second == self._second and name == self._said and queue == self._queue:
            return  # as it stands
        self._queue = queue
        if second != self._second:
            self._second, self._clock = second, time.strftime("%H:%M:%S", time.localtime(second))
        if name not in self._names:
            if len(self._names) > 1000:  # names come from payloads
                self._names.clear()
            self._names[name] = "".join(c if c.isprintable() else "?" for c in name)
        shown = self._names[name]
        slot.describe(shown.encode("utf-8", "replace"), queue.encode())
        self._said = name
        setproctitle(f"{self._head} {shown} since {self._clock}")
