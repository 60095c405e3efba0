"""The job of an entry, made anew at each tick as dispatch() would make it: payload hooks, signature, bounds, locks, keys."""

from __future__ import annotations

from qd.app import Qd
from qd.bus.chain import Chain
from qd.bus.parcel import Parcel
from qd.bus.send import outgoing, sends_itself
from qd.connectors.base import Outgoing
from qd.jobs.calls import literal
from qd.schedule import Entry, JobTask
from qd.scheduler.guard import Broke, Guard, said


class EntryJob:
    """after_commit means nothing here, where no transaction is open. A job whose class has a send() of its own is sent by
    that, after its tick was taken."""

    def __init__(self, app: Qd, entry: Entry, task: JobTask, guard: Guard) -> None:
        self._send, self._guard = app._send, guard
        self._task = kept_single(entry, task)

    def home(self) -> tuple[str, str]:
        """The connection and the queue it is sent to. Raises ConfigError."""
        route = self._send.route(self._task.plan)
        return route.connection, route.queue

    def parcel(self) -> Parcel:
        """Raises Broke: it cannot be made, or the user's code that makes it raised."""
        if self._send.hooks:
            return self._guard.run(self._task.parcel)
        try:
            return self._task.parcel()
        except Exception as error:
            raise Broke(said(error)) from error

    def early(self, at: int) -> Parcel | None:
        """As parcel(), for the tick `at`, unix ms, which is yet to come. None: that is to be made, or what is wrong with it
        to be told, at its moment."""
        try:
            return None if self._send.hooks else self._task.early(at / 1000)
        except Exception:
            return None

    def outgoing(self, parcel: Parcel) -> Outgoing | None:
        """What is sent in the step that takes the tick. None: it sends itself."""
        return None if sends_itself(parcel) else outgoing(parcel)

    def by_hand(self, parcel: Parcel) -> None:
        """Raises Broke."""
        self._guard.run(lambda: self._send._hand_over(parcel))


def job_of(app: Qd, entry: Entry, guard: Guard) -> EntryJob | None:
    """None: it sends none, and is run by whoever takes its tick."""
    return EntryJob(app, entry, entry.task, guard) if isinstance(entry.task, JobTask) else None


def kept_single(entry: Entry, task: JobTask) -> JobTask:
    """Of an entry without_overlapping a unique job, made so once: what is known of its plan is kept from tick to tick."""
    if not entry.alone or isinstance(task.call, Chain):
        return task
    return JobTask(task.call.using(unique=str(literal(f"schedule:{entry.name}")), unique_until="done"))
