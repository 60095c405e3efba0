"""Ticks: whether one runs, how it is claimed, what is reported; and in which order runs start.

    TickTaker   pauses, maintenance mode and filters -> one claim per tick -> the server decides -> report
    EarlyJobs   makes the jobs of the next tick in the second before it, some at each turn. Nothing is claimed, reported
                or decided then; a job that is not used is thrown away
    RunQueue    runs of functions and commands. Each is claimed when its turn comes, and started at once
    TickReport  a log line, an event for listeners (user code, guarded), and the history in the store. The history is
                written at most once a second, and no tick waits for it. If the server refuses it, this is logged once
                and tried again with a growing delay

RunQueue keeps two kinds of waiting runs:

    line   the runs of one tick, one after the other, in declaration order. A run leaves the line when the next tick of
           its own entry comes, and starts alongside the others
    late   those that left the line. They wait while too many late runs of their entry are alive, so that an
           entry of every second does not start a thousand processes after an outage
"""

from __future__ import annotations

import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from qd import events
from qd.dispatch.route import Message
from qd.drivers.keyspace import keys
from qd.drivers.types import Answers, Claimed
from qd.errors import ConnectionLost, QdError, ServerBusy, ServerRefused
from qd.log import Log
from qd.master.children import Backoff
from qd.scheduler.connection import ControlFlags, EntryState, ScheduleConnection, TickClaim
from qd.scheduler.due import MOST, Due
from qd.scheduler.entry_job import Guard, UserCodeFailed
from qd.scheduler.filters import refusal
from qd.scheduler.runs import Ended, Runs, moment
from qd.store.base import Store
from qd.store.controls import by_and_why
from qd.store.schedule import Field, Last, Outcome, note_each, pause_of, written_field

HOLDS = 30.0  # seconds for which user code (payload hooks, listeners) may delay one tick
AGAIN = 1000  # ms until a refused claim is tried again
LEAD = 1500  # ms before a tick at which its jobs are made; more than the longest wait between two turns
NEAR = 5  # ms before a tick at which no more jobs are made
STEP = 100  # jobs made in advance in one turn
ABREAST = 8  # late runs of one entry at a time; of missed ticks only one


def no_beat(seconds: float, doing: str = "") -> None:
    """In place of a heartbeat, where none is needed."""


class ClaimRequest(NamedTuple):
    """Claims that were sent, and their future answers. began: monotonic seconds."""

    claims: Sequence[TickClaim]
    began: float
    answers: Answers


