"""The job of an entry, made anew at each tick as dispatch() would make it: payload hooks, signature, bounds, locks, keys."""

from __future__ import annotations

from typing import Any

from qd.app import Qd
from qd.bus.parcel import Parcel
from qd.bus.send import outgoing, sends_itself
from qd.connectors.base import Outgoing
from qd.jobs import Plan
from qd.schedule import Entry, JobTask
from qd.scheduler.guard import Guard
from qd.ties import Ties, plain_name


class Jobs:
    """after_commit means nothing here, where no transaction is open. A job whose class has a send() of its own is sent by
    that, after its tick was taken."""

    def __init__(self, app: Qd, guard: Guard) -> None:
        self._send, self._guard = app._send, guard

    def home(self, entry: Entry) -> tuple[str, str]:
        """The connection and the queue it is sent to. Raises ConfigError."""
        route = self._send.route(planned(entry)[0])
        return route.connection, route.queue

    def parcel(self, entry: Entry) -> Parcel:
        """Raises Broke: it cannot be made, or the user's code that makes it raised."""
        plan, data = planned(entry)
        return self._guard.run(lambda: self._send.parcel(plan, data, self._ties(entry, plan)))

    def _ties(self, entry: Entry, plan: Plan) -> Ties | None:
        """Of an entry without_overlapping: its job is a unique one."""
        if not entry.alone or plan.options.unique is not None or plan.key is not None:
            return None
        return Ties(unique=plain_name(f"schedule:{entry.name}"))

    def outgoing(self, parcel: Parcel) -> Outgoing | None:
        """What is sent in the step that takes the tick. None: it sends itself."""
        return None if sends_itself(parcel) else outgoing(parcel)

    def by_hand(self, parcel: Parcel) -> None:
        """Raises Broke."""
        self._guard.run(lambda: self._send.post((parcel,)))


def planned(entry: Entry) -> tuple[Plan, Any]:
    assert isinstance(entry.task, JobTask)
    _, plan, data = entry.task.call._to_send()
    return plan, data
