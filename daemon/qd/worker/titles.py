"""What `ps` shows of a worker: `qd: worker 3 [mail] mail.welcome since 12:00:01`, and the same for the scoreboard."""

from __future__ import annotations

import time

from setproctitle import setproctitle

from qd.process.scoreboard import Slot


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
        slot.say(shown.encode("utf-8", "replace"), queue.encode())
        self._said = name
        setproctitle(f"{self._head} {shown} since {self._clock}")