class TickTaker:
    """beat: called with the seconds that the next step may take and, if it changes, the name of the current entry or ""."""

    def __init__(self, flags: ControlFlags, report: TickReport, guard: Guard) -> None:
        self.report, self.flags = report, flags
        self.beat: Callable[..., None] = no_beat
        base = secrets.token_hex(3)
        self._guard, self._tokens = guard, (f"{base}.{number:x}" for number in count(1))  # one per claim
        self._refused: set[str] = set()

    def request(self, connection: ScheduleConnection, claims: Sequence[TickClaim]) -> ClaimRequest | None:
        """Send the claims. Returns None if the server is unreachable: they become due again."""
        if not connection.up:
            for claim in claims:
                connection.moments.add(claim.due.at, claim.state)
            return None
        began = time.monotonic()
        for claim in claims:
            self._make_ready(claim)
        self.beat(HOLDS, "")
        self.report.emit_each(events.JobQueueing, [claim.message for claim in claims if claim.message is not None])
        answers = connection.begin(claims)
        if answers is None:
            self._keep_unsure(claims)
            return None
        return ClaimRequest(claims, began, answers)

    def collect(self, connection: ScheduleConnection, requests: Sequence[ClaimRequest]) -> list[TickClaim]:
        """Wait for the answers, plan the next tick of each entry, and report the ticks taken by this scheduler. Returns the
        runs among them, which must be started."""
        taken = list[TickClaim]()
        for each, answers in zip(requests, connection.answers([each.answers for each in requests]), strict=True):
            if answers is None:
                self._keep_unsure(each.claims)
                continue
            took = time.monotonic() - each.began
            for claim, answer in zip(each.claims, answers, strict=True):
                if (mine := self._answered(claim, answer)) is not None:
                    mine.taken_at, mine.took, mine.holder = answer.now, took, answer.holder
                    taken.append(mine)
        return [claim for claim in taken if self._report_taken(claim)]

    def _keep_unsure(self, claims: Sequence[TickClaim]) -> None:
        """The next claim shows whether these were taken."""
        for claim in claims:
            claim.state.unsure[claim.after] = claim
            claim.state.connection.moments.add(claim.due.at, claim.state)

    def _make_ready(self, claim: TickClaim) -> None:
        state, due = claim.state, claim.due
        claim.after = claim.after or self._after(claim)
        if not due.runs or not state.raw:
            return
        claim.skip = self.why_not(claim) or due.answer or ""
        if claim.skip:
            claim.message = claim.job = None
        elif state.job is not None and claim.message is None:
            self.beat(HOLDS, state.entry.name)
            try:
                claim.message = state.job.message()
                claim.job = state.job.outgoing(claim.message)
            except UserCodeFailed as failure:
                claim.error = f"its job could not be made: {failure}"

    def _after(self, claim: TickClaim) -> bytes:
        return written_field(Field(claim.due.at, next(self._tokens), claim.state.mark))

    def make_early(self, state: EntryState, at: int) -> None:
        """Make the job of a future tick. Whether it runs is decided when it is due."""
        job, state.early = state.job, None
        if job is None or not state.raw or state.entry.filters:
            return  # it is a run, has no field yet, or has filters
        if (message := job.early(at)) is not None:
            claim = state.early = TickClaim(state, Due(at), job=job.outgoing(message), message=message)
            claim.after = self._after(claim)

    def why_not(self, claim: TickClaim) -> str:
        """Why this tick does not run, "" if it does. Does not evaluate the user's own filters (see filters.py)."""
        entry, flags = claim.entry, self.flags
        if flags.pauses and (note := pause_of(flags.pauses, entry.name)):
            return f"paused{by_and_why(note)}"
        if (flags.down or flags.down_here) and not entry.in_maintenance:
            return flags.down or flags.reason
        if not entry.filters:
            return ""
        return refusal([each for each in entry.filters if not each.foreign], claim.tick, self._guard)

    def _answered(self, claim: TickClaim, answer: Claimed) -> TickClaim | None:
        """The tick that was taken: this one, or an earlier one whose reply was lost."""
        state, connection = claim.state, claim.state.connection
        if answer.taken:
            state.unsure.clear()
            state.raw, state.last = claim.after, claim.due.at
            connection.plan(state)
            self._refused.discard(state.entry.name)
            return claim
        if answer.early:
            connection.early(state, claim.due.at)
        elif answer.found is not None:
            mine = state.unsure.pop(answer.found, None)
            connection.update(state, answer.found)
            self._forget_unsure(state, connection.now / 1000)
            return mine
        elif isinstance(answer.refused, ServerBusy):
            connection.moments.add(claim.due.at, state)
        else:
            self._refuse(state, answer.refused)
            connection.moments.add(connection.now + AGAIN, state)
        return None

    def _forget_unsure(self, state: EntryState, now: float) -> None:
        """Another scheduler has taken a later tick, so it is unknown which one took the unsure ones. A job was sent by the
        one that took it; a run may have been ours."""
        reason = "the connection broke while it was claimed, and another host continued: it may not have run"
        for after, claim in list(state.unsure.items()):
            if claim.due.at <= state.last:
                del state.unsure[after]
                if state.job is None and claim.due.runs and claim.due.at < state.last:
                    self.report.skipped(claim, reason, now)

    def _refuse(self, state: EntryState, error: Exception | None) -> None:
        name = state.entry.name
        if name not in self._refused:
            self._refused.add(name)
            self.beat(HOLDS)  # checks every key, which takes long with ten thousand entries
            wrong = ""
            with suppress(QdError):
                wrong = state.connection.queue.ticks.strange(state.queue)
            self.report.log.error("schedule.refused", entry=name, error=wrong or str(error))

    # -- after the claim

    def _report_taken(self, claim: TickClaim) -> bool:
        """Returns whether it is a run, which must be started. A job whose class has a send() of its own is sent here."""
        job = claim.state.job
        self.beat(HOLDS, claim.entry.name)
        if claim.due.missed:
            self.report.missed(claim)
        if not claim.due.runs:
            return False
        if claim.skip:
            self.report.skipped(claim, claim.skip, claim.taken_at)
        elif claim.error:
            self.report.failed(claim, claim.error)
        elif job is None:
            return True
        elif claim.holder:
            self.report.held(claim)
        else:
            try:
                if claim.job is None and claim.message is not None:
                    job.send_itself(claim.message)
                self.report.sent(claim)
            except UserCodeFailed as failure:
                self.report.failed(claim, f"its send() {failure}")
        return False


class EarlyJobs:
    def __init__(self, connection: ScheduleConnection, taker: TickTaker) -> None:
        self._connection, self._taker = connection, taker
        self._at = self._seen = 0

    def step(self) -> bool:
        """Make some jobs. Returns whether there are more to make."""
        at = self._connection.moments.next
        if at is None or not self._connection.up or not NEAR < at - self._connection.now < LEAD:
            return False
        if at != self._at:
            self._at, self._seen = at, 0
        states = self._connection.moments.at(at)
        for state in states[self._seen : self._seen + STEP]:
            self._taker.make_early(state, at)
        self._seen = min(self._seen + STEP, len(states))
        return self._seen < len(states)


@dataclass(slots=True, eq=False)
class Line:
    """taken: claimed, but not started. running: name of the entry, tick in unix seconds. late: name of the entry whose late
    run this is, or "". at: the tick, unix ms, if others may join; or 0."""

    connection: ScheduleConnection
    waiting: deque[TickClaim] = field(default_factory=deque)
    taken: TickClaim | None = None
    running: tuple[str, float] | None = None
    late: str = ""
    at: int = 0

    @property
    def empty(self) -> bool:
        return not (self.waiting or self.taken or self.running)


