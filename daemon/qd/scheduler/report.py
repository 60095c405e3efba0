"""What is said of a tick: a line of the log, an event for listeners (guarded: they are the user's), and what the store keeps
of it, which is written once a second at most.

What the store keeps of the schedule for people to read. No tick waits for it: where the server takes nothing, that is
said once, and tried again later and later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache

from qd.dispatch.route import Message
from qd.drivers.keyspace import keys
from qd.errors import ServerBusy, ServerRefused
from qd.events import (
    Event,
    JobQueued,
    JobQueueing,
    Listeners,
    ScheduledTaskFailed,
    ScheduledTaskFinished,
    ScheduledTaskSkipped,
    ScheduledTaskStarting,
    UniqueJobSkipped,
)
from qd.log import Log
from qd.scheduler.connection import TickClaim
from qd.scheduler.due import MOST
from qd.scheduler.entry_job import Broke, Guard
from qd.scheduler.runs import Ended
from qd.scheduler.runs import moment as written
from qd.store.base import Store
from qd.store.schedule import Last, note_each

moment = lru_cache(maxsize=16)(written)  # many entries are due at one


class TickReport:
    """now, everywhere: unix seconds by the server's clock; took: seconds. Ticks stand in their places in ms."""

    def __init__(self, listeners: Listeners, log: Log, host: str, guard: Guard) -> None:
        self._listeners, self.log, self._host, self._guard = listeners, log, host, guard
        self._lasts: dict[str, Last] = {}
        self._skips: dict[str, Last] = {}
        self._ran, self._skipped = History(log, keys.SCHEDULE_LAST), History(log, keys.SCHEDULE_SKIPPED)

    # -- ticks

    def sent(self, want: TickClaim, now: float, took: float) -> None:
        name, at, parcel = want.place.entry.name, want.due.at / 1000, want.parcel
        assert parcel is not None
        self.emit(ScheduledTaskStarting, name, at)
        self.queued(parcel)
        late = max(0.0, now - at)
        self.log.info("schedule.sent", entry=name, job=parcel.name, id=parcel.id, at=moment(at), late=late)
        self.emit(ScheduledTaskFinished, name, at, took)
        self._lasts[name] = Last(at, now, now, "sent", self._host, parcel.id)

    def held(self, want: TickClaim, holder: str, now: float) -> None:
        """Its job was not sent."""
        parcel = want.parcel
        assert parcel is not None
        name = (parcel.ties and parcel.ties.unique) or ""
        self.emit(UniqueJobSkipped, parcel.connection, parcel.queue, parcel.name, name)
        self.skipped(want, f"its job is still waiting or running (id {holder})", now)

    def skipped(self, want: TickClaim, reason: str, now: float) -> None:
        name, at = want.place.entry.name, want.due.at / 1000
        self.log.info("schedule.skipped", entry=name, at=moment(at), reason=reason)
        self.emit(ScheduledTaskSkipped, name, at, reason)
        self._skips[name] = Last(at, now, now, "skipped", self._host, reason)

    def missed(self, want: TickClaim, now: float) -> None:
        name, at, count = want.place.entry.name, want.due.at / 1000, want.due.missed
        said = f"{MOST} or more" if count >= MOST else count
        policy = want.place.entry.missed
        self.log.warning("schedule.missed", entry=name, count=said, until=moment(at), missed=policy)
        reason = f'missed: {said} {"tick was" if count == 1 else "ticks were"} not taken in time (missed="{policy}")'
        self.emit(ScheduledTaskSkipped, name, at, reason)
        if not want.due.runs:
            self._skips[name] = Last(at, now, now, "skipped", self._host, reason)

    def failed(self, want: TickClaim, error: str, now: float) -> None:
        """Its job could not be made or sent."""
        name, at = want.place.entry.name, want.due.at / 1000
        self.log.error("schedule.failed", entry=name, at=moment(at), error=error)
        self.emit(ScheduledTaskFailed, name, at, 0.0, error)
        self._lasts[name] = Last(at, now, now, "failed", self._host, error)

    def ended(self, ended: Ended, now: float) -> None:
        """A run is over, and its lines and events are told: what is kept of it."""
        outcome = "failed" if ended.error else "done"
        began = now - ended.runtime
        self._lasts[ended.entry.name] = Last(ended.tick, began, now, outcome, self._host, ended.error)  # type: ignore[arg-type]

    # -- events

    def queueing(self, parcels: Sequence[Message]) -> None:
        if self._listeners.has(JobQueueing):
            for parcel in parcels:
                self.emit(JobQueueing, *facts(parcel))

    def queued(self, parcel: Message) -> None:
        if self._listeners.has(JobQueued):
            self.emit(JobQueued, *facts(parcel))

    def emit(self, kind: type[Event], *args: object) -> None:
        if not self._listeners.has(kind):
            return
        try:
            self._guard.run(lambda: self._listeners.emit(kind(*args)))
        except Broke as broke:
            self.log.error("schedule.listener", event_kind=kind.__name__, error=f"a listener {broke}")

    # -- what the store keeps

    def keep(self, store: Store) -> None:
        """Write what there is. Raises ConnectionLost; then it is written by the next call."""
        if self._lasts and self._ran.done(lambda: note_each(store, self._lasts)):
            self._lasts = {}
        if self._skips and self._skipped.done(lambda: note_each(store, self._skips)):
            self._skips = {}


def facts(parcel: Message) -> tuple[object, ...]:
    return (
        parcel.connection,
        parcel.queue,
        parcel.name or None,
        parcel.id or None,
        parcel.body,
        parcel.delay or None,
    )


LONGEST = 60.0  # seconds between two tries


class History:
    """Writes one key."""

    def __init__(self, log: Log, key: str) -> None:
        self._log, self._key = log, key
        self._delay = self._again_at = 0.0

    def done(self, write: Callable[[], object]) -> bool:
        """False: it is still to be written, by a later call. Raises ConnectionLost."""
        at = time.monotonic()
        if at < self._again_at:
            return False
        try:
            write()
        except (ServerBusy, ServerRefused) as error:
            if not self._delay:
                self._log.warning("schedule.not_kept", key=self._key, error=str(error))
            self._delay = min(LONGEST, self._delay * 2 or 1.0)
            self._again_at = at + self._delay
            return False
        self._delay = 0.0
        return True
