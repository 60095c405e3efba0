"""How the master's children come to be: template, keeper, without preload workers and scheduler. One fork each, no more."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from qd.log import to_stderr
from qd.master.code import Code
from qd.master.plan import Plan
from qd.master.state import State
from qd.process import child, signals, systemd
from qd.process.hands import Hands, Seat
from qd.process.talk import Orders


class Forker:
    """What a child is given, and what it must forget of its master."""

    def __init__(self, state: State, token: str) -> None:
        self.state, self._token = state, token

    def template(self, code: Code) -> None:
        """Fork the process that imports the app as `code`. Raises OSError."""
        orders, plan = Orders(), code.plan

        def body() -> int:
            signals.deaf(signal.SIGTERM)
            return plan.template(self._hands("template"), (orders.child_end, code.number))

        try:
            code.pid = child.fork(self._forgetting(body))
            code.orders = orders
        finally:
            orders.child_end.close()

    def fresh(self, code: Code, seat: Seat) -> int:
        """Fork a worker or scheduler that imports the app by itself. Returns its pid. Raises OSError."""
        return child.fork(self._forgetting(lambda: code.plan.fresh(self._hands(seat.role.word, code.number), seat)))

    def keeper(self, plan: Plan, orders: Orders, settings: str, also: tuple[str, ...]) -> int:
        """`also`: queues of earlier settings. Returns its pid. Raises OSError."""

        def body() -> int:
            signals.deaf(signal.SIGTERM)
            return plan.keeper(self._hands("keeper"), orders.child_end, settings, also)

        return child.fork(self._forgetting(body))

    def _hands(self, role: str, code: int = 0) -> Hands:
        state = self.state
        return Hands(state.board, state.ear.voice, self._token, os.getppid(), state.log.of(role, to_stderr), code)

    def _forgetting(self, body: Callable[[], int]) -> Callable[[], int]:
        """First close the master's ends of every line and drop systemd's variables."""

        def run() -> int:
            state = self.state
            systemd.strip(os.environ)
            state.ear.sock.close()
            codes = (state.codes.serving, state.codes.coming)
            for orders in (state.keeper.orders, *(code.orders for code in codes if code is not None)):
                if orders is not None:
                    orders.close()
            state.mailbox.forget()
            return body()

        return run