class RunQueue:
    def __init__(self, runs: Runs, taker: TickTaker) -> None:
        self._runs, self._taker = runs, taker
        self._lines: list[Line] = []
        self._late: list[TickClaim] = []  # one per entry: the next is planned once it is taken

    def __len__(self) -> int:
        """Number of runs that wait or are alive."""
        return sum(not line.empty for line in self._lines) + len(self._late)

    def add(self, runs: Sequence[TickClaim]) -> None:
        """Add the runs of one tick. A punctual run waits behind the late runs of its entry."""
        late, waiting = {line.late for line in self._lines}, deque[TickClaim]()
        for run in runs:
            if run.entry.name in late:
                self._late.append(run)
            elif not self._join(run):
                waiting.append(run)
        if waiting:
            at = 0 if waiting[0].entry.background else waiting[0].due.at
            self._lines.append(Line(waiting[0].state.connection, waiting, at=at))

    def _join(self, run: TickClaim) -> bool:
        """Add a run whose filters are evaluated to the line of its tick. Returns whether that line exists."""
        if run.due.answer is None or run.entry.background:
            return False
        line = next((line for line in self._of(run.state.connection) if line.at == run.due.at), None)
        if line is not None:
            line.waiting = deque(sorted([*line.waiting, run], key=lambda each: each.state.order))
        return line is not None

    def _of(self, connection: ScheduleConnection) -> list[Line]:
        return [line for line in self._lines if line.connection is connection]

    def due_in(self, connection: ScheduleConnection) -> float:
        """Seconds until a run leaves its line."""
        first = min([leaves_at(run) for line in self._of(connection) for run in line.waiting], default=math.inf)
        return max(0.0, (first - connection.now) / 1000)

    def _leave_line(self, connection: ScheduleConnection) -> None:
        for line in self._of(connection):
            for run in [run for run in line.waiting if leaves_at(run) <= connection.now]:
                line.waiting.remove(run)
                self._late.append(run)

    def _start_late(self, connection: ScheduleConnection) -> None:
        for run in [run for run in self._late if run.state.connection is connection]:
            most = 1 if connection.now - run.due.at > connection.late else ABREAST
            if sum(line.late == run.entry.name for line in self._lines) < most:
                self._late.remove(run)
                self._lines.append(Line(connection, deque([run]), late=run.entry.name))

    def start_claimed(self, claim: TickClaim) -> None:
        self._lines.append(Line(claim.state.connection, taken=claim))

    def drain(self) -> None:
        """Forget what is not claimed: other hosts take it."""
        self._late.clear()
        for line in self._lines:
            line.waiting.clear()

    def step(self, connection: ScheduleConnection, claims: bool) -> None:
        """Start what can start on this connection. Without `claims` only runs that are claimed already."""
        if claims:
            self._leave_line(connection)
            self._start_late(connection)
        for line in self._of(connection):
            while not line.running and (line.taken or (claims and line.waiting)) and connection.up:
                self._next(line)
        self._lines = [line for line in self._lines if not line.empty]

    def _next(self, line: Line) -> None:
        if line.taken is None and (request := self._taker.request(line.connection, [line.waiting.popleft()])):
            line.taken = next(iter(self._taker.collect(line.connection, [request])), None)
        if line.taken is not None:
            self._start(line, line.taken)

    def _start(self, line: Line, claim: TickClaim) -> None:
        """Start the run, unless an earlier one of the entry is alive, here or on another host."""
        entry, tick, connection = claim.entry, claim.tick, line.connection
        try:
            blocked = self._runs.blocked_by(entry)
        except ServerBusy as error:
            return connection.mark_busy(error)
        except ConnectionLost as error:
            return connection.lost(error)  # it is claimed, and starts when the server is back
        line.taken, connection.busy = None, connection.busy and not entry.alone
        if blocked:
            return self._taker.report.skipped(claim, blocked, connection.now / 1000)
        self._runs.start(entry, tick)
        line.running = (entry.name, tick)

    def leave_taken(self) -> None:
        """The scheduler stops: report claimed runs that cannot start because their server is unreachable."""
        reason = "it was claimed, then the server was unreachable until the scheduler stopped"
        for line in self._lines:
            if line.taken is not None and not line.connection.up:
                self._taker.report.skipped(line.taken, reason, line.connection.now / 1000)
                line.taken = None

    def ended(self, ended: Ended) -> None:
        for line in self._lines:
            if line.running == (ended.entry.name, ended.tick):
                line.running = None


def leaves_at(run: TickClaim) -> float:
    """When the run leaves its line, unix ms; infinite if its entry has no further tick."""
    found = run.state.next_after(run.due.at)
    return math.inf if found is None else found


LONGEST = 60.0  # seconds between two attempts to write the history


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
