"""What one worker reports and checks between jobs.

WorkerEvents    emits the events of the worker's life, if they have listeners
ShutQueues      which queues maintenance mode shuts; checked before each job
Titles          `qd: worker 3 [mail] mail.welcome since 12:00:01` for `ps`, and the same on the scoreboard
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

SECONDS = 60.0  # time for listeners between two jobs before the master counts this worker as silent


class WorkerEvents:
    """beat: writes a heartbeat; takes the seconds until the next one."""

    def __init__(self, listeners: Listeners, work: WorkOptions, beat: Callable[[float], None]) -> None:
        self.listeners, self.work, self._beat = listeners, work, beat

    def emit(self, event: events.Event) -> None:
        if self.listeners.has(type(event)):
            self._emit(event)

    def _emit(self, event: events.Event) -> bool:
        self._beat(SECONDS)
        agreed = self.listeners.emit(event)
        self._beat(0.0)
        return agreed

    def starting(self) -> None:
        self.emit(events.WorkerStarting(self.work.connection, self.work.queues))

    def looping(self, before: Callable[[], None]) -> bool:
        """Emit Looping. Returns False if a listener vetoed. before: called first if there are listeners, because they may
        be slow."""
        if not self.listeners.has(events.Looping):
            return True
        before()
        return self._emit(events.Looping(self.work.connection, self.work.queues))

    def popping(self, before: Callable[[], None]) -> None:
        if self.listeners.has(events.JobPopping):
            before()
            self._emit(events.JobPopping(self.work.connection, self.work.queues))

    def idle(self) -> None:
        if self.listeners.has(events.WorkerIdle):
            self._emit(events.WorkerIdle(self.work.connection, self.work.queues))

    def stopping(self, reason: StopReason, jobs: int) -> None:
        if self.listeners.has(events.WorkerStopping):
            where = (self.work.connection, self.work.queues)
            memory = proc.rss_of(os.getpid()) or 0
            self._emit(events.WorkerStopping(reason.word, int(reason.code), *where, jobs, memory))


class ShutQueues:
    """shut: the queues from which no job is taken; () without maintenance or with `force`."""

    def __init__(self, board: Scoreboard, queues: tuple[str, ...], force: bool) -> None:
        self.board, self.queues, self.force = board, queues, force
        self._digests = [scoreboard.digest(queue) for queue in queues]
        self._seen = 0
        self.shut: tuple[str, ...] = ()

    def look(self) -> bool:
        """Check the scoreboard. Returns whether a queue is open."""
        down = 0 if self.force else self.board.header(H.DOWN)
        if down != self._seen:
            self._read(down)
        return not self._seen or len(self.shut) < len(self.queues)

    @property
    def holds(self) -> bool:
        """Whether all queues were shut at the last check."""
        return bool(self._seen) and len(self.shut) == len(self.queues)

    def _read(self, down: int) -> None:
        opened = scoreboard.open_queues(self.board, down)
        if down and self.board.header(H.DOWN) != down:
            down = scoreboard.ALL_SHUT  # it is being changed: take nothing, and read it again at the next check
        pairs = zip(self.queues, self._digests, strict=True)
        self.shut = tuple([queue for queue, digest in pairs if down and digest not in opened])
        self._seen = down


class Titles:
    def __init__(self, number: int, pool: str) -> None:
        self._head = f"qd: worker {number}" + (f" [{pool}]" if pool else "")
        self._shown = self._queue = ""
        self._second, self._clock = 0, ""
        self._names: dict[str, str] = {}

    def idle(self, what: str) -> None:
        if what != self._shown:
            self._shown = what
            setproctitle(f"{self._head} {what}")

    def job(self, slot: Slot, name: str, queue: str) -> None:
        second = int(time.time())
        if second == self._second and name == self._shown and queue == self._queue:
            return
        self._queue = queue
        if second != self._second:
            self._second, self._clock = second, time.strftime("%H:%M:%S", time.localtime(second))
        if name not in self._names:
            if len(self._names) > 1000:  # names come from payloads
                self._names.clear()
            self._names[name] = "".join(c if c.isprintable() else "?" for c in name)
        shown = self._names[name]
        slot.describe(shown.encode("utf-8", "replace"), queue.encode())
        self._shown = name
        setproctitle(f"{self._head} {shown} since {self._clock}")
