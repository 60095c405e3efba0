"""One connection of the schedule: its server's clock, the state of its entries, its outages, and old fields.

    poll    once a second: TIME; on the control connection also pauses and maintenance mode, in one round trip
    begin   claim ticks in batches; the next batch is sent before the reply to the first has arrived

Each entry has a field in the store. A scheduler takes a tick by replacing the field it has read, so only one succeeds:

    field = "<ms> <token> <mark>"    the last decided tick; the claim that wrote it; the entry's timing

If the reply to a claim is lost, the claim is kept in EntryState.unsure under the text that it would have written: the
scheduler that finds its own text in the field has taken the tick. A job is sent in that same step; a run starts then.

FieldSweeper deletes fields that are no longer needed. Each scheduler reads all of them once, one page at each poll:

    any entry                400 days after its last tick
    an on_every_host entry   when its host has had no scheduler for seven days; live hosts write a sign of life
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

from qd.dispatch.route import Message
from qd.drivers.base import Connector, Ticks
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg
from qd.drivers.types import Answers, Claim, Claimed, Outgoing
from qd.errors import ConnectionLost, QdError, ServerBusy, ServerRefused
from qd.log import Log
from qd.master.children import Backoff
from qd.schedule.entry import Entry
from qd.scheduler.due import Backlog, Due, Moments, decide
from qd.scheduler.entry_job import EntryJob
from qd.store.base import fields_of, keyspace_store
from qd.store.controls import Pause, by_and_why, read_down
from qd.store.schedule import FORGOTTEN, Field, read_field, read_paused, written_field

AHEAD = 3_600_000  # ms; a field that is this far ahead was written by a wrong clock, and would block its entry
PERIOD = 1.0  # seconds between polls
DELAYS = (0.1, 1.0)  # seconds between two tries of an unreachable server: at first, and at most
REST = 3.0  # if there are other servers: pause after an outage, as a multiple of the time spent waiting
PATIENCE = 2.0  # seconds to connect, and to wait for a reply
BEHIND = 1000  # ms; ticks that are due for longer wait until all punctual ticks are taken
JUMP = 1.0  # seconds; a larger difference means that the server's clock was set, a smaller one is a slow reply
GONE = 7 * 86400.0  # seconds without a sign of life after which a host is gone
SIGN_PERIOD = 3600.0  # seconds between two signs of life of a host


@dataclass(slots=True, eq=False)
class TickClaim:
    """A tick, from the moment it is due: what to do with it, and the answer to its claim.

    after: the field that the claim writes. skip: why it does not run. error: why its job could not be made. job: sent in
    the step of the claim, None if the job has a send() of its own.

    Once it is taken: taken_at: unix seconds. took: seconds. holder: id of the job that has the lock, so that this one was
    not sent.
    """

    state: EntryState
    due: Due
    after: bytes = b""
    skip: str = ""
    error: str = ""
    job: Outgoing | None = None
    message: Message | None = None
    taken_at: float = 0.0
    took: float = 0.0
    holder: str = ""

    @property
    def entry(self) -> Entry:
        return self.state.entry

    @property
    def tick(self) -> float:
        """Unix seconds."""
        return self.due.at / 1000


@dataclass(slots=True, eq=False)
class EntryState:
    """An entry as this scheduler knows it.

    job: sent together with the claim; None if the entry is run here after the claim, at most once. mark: of its timing.
    raw: the field as it was read. last: the last known tick, ms. complete: a range of ticks in which no more were
    missed than may run (see due.decide). lost: the store has lost the field. answered: a tick with the answer of its
    filters. early: the next tick with its job, made in advance. unsure: claims whose reply was lost, by the field that
    they would have written.
    """

    connection: ScheduleConnection
    entry: Entry
    job: EntryJob | None
    queue: str
    field: str
    order: int
    mark: str
    raw: bytes = b""
    last: int = 0
    complete: tuple[int, int] = (0, 0)
    lost: bool = False
    answered: Due | None = None
    early: TickClaim | None = None
    unsure: dict[bytes, TickClaim] = dataclass_field(default_factory=dict)

    def claim(self, due: Due) -> TickClaim:
        """The claim of this tick; a claim that was made in advance is used once."""
        early, self.early = self.early, None
        return early if early is not None and early.due == due else TickClaim(self, due)

    def update(self, raw: bytes, now: int, late: int) -> str:
        """Set the field to `raw`. Returns a warning, or ""."""
        found = read_field(raw)
        self.lost = self.lost or bool(self.raw and not raw)
        self.raw, self.early = raw, None
        if found is None or found.at > now + AHEAD:
            self.last = now
            why = "the schedule of this entry began again: its last tick was written by a clock ahead of this one"
            return why if found else ""
        at = found.at
        if found.mark != self.mark:  # a deploy changed its timing: earlier ticks do not belong to this timing
            at = max(at, now - late)
        if self.job is None and self.last <= now + AHEAD:
            at = max(at, self.last)  # the server lost the field: a job is sent again, but a function is not run again
        self.last = at
        return ""

    def next_after(self, at: int) -> int | None:
        """The next tick, unix ms; computed once for all entries with the same cron expression (timing.py)."""
        found = self.entry.timing.next_after(at / 1000)
        return None if found is None else round(found * 1000)


@dataclass(slots=True)
class ControlFlags:
    """Pauses and maintenance mode, as the control connection reads them. force: ignore maintenance mode.

    down_here: maintenance mode as the owner of the scheduler knows it. reason: used if no note explains it."""

    force: bool
    reason: str = "maintenance mode"
    down_here: bool = False
    pauses: dict[str, Pause] = dataclass_field(default_factory=dict)
    down: str = ""  # why nothing runs; "": no maintenance mode


class ScheduleConnection:
    """flags: read on the control connection; None on the others."""

    def __init__(self, queue: Connector, log: Log, late: float, flags: ControlFlags | None) -> None:
        self.queue, self.flags = queue, flags
        queue.patience(PATIENCE, PATIENCE)
        self.store = keyspace_store(queue)
        self.states: list[EntryState] = []
        self.moments: Moments[EntryState] = Moments()
        self.backlog: Backlog[EntryState] = Backlog()
        self._sweeper = FieldSweeper(queue.ticks, self.states)
        self.line: list[TickClaim] = []  # runs of one tick from the backlog, until it is complete
        self.late = round(late * 1000)
        self._log = log
        self._offset = 0.0  # unix seconds of the server at monotonic 0, rounded down by the round trip
        self.begun = self._clock_set = False
        self._poll_at = self.rests_until = 0.0
        self._away_since: float | None = None
        self._request_at = 0.0
        self.shares = False  # other servers wait while this one is waited for
        self.busy = False  # it answers but refuses writes
        self._delays = Backoff(*DELAYS)
        self._unread: set[str] = set()

    # -- the clock

    @property
    def now(self) -> int:
        """Unix ms by the server's clock, never ahead of it."""
        return int((time.monotonic() + self._offset) * 1000)

    def set_clock(self, now: float) -> None:
        offset = now - time.monotonic()
        self._clock_set = self._clock_set or abs(offset - self._offset) > JUMP
        self._offset = offset

    # -- polling

    def poll(self) -> bool:
        """Returns whether ticks of this server may be taken now: it answers, and its fields are known."""
        at = self._request_at = time.monotonic()
        if at < self.rests_until:
            return False
        if at >= self._poll_at or not self.begun:
            try:
                self._query()
                if not self.begun:
                    self._begin()
                self._sweeper.step(self.now)
            except (ConnectionLost, ServerRefused) as error:
                self.lost(error)
                return False
            self._poll_at = at + PERIOD
            self._report_back()
        if self._clock_set:
            self._plan_again()
        return True

    def _query(self) -> None:
        prefix = self.store.prefix
        commands: list[tuple[Arg, ...]] = [("TIME",)]
        if self.flags is not None:
            commands += [("HGETALL", prefix + keys.SCHEDULE_PAUSED), ("GET", prefix + keys.DOWN)]
        replies = self.store.space.call_many(commands)
        if isinstance(replies[0], Exception):
            raise replies[0]
        self.set_clock(int(replies[0][0]) + int(replies[0][1]) / 1e6)
        if (flags := self.flags) is not None:
            flat, down = map(self._readable, (keys.SCHEDULE_PAUSED, keys.DOWN), replies[1:])
            flags.pauses = read_paused(fields_of(flat or ()), self.now / 1000)
            flags.down = "" if down is None or flags.force else f"maintenance mode{by_and_why(read_down(down))}"

    def _readable(self, key: str, reply: Any) -> Any:
        """The reply, or None if the key cannot be read, which is logged once and treated as no note."""
        if isinstance(reply, ServerRefused):
            if key not in self._unread:
                self._unread.add(key)
                name, way = self.store.prefix + key, "as if it were not there"
                self._log.error("schedule.control_unreadable", key=name, error=str(reply), way=way)
            return None
        if isinstance(reply, Exception):
            raise reply
        self._unread.discard(key)
        return reply

    def _begin(self) -> None:
        try:
            fields = self.queue.ticks.read([state.field for state in self.states])
        except ServerRefused:  # the entries are claimed, refused and logged one by one
            fields = [b""] * len(self.states)
        for state, raw in zip(self.states, fields, strict=True):
            self.update(state, raw)
        self._clock_set, self.begun = False, True

    # -- the entries

    def update(self, state: EntryState, raw: bytes) -> None:
        if warning := state.update(raw, self.now, self.late):
            self._log.warning("schedule.clock_ahead", entry=state.entry.name, reason=warning)
        self.plan(state)

    def plan(self, state: EntryState) -> None:
        if not state.raw:  # no scheduler has seen it yet
            self.moments.add(self.now, state)
        elif (at := state.next_after(state.last)) is not None:
            self.moments.add(at, state)

    def _plan_again(self) -> None:
        """The server's clock was set: ticks planned by the old clock would come too late, or never."""
        self._clock_set = False
        for state in [*self.backlog.clear(), *[state for _, states in self.moments.pop() for state in states]]:
            if state.raw:
                self.update(state, state.raw)
            else:
                self.plan(state)

    def early(self, state: EntryState, at: int) -> None:
        """By the server's clock this tick is not due yet: perhaps its clock was set while the claim waited."""
        if self._clock_set:
            self.moments.add(at, state)  # the next poll plans all of them again
        else:
            self.update(state, state.raw)

    def move_to_backlog(self) -> None:
        for at, states in self.moments.pop(self.now - BEHIND):
            for state in states:
                self.backlog.add(at, state)

    def decide(self, state: EntryState, now: int) -> Due | None:
        """The next tick to take of an entry that has a field. None if nothing is due yet."""
        first, missed = state.next_after(state.last), state.entry.missed
        if first is not None and first <= now <= first + self.late:
            return Due(first)  # the usual case
        due = decide(state.next_after, state.last, now, self.late, missed, state.complete)
        if due is None:
            self.plan(state)
        elif missed == "all" and due.at < now - self.late and not state.complete[0] <= due.at < state.complete[1]:
            state.complete = (due.at, now - self.late)
        return due

    def begin(self, claims: Sequence[TickClaim]) -> Answers | None:
        """Send the claims without waiting for the answers. Returns None if the connection broke: the ticks are unsure."""
        self._request_at = time.monotonic()
        try:
            each = [(claim.state, claim) for claim in claims]
            return self.queue.ticks.begin([Claim(s.queue, s.field, s.raw, c.after, c.due.at, c.job) for s, c in each])
        except (ConnectionLost, ServerRefused) as error:
            self.lost(error)
            return None

    def answers(self, claimed: Sequence[Answers]) -> list[list[Claimed] | None]:
        """The answers to the claims sent by `begin`. None for a lost reply: the ticks are unsure."""
        self._request_at = time.monotonic()
        found = [self._answer(each) for each in claimed]
        known = [answer for answers in found for answer in answers or ()]
        if known:
            self.busy = False
            if busy := next((answer.refused for answer in known if isinstance(answer.refused, ServerBusy)), None):
                self.mark_busy(busy)
            if now := max([answer.now for answer in known]):
                self.set_clock(now)
        return found

    def _answer(self, claimed: Answers) -> list[Claimed] | None:
        try:
            return claimed()
        except (ConnectionLost, ServerRefused) as error:
            if self.up:  # else the outage is known already
                self.lost(error)
            return None

    @property
    def up(self) -> bool:
        """Whether the last call was answered."""
        return self.begun and self.rests_until <= time.monotonic()

    def done_until(self, until: int) -> bool:
        """Whether nothing is or will be due up to `until`, unix ms."""
        return self.begun and not self.backlog and (self.moments.next or until + 1) > until

    @property
    def due_in(self) -> float:
        """Seconds until the next poll or claim."""
        at = time.monotonic()
        if at < self.rests_until:
            return self.rests_until - at
        if self.backlog:
            return 0.0
        wait = self._poll_at - at
        if self.moments.next is not None:
            wait = min(wait, (self.moments.next - self.now) / 1000)
        return max(0.0, wait)

    # -- outages

    def lost(self, error: QdError) -> None:
        at = time.monotonic()
        if self._away_since is None:
            self._away_since = at
            settings = self.queue.settings
            self._log.warning(f"{settings.driver}.away", connection=settings.name, error=str(error))
        delay = self._delays.step()
        rest = max(delay, REST * (at - self._request_at)) if self.shares else delay
        self.rests_until = at + rest * random.uniform(0.5, 1.0)
        self._poll_at = 0.0

    def mark_busy(self, error: ServerBusy) -> None:
        """It answers but refuses writes."""
        self.busy = True
        self.queue.close()  # perhaps it is a replica now, and the host name resolves to another server
        self.lost(error)

    def _report_back(self) -> None:
        if self._away_since is not None and not self.busy:
            after = time.monotonic() - self._away_since
            self._log.info(f"{self.queue.settings.driver}.back", connection=self.queue.settings.name, after=after)
            self._away_since, self._delays.count = None, 0


