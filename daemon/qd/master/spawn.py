"""How the master's children come to be: template, keeper, without preload workers and scheduler. One fork each, no more.

As many workers as are wanted, and the scheduler, from the code that serves: asked of its template, or forked; slowly
where that fails.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from qd.log import to_stderr
from qd.master.children import Worker
from qd.master.code import AppImport, Assignment, ChildContext, MasterPlan
from qd.master.state import State
from qd.process import fork as child
from qd.process import signals, systemd
from qd.process.channels import OrderPipe
from qd.process.fork import kill_group
from qd.process.scoreboard import Role


class Forker:
    """What a child is given, and what it must forget of its master."""

    def __init__(self, state: State, token: str) -> None:
        self.state, self._token = state, token

    def template(self, code: AppImport) -> None:
        """Fork the process that imports the app as `code`. Raises OSError."""
        orders, plan = OrderPipe(), code.plan

        def body() -> int:
            signals.deaf(signal.SIGTERM)
            return plan.template(self._context("template"), (orders.child_end, code.number))

        try:
            code.pid = child.fork(self._forgetting(body))
            code.orders = orders
        finally:
            orders.child_end.close()

    def fresh(self, code: AppImport, assignment: Assignment) -> int:
        """Fork a worker or scheduler that imports the app by itself. Returns its pid. Raises OSError."""
        return child.fork(
            self._forgetting(lambda: code.plan.fresh(self._context(assignment.role.word, code.number), assignment))
        )

    def keeper(self, plan: MasterPlan, orders: OrderPipe, settings: str, also: tuple[str, ...]) -> int:
        """`also`: queues of earlier settings. Returns its pid. Raises OSError."""

        def body() -> int:
            signals.deaf(signal.SIGTERM)
            return plan.keeper(self._context("keeper"), orders.child_end, settings, also)

        return child.fork(self._forgetting(body))

    def _context(self, role: str, code: int = 0) -> ChildContext:
        state = self.state
        return ChildContext(
            state.board, state.receiver.sender, self._token, os.getppid(), state.log.of(role, to_stderr), code
        )

    def _forgetting(self, body: Callable[[], int]) -> Callable[[], int]:
        """First close the master's ends of every line and drop systemd's variables."""

        def run() -> int:
            state = self.state
            systemd.strip(os.environ)
            state.receiver.sock.close()
            codes = (state.codes.serving, state.codes.coming)
            for orders in (state.keeper.orders, *(code.orders for code in codes if code is not None)):
                if orders is not None:
                    orders.close()
            state.mailbox.forget()
            return body()

        return run


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
            kill_group(code.pid)

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

    def spawn(self, code: AppImport, role: Role) -> None:
        state, number = self.state, self.state.children.free_slot()
        if number is None:
            return
        worker = state.children.take(number, code.number, time.monotonic(), role)
        assignment = Assignment(number, worker.generation, state.paused, role)
        if code.preload:
            order = {"slot": number, "generation": assignment.generation, "paused": assignment.paused}
            if code.orders is None or not code.orders.send(**order, role=role):
                state.children.forget(worker)
            return
        try:
            pid = self.forker.fresh(code, assignment)
        except OSError as error:
            state.children.forget(worker)
            self.refused(role, str(error))
            return
        state.children.born(number, worker.generation, pid)
        self.born(worker)
