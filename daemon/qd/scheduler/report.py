"""What is reported of a tick: a log line, an event for listeners (user code, guarded), and the history in the store.

The history is written at most once a second, and no tick waits for it. If the server refuses it, this is logged once and
tried again with a growing delay.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from qd import events
from qd.dispatch.route import Message
from qd.drivers.keyspace import keys
from qd.errors import ServerBusy, ServerRefused
from qd.log import Log
from qd.master.children import Backoff
from qd.scheduler.connection import TickClaim
from qd.scheduler.due import MOST
from qd.scheduler.entry_job import Guard, UserCodeFailed
from qd.scheduler.runs import Ended
from qd.scheduler.runs import moment as format_moment
from qd.store.base import Store
from qd.store.schedule import Last, Outcome, note_each

LONGEST = 60.0  # seconds between two attempts to write the history
moment = lru_cache(maxsize=16)(format_moment)  # many entries share a tick


class TickReport:
    """now: unix seconds by the server's clock."""

    def __init__(self, listeners: events.Listeners, log: Log, host: str, guard: Guard) -> None:
        self._listeners, self.log, self._host, self._guard = listeners, log, host, guard
        self._ran, self._skipped = History(log, keys.SCHEDULE_LAST), History(log, keys.SCHEDULE_SKIPPED)

    # -- ticks

    def sent(self, claim: TickClaim) -> None:
        name, at, now, message = claim.entry.name, claim.tick, claim.taken_at, claim.message
        assert message is not None
        self.emit(events.ScheduledTaskStarting, name, at)
        self.emit_each(events.JobQueued, [message])
        late = max(0.0, now - at)
        self.log.info("schedule.sent", entry=name, job=message.name, id=message.id, at=moment(at), late=late)
        self.emit(events.ScheduledTaskFinished, name, at, claim.took)
        self._ran.lasts[name] = Last(at, now, now, "sent", self._host, message.id)

    def held(self, claim: TickClaim) -> None:
        """Its job was not sent: the unique lock is held."""
        message = claim.message
        assert message is not None
        name = (message.relations and message.relations.unique) or ""
        self.emit(events.UniqueJobSkipped, message.connection, message.queue, message.name, name)
        self.skipped(claim, f"its job is still waiting or running (id {claim.holder})", claim.taken_at)

    def skipped(self, claim: TickClaim, reason: str, now: float) -> None:
        name, at = claim.entry.name, claim.tick
        self.log.info("schedule.skipped", entry=name, at=moment(at), reason=reason)
        self.emit(events.ScheduledTaskSkipped, name, at, reason)
        self._skipped.lasts[name] = Last(at, now, now, "skipped", self._host, reason)

    def missed(self, claim: TickClaim) -> None:
        name, at, count = claim.entry.name, claim.tick, claim.due.missed
        text = f"{MOST} or more" if count >= MOST else count
        policy = claim.entry.missed
        self.log.warning("schedule.missed", entry=name, count=text, until=moment(at), missed=policy)
        reason = f'missed: {text} {"tick was" if count == 1 else "ticks were"} not taken in time (missed="{policy}")'
        self.emit(events.ScheduledTaskSkipped, name, at, reason)
        if not claim.due.runs:
            self._skipped.lasts[name] = Last(at, claim.taken_at, claim.taken_at, "skipped", self._host, reason)

    def failed(self, claim: TickClaim, error: str) -> None:
        """Its job could not be made or sent."""
        name, at, now = claim.entry.name, claim.tick, claim.taken_at
        self.log.error("schedule.failed", entry=name, at=moment(at), error=error)
        self.emit(events.ScheduledTaskFailed, name, at, 0.0, error)
        self._ran.lasts[name] = Last(at, now, now, "failed", self._host, error)

    def ended(self, ended: Ended, now: float) -> None:
        """Note the end of a run; its log lines and events were written elsewhere."""
        outcome: Outcome = "failed" if ended.error else "done"
        self._ran.lasts[ended.entry.name] = Last(ended.tick, now - ended.runtime, now, outcome, self._host, ended.error)

    # -- events

    def emit_each(self, kind: type[events.JobQueueing | events.JobQueued], messages: Sequence[Message]) -> None:
        if self._listeners.has(kind):
            for each in messages:
                name, job_id, delay = each.name or None, each.id or None, each.delay or None
                self.emit(kind, each.connection, each.queue, name, job_id, each.body, delay)

    def emit(self, kind: type[events.Event], *args: object) -> None:
        if not self._listeners.has(kind):
            return
        try:
            self._guard.run(lambda: self._listeners.emit(kind(*args)))
        except UserCodeFailed as failure:
            self.log.error("schedule.listener", event_kind=kind.__name__, error=f"a listener {failure}")

    # -- history

    def keep(self, store: Store) -> None:
        """Write the history. If it raises ConnectionLost, the next call writes it."""
        self._ran.keep(store)
        self._skipped.keep(store)


class History:
    """lasts: to be written under this key, by entry."""

    def __init__(self, log: Log, key: str) -> None:
        self._log, self._key = log, key
        self.lasts: dict[str, Last] = {}
        self._rest = Backoff(1.0, LONGEST)

    def keep(self, store: Store) -> None:
        """Raises ConnectionLost."""
        if not self.lasts or self._rest.waits:
            return
        try:
            note_each(store, self.lasts)
            self.lasts, self._rest.count = {}, 0
        except (ServerBusy, ServerRefused) as error:
            if not self._rest.count:
                self._log.warning("schedule.not_kept", key=self._key, error=str(error))
            self._rest.step()
