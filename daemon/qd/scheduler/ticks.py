"""Ticks: whether one runs, how it is claimed, what is reported; and in which order runs start.

    TickTaker   pauses, maintenance mode and filters -> one claim per tick -> the server decides -> report
    EarlyJobs   makes the jobs of the next tick in the second before it, some at each turn. Nothing is claimed, reported
                or decided then; a job that is not used is thrown away
    RunQueue    runs of functions and commands. Each is claimed when its turn comes, and started at once

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
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from qd.drivers.types import Answers, Claimed
from qd.errors import ConnectionLost, ServerBusy
from qd.schedule.entry import Entry
from qd.scheduler.connection import ControlFlags, EntryState, ScheduleConnection, TickClaim
from qd.scheduler.due import Due
from qd.scheduler.entry_job import EntryJob, Guard, UserCodeFailed
from qd.scheduler.filters import refusal
from qd.scheduler.report import TickReport
from qd.scheduler.runs import Ended, Runs
from qd.store.controls import by_and_why
from qd.store.schedule import Field, pause_of, written_field

HOLDS = 30.0  # seconds for which user code (payload hooks, listeners) may delay one tick
AGAIN = 1000  # ms until a refused claim is tried again
LEAD = 1500  # ms before a tick at which its jobs are made; more than the longest wait between two turns
NEAR = 5  # ms before a tick at which no more jobs are made
STEP = 100  # jobs made in advance in one turn
ABREAST = 8  # late runs of one entry at a time; of missed ticks only one


class TakenTick(NamedTuple):
    """holder: id of the job that has the lock, so that this one was not sent. now: unix seconds. took: seconds."""

    claim: TickClaim
    holder: str
    now: float
    took: float


def no_beat(seconds: float, doing: str = "") -> None:
    """In place of a heartbeat, where none is needed."""


class ClaimRequest(NamedTuple):
    """Claims that were sent, and their future answers. began: monotonic seconds."""

    claims: Sequence[TickClaim]
    began: float
    answers: Answers


class TickTaker:
    """down: maintenance mode as the owner of the scheduler knows it. maintenance_reason: used if no note explains it.

    beat: called with the seconds that the next step may take and, if it changes, the name of the current entry or "".
    """

    def __init__(self, flags: ControlFlags, report: TickReport, guard: Guard) -> None:
        self.report, self.flags, self.down = report, flags, False
        self.maintenance_reason = "maintenance mode"
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
        self.report.queueing([claim.message for claim in claims if claim.message is not None])
        answers = connection.begin(claims)
        if answers is None:
            self._keep_unsure(connection, claims)
            return None
        return ClaimRequest(claims, began, answers)

    def collect(self, connection: ScheduleConnection, requests: Sequence[ClaimRequest | None]) -> list[TakenTick]:
        """Wait for the answers. Returns the ticks taken by this scheduler; plans the next tick of each entry."""
        sent, found = [each for each in requests if each is not None], list[TakenTick]()
        for each, answers in zip(sent, connection.answers([each.answers for each in sent]), strict=True):
            if answers is None:
                self._keep_unsure(connection, each.claims)
                continue
            took = time.monotonic() - each.began
            for claim, answer in zip(each.claims, answers, strict=True):
                mine = self._answered(connection, claim, answer)
                if mine is not None:
                    found.append(TakenTick(mine, answer.holder, answer.now, took))
        return found

    def _keep_unsure(self, connection: ScheduleConnection, claims: Sequence[TickClaim]) -> None:
        """The next claim shows whether these were taken."""
        for claim in claims:
            claim.state.unsure[claim.after] = claim
            connection.moments.add(claim.due.at, claim.state)

    def _make_ready(self, claim: TickClaim) -> None:
        state, due = claim.state, claim.due
        claim.after = claim.after or self._after(claim)
        if not due.runs or not state.raw:
            return
        claim.skip = self.why_not(state.entry, due.at / 1000) or due.answer or ""
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
        return written_field(Field(claim.due.at, next(self._tokens), claim.state.key[1]))

    def make_early(self, state: EntryState, at: int) -> None:
        """Make the job of a future tick. Whether it runs is decided when it is due."""
        job, state.early = state.job, None
        if job is None or not state.raw or state.entry.filters:
            return  # it is a run, has no field yet, or has filters
        if (message := job.early(at)) is not None:
            claim = state.early = TickClaim(state, Due(at), job=job.outgoing(message), message=message)
            claim.after = self._after(claim)

    def why_not(self, entry: Entry, tick: float) -> str:
        """Why this tick does not run, "" if it does. Does not ask the user's own filters (see filters.py)."""
        flags = self.flags
        if flags.pauses and (note := pause_of(flags.pauses, entry.name)):
            return f"paused{by_and_why(note)}"
        if (flags.down or self.down) and not entry.in_maintenance:
            return flags.down or self.maintenance_reason
        if not entry.filters:
            return ""
        return refusal([each for each in entry.filters if not each.foreign], tick, self._guard)

    def _answered(self, connection: ScheduleConnection, claim: TickClaim, answer: Claimed) -> TickClaim | None:
        """The tick that was taken: this one, or an earlier one whose reply was lost."""
        state = claim.state
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
            self._refuse(connection, state, answer.refused)
            connection.moments.add(connection.now + AGAIN, state)
        return None

    def _forget_unsure(self, state: EntryState, now: float) -> None:
        """Another scheduler has taken a later tick, so nobody knows who took the unsure ones. A job was sent by the one
        that took it; a run may have been ours."""
        for after, claim in list(state.unsure.items()):
            if claim.due.at <= state.last:
                del state.unsure[after]
                if state.job is None and claim.due.runs and claim.due.at < state.last:
                    reason = (
                        "the connection broke while it was claimed, and another host continued: it may not have run"
                    )
                    self.report.skipped(claim, reason, now)

    def _refuse(self, connection: ScheduleConnection, state: EntryState, error: Exception | None) -> None:
        name = state.entry.name
        if name not in self._refused:
            self._refused.add(name)
            self.beat(HOLDS)  # checks every key, which takes long with ten thousand entries
            self.report.log.error("schedule.refused", entry=name, error=connection.wrong_type(state) or str(error))

    # -- after the claim

    def finish(self, taken: Sequence[TakenTick]) -> list[TickClaim]:
        """Report these ticks. Returns the runs that must be started."""
        return [each.claim for each in taken if self._finish(*each)]

    def _finish(self, claim: TickClaim, holder: str, now: float, took: float) -> bool:
        state = claim.state
        self.beat(HOLDS, state.entry.name)
        if claim.due.missed:
            self.report.missed(claim, now)
        if not claim.due.runs:
            return False
        if claim.skip:
            self.report.skipped(claim, claim.skip, now)
        elif claim.error:
            self.report.failed(claim, claim.error, now)
        elif state.job is None:
            return True
        elif holder:
            self.report.held(claim, holder, now)
        else:
            self._send(state.job, claim, now, took)
        return False

    def _send(self, job: EntryJob, claim: TickClaim, now: float, took: float) -> None:
        if claim.job is None and claim.message is not None:  # its class has a send() of its own
            try:
                job.send_itself(claim.message)
            except UserCodeFailed as failure:
                return self.report.failed(claim, f"its send() {failure}", now)
        self.report.sent(claim, now, took)


