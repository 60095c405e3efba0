"""Forks the master's children, and keeps the wanted number of workers and schedulers.

Forker    forks template and keeper, and without preload workers and scheduler
Spawner   spawns missing workers of the serving import, from its template or by Forker; slower while that fails
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
from qd.process import signals, systemd
from qd.process.channels import OrderPipe
from qd.process.fork import fork, kill_group
from qd.process.scoreboard import Role


class Forker:
    """Gives each child its context, and closes what it inherits from the master."""

    def __init__(self, state: State, token: str) -> None:
        self.state, self._token = state, token

    def template(self, code: AppImport) -> None:
        """Fork the process that imports the app as `code`. Raises OSError."""
        orders, plan = OrderPipe(), code.plan
        try:
            code.pid = self._fork("template", lambda context: plan.template(context, (orders.child_end, code.number)))
            code.orders = orders
        finally:
            orders.child_end.close()

    def fresh(self, code: AppImport, assignment: Assignment) -> int:
        """Fork a worker or scheduler that imports the app itself. Returns its pid. Raises OSError."""
        return self._fork(assignment.role.word, lambda context: code.plan.fresh(context, assignment), code.number)

    def keeper(self, plan: MasterPlan, orders: OrderPipe, settings: str, also: tuple[str, ...]) -> int:
        """`also`: queues of earlier settings. Returns its pid. Raises OSError."""
        return self._fork("keeper", lambda context: plan.keeper(context, orders.child_end, settings, also))

    def _fork(self, role: str, body: Callable[[ChildContext], int], code: int = 0) -> int:
        """Close the master's ends of all channels and remove systemd's variables before `body`."""

        def run() -> int:
            state = self.state
            systemd.strip(os.environ)
            state.receiver.sock.close()
            for orders in (state.keeper.orders, *(each.orders for each in state.codes.both())):
                if orders is not None:
                    orders.close()
            state.mailbox.forget()
            if role in ("template", "keeper"):
                signals.deaf(signal.SIGTERM)
            log, sender = state.log.of(role, to_stderr), state.receiver.sender
            return body(ChildContext(state.board, sender, self._token, os.getppid(), log, code, state.waker))

        return fork(run)


UNANSWERED = 2  # rounds of orders without a birth after which a template is killed


class Spawner:
    def __init__(self, state: State, forker: Forker) -> None:
        self.state, self.forker = state, forker

    def keep_number(self) -> None:
        state, at = self.state, time.monotonic()
        self._give_up_unborn(at)
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

    def _give_up_unborn(self, at: float) -> None:
        """Give up requested workers that were never born. A template that never answers hangs: kill it."""
        lost = self.state.children.forget_unborn(at)
        for worker in lost:
            self.state.log.error(worker.event("never_born"), slot=worker.slot.number)
        code = self.state.codes.serving
        if code is None or not code.pid or not any(worker.code == code.number for worker in lost):
            return
        code.unanswered += 1
        if code.unanswered >= UNANSWERED:
            self.state.log.error("template.silent", pid=code.pid, unanswered=code.unanswered)
            kill_group(code.pid)

    def born(self, worker: Worker) -> None:
        code = self.state.codes.by_number(worker.code)
        if code is not None:
            code.unanswered = 0
        self.state.boots[worker.role].fork.clear()

    def refused(self, role: Role, error: str) -> None:
        """A fork has failed. Existing workers continue; the delay before the next try grows."""
        steps = self.state.boots[role].fork
        if steps.waits:
            return  # another failure of the same round
        delay = steps.step()
        alive = sum(worker.pid > 0 for worker in self.state.children.of(Role.WORKER))  # others are only requested
        self.state.log.error(f"{role.word}.fork_failed", error=error, workers=alive, retry_in=delay)

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
        state.children.born(worker, pid)
        self.born(worker)
