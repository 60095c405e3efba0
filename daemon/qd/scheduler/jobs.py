"""The job of an entry, made anew at each tick as dispatch() would make it: payload hooks, signature, bounds, locks, keys."""

from __future__ import annotations

from collections.abc import Mapping

from qd.app import Qd
from qd.bus.chain import Chain
from qd.bus.parcel import Parcel
from qd.bus.send import outgoing, sends_itself
from qd.connectors.base import Outgoing
from qd.jobs.calls import literal
from qd.schedule import Entry, JobTask
from qd.scheduler.guard import Broke, Guard, said


class Jobs:
    """after_commit means nothing here, where no transaction is open. A job whose class has a send() of its own is sent by
    that, after its tick was taken."""

    def __init__(self, app: Qd, entries: Mapping[str, Entry], guard: Guard) -> None:
        self._send, self._guard = app._send, guard
        self._tasks = {name: task_of(entry) for name, entry in entries.items()}

    def home(self, entry: Entry) -> tuple[str, str]:
        """The connection and the queue it is sent to. Raises ConfigError."""
        call = self._tasks[entry.name].call
        plan = call._members[0].plan if isinstance(call, Chain) else call._to_send()[1]
        route = self._send.route(plan)
        return route.connection, route.queue

    def parcel(self, entry: Entry) -> Parcel:
        """Raises Broke: it cannot be made, or the user's code that makes it raised."""
        make = self._tasks[entry.name].parcel
        if self._send.hooks:
            return self._guard.run(make)
        try:
            return make()
        except Exception as error:
            raise Broke(said(error)) from error

    def outgoing(self, parcel: Parcel) -> Outgoing | None:
        """What is sent in the step that takes the tick. None: it sends itself."""
        return None if sends_itself(parcel) else outgoing(parcel)

    def by_hand(self, parcel: Parcel) -> None:
        """Raises Broke."""
        self._guard.run(lambda: self._send.post((parcel,)))


def task_of(entry: Entry) -> JobTask:
    """Of an entry without_overlapping a unique job, made so once: what is known of its plan is kept from tick to tick."""
    task = entry.task
    assert isinstance(task, JobTask)
    if not entry.alone or isinstance(task.call, Chain):
        return task
    return JobTask(task.call.using(unique=str(literal(f"schedule:{entry.name}")), unique_until="done"))
