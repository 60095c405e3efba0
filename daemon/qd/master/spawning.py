"""As many workers as are wanted, and the scheduler, from the code that serves: asked of its template, or forked; slowly
where that fails."""

from __future__ import annotations

import time

from qd.master.children import Worker
from qd.master.code import Code
from qd.master.forking import Forker
from qd.master.state import State
from qd.process import child
from qd.process.hands import Seat
from qd.process.scoreboard import Role

DEAF = 2  # rounds of orders that a template may leave unanswered


class Spawner:
    def __init__(self, state: State, forker: Forker) -> None:
        self.state, self.forker = state, forker

    def keep_number(self) -> None:
        state, at = self.state, time.monotonic()
        self._miss(at)
        for role, boots in state.boots.items():
            boots.look(state.children.of(role), at)
        code, coming = state.codes.serving, state.codes.coming
        if code is None or (coming is not None and coming.imported) or state.stopping is not None:
            return
        for role, wanted in state.wants().items():
            serving = state.children.serving(role=role)
            for worker in serving[wanted:]:
                worker.drain()
            for _ in range(wanted - len(serving)):
                if state.boots[role].may_spawn:
                    self.spawn(code, role)

    def _miss(self, at: float) -> None:
        """Workers that were asked for and never seen. A template that never answers stands still: it is replaced."""
        lost = self.state.children.never_born(at)
        for worker in lost:
            self.state.log.error(worker.event("never_born"), slot=worker.slot.number)
        code = self.state.codes.serving
        if code is None or not code.pid or not any(worker.code == code.number for worker in lost):
            return
        code.unanswered += 1
        if code.unanswered >= DEAF:
            self.state.log.error("template.silent", pid=code.pid, unanswered=code.unanswered)
            child.kill_group(code.pid)

    def born(self, worker: Worker) -> None:
        code = self.state.codes.by_number(worker.code)
        if code is not None:
            code.unanswered = 0
        self.state.boots[worker.role].fork.clear()

    def refused(self, role: Role, error: str) -> None:
        """No process can be had. Those that are there go on; the next try comes later and later."""
        fork = self.state.boots[role].fork
        if fork.waits:
            return  # of the same round
        delay = fork.step()
        there = sum(worker.pid > 0 for worker in self.state.children.of(Role.WORKER))  # others are only asked for
        self.state.log.error(f"{role.word}.fork_failed", error=error, workers=there, retry_in=delay)

    def spawn(self, code: Code, role: Role) -> None:
        state, number = self.state, self.state.children.free_slot()
        if number is None:
            return
        worker = state.children.take(number, code.number, time.monotonic(), role)
        seat = Seat(number, worker.generation, state.paused, role)
        if code.preload:
            order = {"slot": number, "generation": seat.generation, "paused": seat.paused}
            if code.orders is None or not code.orders.give(**order, role=role):
                state.children.forget(worker)
            return
        try:
            pid = self.forker.fresh(code, seat)
        except OSError as error:
            state.children.forget(worker)
            self.refused(role, str(error))
            return
        state.children.born(number, worker.generation, pid)
        self.born(worker)