class FieldSweeper:
    """states: the entries of this scheduler; may grow until the first step."""

    def __init__(self, ticks: Ticks, states: Sequence[EntryState]) -> None:
        self._ticks, self._states = ticks, states
        self._at: int | None = 0  # the next page; None when all pages are done
        self._sign_at = 0.0

    def step(self, now: int) -> None:
        """now: unix ms. Stops if the server refuses. Raises ConnectionLost."""
        try:
            self._sign(now)
            if self._at is not None:
                following, fields = self._ticks.page(self._at)
                self._ticks.forget(self._old(fields, now))
                self._at = following or None
        except ServerRefused:
            self._at = None

    def _sign(self, now: int) -> None:
        at = time.monotonic()
        if at < self._sign_at:
            return
        for host in {keys.host_of(state.field) for state in self._states} - {""}:
            self._ticks.put(keys.of_host(host, ""), written_field(Field(now, "", "")))
        self._sign_at = at + SIGN_PERIOD

    def _old(self, fields: Mapping[str, bytes], now: int) -> list[str]:
        known = {state.field for state in self._states}
        hosts = sorted({keys.host_of(name) for name in fields} - {""})
        signs = self._ticks.read([keys.of_host(host, "") for host in hosts])
        gone = {host for host, raw in zip(hosts, signs, strict=True) if is_old(raw, now, GONE)}
        return [
            name
            for name, raw in fields.items()
            if name not in known and is_old(raw, now, GONE if keys.host_of(name) in gone else FORGOTTEN)
        ]


def is_old(raw: bytes, now: int, seconds: float) -> bool:
    """Missing fields are old; fields of another format are not."""
    found = read_field(raw)
    return not raw or (found is not None and found.at < now - seconds * 1000)
