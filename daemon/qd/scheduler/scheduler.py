"""The schedule at run time. Every host may run a scheduler; none of them leads.

    turn       reap ended runs; poll the servers; take due ticks; make some jobs of the next tick; return the wait
    due tick   heap of times -> TickClaim: pauses, filters -> one claim per tick (tick.lua) -> report
    filters    the user's own run in a separate process (filters.py); the tick becomes due again with their answer
    jobs       claimed and sent in one step, all that are due at once
    runs       of functions and commands: claimed, then forked. Those of one tick that are not in_background() run one
               after the other; each is claimed when its turn comes

Each tick is decided once, by the scheduler that finds the entry's field as it had read it. The others receive the new
field and continue from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from operator import attrgetter

from qd.app import Qd
from qd.config.settings import Settings
from qd.drivers.connections import open_queue
from qd.drivers.keyspace import keys
from qd.errors import ConnectionLost, ServerBusy, ServerRefused
from qd.log import Log
from qd.schedule.entry import Entry
from qd.scheduler.connection import ControlFlags, EntryState, ScheduleConnection, TickClaim
from qd.scheduler.due import Due
from qd.scheduler.entry_job import EntryJob, Guard, job_of
from qd.scheduler.filters import FilterProcess
from qd.scheduler.runner import RunContext
from qd.scheduler.runs import Runs
from qd.scheduler.ticks import ClaimRequest, EarlyJobs, RunQueue, TickReport, TickTaker, no_beat
from qd.store.schedule import sweep

AT_ONCE = 500  # ticks in one claim
ROUNDS = 20  # checks for due ticks in one turn
MOMENT = 0.05  # seconds of a turn that are spent on the backlog; at least one claim
FEW = 100  # ticks in one claim from the backlog

order_of = attrgetter("order")


class Scheduler:
    """entries: those that run here, checked. host: for the log, and for the fields of on_every_host() entries.
    owner: the master's token. force: ignore maintenance mode. since: unix seconds from which an entry without a field is
    due, None: from now on. until: take no later ticks.

    The owner sets `paused` (nothing is taken here, but other hosts continue) and `flags.down_here` (maintenance mode).
    """

    def __init__(
        self,
        app: Qd,
        settings: Settings,
        log: Log,
        *,
        entries: Sequence[Entry],
        host: str,
        owner: str = "",
        force: bool = False,
        until: float | None = None,
        since: float | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.paused = self.drained = False
        self._settings, self._log, self._host = settings, log, host
        self._own = app.connections.own
        self._until = None if until is None else round(until * 1000)
        self._since = None if since is None else round(since * 1000)
        self._entries = tuple(entries)
        self._connections: dict[str, ScheduleConnection] = {}
        self.flags = ControlFlags(force)
        if settings.laravel is not None and (settings.laravel.down or settings.laravel.down_file):
            self.flags.reason = "Laravel's maintenance mode"
        self._control = self._connection(settings.control)
        guard = guard or Guard()
        guard.before, self._beat = self._before_user_code, no_beat
        self._report = TickReport(app._listeners, log, host, guard)
        self._taker = TickTaker(self.flags, self._report, guard)
        context = RunContext(app, settings, log, owner.partition("/")[0], self.close)
        self.runs = Runs(context, self._control.store, host=host)
        self._filters = FilterProcess(context, guard.seconds)
        self._run_queue = RunQueue(self.runs, self._taker)
        self._swept, self._kept_at = False, 0.0
        for order, entry in enumerate(self._entries):
            self._add(order, entry, job_of(app, entry, guard))
        for connection in self._connections.values():
            connection.shares = len(self._connections) > 1
        self._early = [EarlyJobs(connection, self._taker) for connection in self._connections.values()]

    def _connection(self, name: str) -> ScheduleConnection:
        if name not in self._connections:
            title = f"qd:{self._settings.connection(name).queue}:scheduler"
            queue = open_queue(self._settings, name, title=title, own=self._own)
            _ = queue.ticks  # raises ConfigError if the connection can only send
            late = self._settings.schedule.late
            flags = None if self._connections else self.flags  # the first is the control connection
            self._connections[name] = ScheduleConnection(queue, self._log, late, flags)
        return self._connections[name]

    def _add(self, order: int, entry: Entry, job: EntryJob | None) -> None:
        connection, queue = (self._settings.control, "") if job is None else job.home()
        name = keys.of_host(self._host, entry.name) if entry.every_host else entry.name
        found = self._connection(connection)
        found.states.append(EntryState(found, entry, job, queue, name, order, entry.timing.mark))

    # -- called by the owner

    def turn(self) -> float:
        """Do what is due. Returns the seconds until the next turn, at most 1.0; call earlier when a child has ended.
        Server errors are logged once per outage, and the other servers are served."""
        self._reap()
        for connection in self._connections.values():
            if connection.poll():
                self._take(connection)
        if self.drained:
            self._run_queue.leave_taken()
        self._keep()
        if not (self.paused or self.drained or self._over) and any(early.step() for early in self._early):
            return 0.0  # there are more to make
        waits = [1.0, self.runs.due_in, self._filters.due_in]
        if not (self.paused or self.drained):
            for connection in self._connections.values():
                waits.append(connection.due_in)
                if connection.up:
                    waits.append(self._run_queue.due_in(connection))
        return min(waits)

    def drain(self) -> None:
        """Take no more ticks; runs continue."""
        self.drained = True
        self._filters.drop()
        self._run_queue.drain()

    def beats(self, beat: Callable[..., None]) -> None:
        """Call `beat(seconds)` before each step of a long turn: the next call may come that much later. A second argument is
        the name of the current entry, or ""."""
        self._beat = self._taker.beat = beat
        for connection in self._connections.values():
            connection.queue.beats(beat)

    @property
    def idle(self) -> bool:
        """Whether nothing runs, and nothing will."""
        return not self.runs.alive and not self._run_queue and not self._filters and (self.drained or self._over)

    @property
    def _over(self) -> bool:
        """Whether all ticks up to `until` are done."""
        until = self._until
        return until is not None and all(connection.done_until(until) for connection in self._connections.values())

    def close(self) -> None:
        for connection in self._connections.values():
            connection.queue.close()

    def end(self) -> None:
        """Kill the remaining runs, and write the history."""
        self._filters.drop()
        for ended in self.runs.end():
            self._run_queue.ended(ended)
            self._report.ended(ended, self._control.now / 1000)
        self._kept_at = 0.0
        self._keep()

    # -- what is due

    def _take(self, connection: ScheduleConnection) -> None:
        for _ in range(ROUNDS):
            self._run_queue.step(connection, not self.paused)
            if self.paused or self.drained or not connection.up:
                return
            connection.move_to_backlog()
            found = connection.moments.pop(connection.now)
            if not found:
                break
            self._claim(connection, self._claims_of(found))
        self._catch_up(connection)

    def _claim(self, connection: ScheduleConnection, claims: Iterable[TickClaim]) -> None:
        """Claim in batches: the server handles one while the next is prepared. Then report all of them."""
        remaining, requests = iter(claims), list[ClaimRequest]()
        while batch := list(islice(remaining, AT_ONCE)):
            if (request := self._taker.request(connection, batch)) is not None:
                requests.append(request)
        for run in self._taker.collect(connection, requests):
            self._run_queue.start_claimed(run)  # claimed earlier; its reply was lost

    def _catch_up(self, connection: ScheduleConnection) -> None:
        """Take ticks from the backlog for a moment; then signals, leases and punctual ticks get their turn."""
        until = time.monotonic() + MOMENT
        while connection.up and connection.backlog:
            self._claim(connection, self._behind(connection, until))
            if time.monotonic() >= until:
                return
            connection.move_to_backlog()

    def _behind(self, connection: ScheduleConnection, until: float) -> list[TickClaim]:
        """The next few from the backlog, at least one."""
        claims: list[TickClaim] = []
        while (state := connection.backlog.take(order_of)) is not None:
            if (claim := self._claim_or_queue(state, connection.line)) is not None:
                claims.append(claim)
            if not connection.backlog.together:  # the tick is complete
                self._run_queue.add(connection.line)
                connection.line = []
            if len(claims) >= FEW or time.monotonic() >= until:
                break
        return claims

    def _claims_of(self, found: Sequence[tuple[int, list[EntryState]]]) -> Iterator[TickClaim]:
        """The ticks to claim now; the others go to the run queue."""
        for _, states in found:
            line: list[TickClaim] = []
            for state in sorted(states, key=order_of):
                if (claim := self._claim_or_queue(state, line)) is not None:
                    yield claim
            self._run_queue.add(line)

    def _claim_or_queue(self, state: EntryState, line: list[TickClaim]) -> TickClaim | None:
        """The claim to send now. None: its filters run first, it is in the run queue, or it was added to `line`."""
        if (due := self._decide(state)) is None:
            return None
        claim = state.claim(due)
        if due.answer is None and due.runs and any(each.foreign for each in state.entry.filters):
            self._filters.ask(claim, self._taker.why_not(claim))
        elif state.job is not None or not due.runs or due.answer:
            return claim
        elif state.entry.background:
            self._run_queue.add([claim])
        else:
            line.append(claim)
        return None

    def _decide(self, state: EntryState) -> Due | None:
        """The tick to take next. None if nothing is due."""
        connection, now = state.connection, state.connection.now
        if state.answered is not None:
            answered, state.answered = state.answered, None
            return answered
        early = state.early and state.early.due
        if early and now - connection.late <= early.at <= now and (self._until is None or early.at <= self._until):
            return early  # nothing has changed since the last tick
        if not state.raw:  # no field: nothing earlier is due
            since = None if state.lost else self._since
            return Due(now if since is None else min(now, since - 1), runs=False)
        due = connection.decide(state, now)
        return None if due is not None and self._until is not None and due.at > self._until else due

    # -- ended runs, and the history

    def _reap(self) -> None:
        self._filters.reap()
        if self.paused:
            self._filters.drop()
        for ended in self.runs.reap():
            self._report.ended(ended, self._control.now / 1000)
            self._run_queue.ended(ended)
        self._renew()

    def _before_user_code(self, seconds: float) -> None:
        """User code runs next in this process: renew the leases that would expire meanwhile."""
        self._renew()
        self._beat(seconds)

    def _renew(self) -> None:
        if self.runs.due_in > 0:
            return
        if not self._control.up:
            return self.runs.overlaps.postpone()
        try:
            self.runs.overlaps.renew()
        except ServerBusy:
            self._control.queue.close()  # perhaps it is a replica now, and the host name resolves to another server
        except ConnectionLost as error:
            self._control.lost(error)

    def _keep(self) -> None:
        """Write the history, at most once a second."""
        at = time.monotonic()
        if not self._control.up or (at < self._kept_at + 1.0 and not self.idle):
            return
        self._kept_at = at
        try:
            if not self._swept:
                with suppress(ServerBusy, ServerRefused):  # the next scheduler that starts does it
                    sweep(self._control.store, {entry.name for entry in self._entries}, self._control.now / 1000)
                self._swept = True
            self._report.keep(self._control.store)
        except ConnectionLost as error:
            self._control.lost(error)
