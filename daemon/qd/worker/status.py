"""What one worker reports and checks between jobs.

WorkerEvents    emits the events of the worker's life, if they have listeners
ShutQueues      which queues maintenance mode shuts; checked before each job
Titles          `qd: worker 3 [mail] mail.welcome since 12:00:01` for `ps`, and the same on the scoreboard
"""

from __future__ import annotations

import time
from collections.abc import Callable

from setproctitle import setproctitle

from qd import events
from qd.events import Listeners
from qd.process import scoreboard
from qd.process.scoreboard import H, Scoreboard, Slot

SECONDS = 60.0  # time for listeners between two jobs before the master counts this worker as silent


class WorkerEvents:
    """beat: writes a heartbeat; takes the seconds until the next one."""

    def __init__(self, listeners: Listeners, beat: Callable[[float], None]) -> None:
        self.listeners, self._beat = listeners, beat

    def emit(
        self, event: Callable[..., events.Event], *facts: object, before: Callable[[], None] | None = None
    ) -> bool:
        """Emit `event` if it has listeners. Returns False if one of them vetoed. before: called first if there are
        listeners, because they may be slow."""
        if not self.listeners.has(event):  # type: ignore[arg-type]
            return True
        if before is not None:
            before()
        self._beat(SECONDS)
        agreed = self.listeners.emit(event(*facts))
        self._beat(0.0)
        return agreed


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
