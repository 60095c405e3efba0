"""As many workers as are wanted, and the scheduler, from the code that serves: asked of its template, or forked; slowly
where that fails."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from qd.master.children import Worker
from qd.master.code import Code
from qd.process import child
from qd.process.hands import Seat
from qd.process.scoreboard import Role

if TYPE_CHECKING:
    from qd.master.loop import Master

REVIVE = (1.0, 60.0)  # seconds between two tries to replace a template that died, while the code is bad
DEAF = 2  # rounds of orders that a template may leave unanswered


class Spawning:
    def __init__(self, master: Master) -> None:
        self.master = master
        self._revive_at, self._revive_in = 0.0, REVIVE[0]

    def keep_number(self) -> None:
        master, at = self.master, time.monotonic()
        self._miss(at)
        for role, boots in master.boots.items():
            boots.look(master.children.of(role), at)
        code, coming = master.codes.serving, master.codes.coming
        if code is None or (coming is not None and coming.imported) or master.stopping is not None:
            return
        for role, wanted in master.wants().items():
            serving = master.children.serving(role=role)
            for worker in serving[wanted:]:
                worker.drain()
            for _ in range(wanted - len(serving)):
                if master.boots[role].may_spawn:
                    self.spawn(code, role)

    def _miss(self, at: float) -> None:
        """Workers that were asked for and never seen. A template that never answers stands still: it is replaced."""
        lost = self.master.children.never_born(at)
        for worker in lost:
            self.master.log.error(worker.event("never_born"), slot=worker.slot.number)
        code = self.master.codes.serving
        if code is None or not code.pid or not any(worker.code == code.number for worker in lost):
            return
        code.unanswered += 1
        if code.unanswered >= DEAF:
            self.master.log.error("template.silent", pid=code.pid, unanswered=code.unanswered)
            child.kill_group(code.pid)

    def born(self, worker: Worker) -> None:
        code = self.master.codes.by_number(worker.code)
        if code is not None:
            code.unanswered = 0
        self.master.boots[worker.role].fork.clear()

    def refused(self, role: Role, error: str) -> None:
        """No process can be had. Those that are there go on; the next try comes later and later."""
        fork = self.master.boots[role].fork
        if fork.waits:
            return  # of the same round
        delay = fork.step()
        there = sum(worker.pid > 0 for worker in self.master.children.of(Role.WORKER))  # others are only asked for
        self.master.log.error(f"{role.word}.fork_failed", error=error, workers=there, retry_in=delay)

    def spawn(self, code: Code, role: Role) -> None:
        master, number = self.master, self.master.children.free_slot()
        if number is None:
            return
        worker = master.children.take(number, code.number, time.monotonic(), role)
        seat = Seat(number, worker.generation, master.paused, role)
        if code.preload:
            order = {"slot": number, "generation": seat.generation, "paused": seat.paused}
            if code.orders is None or not code.orders.give(**order, role=role, word=worker.word):
                master.children.forget(worker)
            return
        try:
            pid = master.forking.fresh(code, seat)
        except OSError as error:
            master.children.forget(worker)
            self.refused(role, str(error))
            return
        master.children.born(number, worker.generation, pid)
        self.born(worker)

    # -- the template

    def look_after_template(self) -> None:
        """One that died is replaced, with new workers: theirs is gone. While the code is bad: tried ever more slowly."""
        code, at = self.master.codes.serving, time.monotonic()
        if code is None or not code.preload or code.pid or self.master.codes.coming is not None or at < self._revive_at:
            return
        self._revive_at, self._revive_in = at + self._revive_in, min(REVIVE[1], self._revive_in * 2)
        self.master.reload("the template died")

    def new_code(self) -> None:
        self._revive_in = REVIVE[0]
