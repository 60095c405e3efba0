"""A job by the key it waits under, as app.keyed(remind, "order:42") gives it: moved and cancelled before it runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from qd.bus.route import due_in, name_of
from qd.jobs import Plan, Span
from qd.process.shield import shield

if TYPE_CHECKING:
    from qd.bus.send import Send


class Keyed:
    """Nothing is asked of the server before a method is called; each of them is one call. They may raise ConnectionLost and
    ServerRefused: then nothing is known, and asking again is right."""

    def __init__(self, send: Send, plan: Plan, key: str) -> None:
        self._send, self._plan, self.key = send, plan, key
        self._name = name_of(plan.declared.name, key)

    def cancel(self) -> bool:
        """True: it waited, and will never run. False: it has begun, has run, or was never there."""
        route = self._send.route(self._plan)
        with shield:
            return self._send.connector(route.connection).cancel_keyed(route.queue, self._name)

    def reschedule(self, delay: Span | datetime) -> bool:
        """True: it waited, and is due after `delay` from now. False: as of cancel()."""
        route = self._send.route(self._plan)
        seconds = due_in(delay, self._plan.declared.name)
        with shield:
            return self._send.connector(route.connection).move_keyed(route.queue, self._name, seconds)

    def due(self) -> datetime | None:
        """When it is due, or was: a moment that has passed, while no worker has taken it yet. None: it does not wait."""
        route = self._send.route(self._plan)
        with shield:
            found = self._send.connector(route.connection).keyed_due(route.queue, self._name)
        return None if found is None else datetime.fromtimestamp(found, UTC)

    def __repr__(self) -> str:
        return f"<job {self._plan.declared.name} under key {self.key!r}>"