class EarlyJobs:
    """For the entries of one connection."""

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


class WaitingRun(NamedTuple):
    state: EntryState
    due: Due


@dataclass(slots=True, eq=False)
class Lane:
    """taken: claimed, but not started. running: name of the entry, tick in unix seconds. late: name of the entry whose late
    run this is, or "". at: the tick, unix ms, if others may join; or 0."""

    connection: ScheduleConnection
    waiting: deque[WaitingRun] = field(default_factory=deque)
    taken: TickClaim | None = None
    running: tuple[str, float] | None = None
    late: str = ""
    at: int = 0

    @property
    def empty(self) -> bool:
        return not (self.waiting or self.taken or self.running)


class RunQueue:
    def __init__(self, runs: Runs, taker: TickTaker, owner: str) -> None:
        self._runs, self._taker, self._owner = runs, taker, owner
        self._lanes: list[Lane] = []
        self._late: list[
            tuple[ScheduleConnection, WaitingRun]
        ] = []  # one per entry: the next is planned once it is taken

    def __len__(self) -> int:
        """Number of runs that wait or are alive."""
        return sum(not lane.empty for lane in self._lanes) + len(self._late)

    def add(self, connection: ScheduleConnection, runs: Sequence[tuple[EntryState, Due]]) -> None:
        """Add the runs of one tick. A punctual run waits behind the late runs of its entry."""
        late, line = {lane.late for lane in self._lanes}, deque[WaitingRun]()
        for run in map(WaitingRun._make, runs):
            if run.state.entry.name in late:
                self._late.append((connection, run))
            elif not self._join(connection, run):
                line.append(run)
        if line:
            self._lanes.append(Lane(connection, line, at=0 if line[0].state.entry.background else line[0].due.at))

    def _join(self, connection: ScheduleConnection, run: WaitingRun) -> bool:
        """Add a run whose filters were asked to the line of its tick. Returns whether there is one."""
        if run.due.answer is None or run.state.entry.background:
            return False
        lane = next((lane for lane in self._lanes if lane.connection is connection and lane.at == run.due.at), None)
        if lane is not None:
            lane.waiting = deque(sorted([*lane.waiting, run], key=lambda each: each.state.order))
        return lane is not None

    def due_in(self, connection: ScheduleConnection) -> float:
        """Seconds until a run leaves its line."""
        waiting = [run for lane in self._lanes if lane.connection is connection for run in lane.waiting]
        first = min([leaves_at(connection, run) for run in waiting], default=math.inf)
        return max(0.0, (first - connection.now) / 1000)

    def _leave_line(self, connection: ScheduleConnection) -> None:
        for lane in [lane for lane in self._lanes if lane.connection is connection]:
            for run in [run for run in lane.waiting if leaves_at(connection, run) <= connection.now]:
                lane.waiting.remove(run)
                self._late.append((connection, run))

    def _start_late(self, connection: ScheduleConnection) -> None:
        for late in [late for late in self._late if late[0] is connection]:
            run, name = late[1], late[1].state.entry.name
            most = 1 if connection.now - run.due.at > connection.late else ABREAST
            if sum(lane.late == name for lane in self._lanes) < most:
                self._late.remove(late)
                self._lanes.append(Lane(connection, deque([run]), late=name))

    def run(self, connection: ScheduleConnection, claim: TickClaim) -> None:
        """Start a run that is claimed already."""
        self._lanes.append(Lane(connection, taken=claim))

    def drain(self) -> None:
        """Forget what is not claimed: other hosts take it."""
        self._late.clear()
        for lane in self._lanes:
            lane.waiting.clear()

    def step(self, connection: ScheduleConnection, claims: bool) -> None:
        """Start what can start on this connection. Without `claims` only runs that are claimed already."""
        if claims:
            self._leave_line(connection)
            self._start_late(connection)
        for lane in [lane for lane in self._lanes if lane.connection is connection]:
            while not lane.running and (lane.taken or (claims and lane.waiting)) and connection.up:
                self._next(lane, connection)
        self._lanes = [lane for lane in self._lanes if not lane.empty]

    def _next(self, lane: Lane, connection: ScheduleConnection) -> None:
        if lane.taken is None:
            request = self._taker.request(connection, [TickClaim(*lane.waiting.popleft())])
            taken = self._taker.collect(connection, [request])
            lane.taken = next(iter(self._taker.finish(taken)), None)
        if lane.taken is not None:
            self._start(lane, lane.taken, connection)

    def _start(self, lane: Lane, claim: TickClaim, connection: ScheduleConnection) -> None:
        """Start the run, unless an earlier one of the entry is alive, here or on another host."""
        entry, tick = claim.state.entry, claim.due.at / 1000
        try:
            blocked = self._runs.blocked_by(entry)
        except ServerBusy as error:
            return connection.mark_busy(error)
        except ConnectionLost as error:
            return connection.lost(error)  # it is claimed, and starts when the server is back
        lane.taken, connection.busy = None, connection.busy and not entry.alone
        if blocked:
            return self._taker.report.skipped(claim, blocked, connection.now / 1000)
        self._runs.start(entry, tick, self._owner)
        lane.running = (entry.name, tick)

    def leave_taken(self) -> None:
        """The scheduler stops: report claimed runs that cannot start because their server is unreachable."""
        for lane in self._lanes:
            if lane.taken is not None and not lane.connection.up:
                reason = "it was claimed, then the server was unreachable until the scheduler stopped"
                self._taker.report.skipped(lane.taken, reason, lane.connection.now / 1000)
                lane.taken = None

    def ended(self, ended: Ended) -> None:
        for lane in self._lanes:
            if lane.running == (ended.entry.name, ended.tick):
                lane.running = None


def leaves_at(connection: ScheduleConnection, run: WaitingRun) -> float:
    """When the run leaves its line, unix ms; infinite if its entry has no further tick."""
    found = connection.next_after(run.state, run.due.at)
    return math.inf if found is None else found
