"""The schedule as it runs, on every host that wants to; no scheduler leads.

    turn     reap what ended; look at the servers; take what is due; make some of what is next; say when to come again
    due      heap of moments -> pauses, filters -> one claim a tick (tick.lua) -> told
    asked    filters of the user's own: in a process of its own (asking.py); the tick is due again with its answer
    jobs     claimed and sent in one step, all that are due at once
    runs     of functions and commands: claimed, then forked. Those of one moment that are not `background` go through a
             lane, one after the other; each is claimed when its turn comes

Each tick is decided once, by whoever finds its entry's field as it read it. Who comes second is told what the field is now,
and reckons on from there.
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
from qd.scheduler.filters import FilterProcess, asks
from qd.scheduler.report import TickReport
from qd.scheduler.runs import Runs
from qd.scheduler.ticks import ClaimRequest, Early, RunQueue, TickTaker, still
from qd.store.schedule import sweep

AT_ONCE = 500
ROUNDS = 20  # looks at what is due in one turn
MOMENT = 0.05  # seconds of one turn in which is caught up with what is behind, and a claim at least
FEW = 100  # ticks of one claim then

order_of = attrgetter("order")


class Scheduler:
    """entries: those that are to run here, checked. host: names this host in the log, and its own ticks of on_every_host.
    owner: the master's token. force: maintenance mode does not count. since: unix seconds from which an entry is due that
    nobody has seen before, None: from now; until: no later tick is taken, and all is over then.

    `paused` is set by who owns it: nothing is taken here then, other hosts go on. `down`: it knows of maintenance mode.
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
        self._reaches: dict[str, ScheduleConnection] = {}
        self._standing = ControlFlags(force)
        self._control = self._reach(settings.control)
        guard = guard or Guard()
        guard.before, self._about = self._user_code, still
        self._teller = TickReport(app._listeners, log, host, guard)
        self._taker = TickTaker(self._standing, self._teller, guard)
        if settings.laravel is not None and (settings.laravel.down or settings.laravel.down_file):
            self._taker.theirs = "Laravel's maintenance mode"
        self.runs = Runs(app, settings, log, self._control.store, host=host, forked=self.close)
        self._asking = FilterProcess(app, settings, log, owner=owner, forked=self.close, seconds=guard.seconds)
        self._lanes = RunQueue(self.runs, self._taker, owner)
        self._swept, self._kept_at = False, 0.0
        for order, entry in enumerate(self._entries):
            self._place(order, entry, job_of(app, entry, guard))
        for reach in self._reaches.values():
            reach.shares = len(self._reaches) > 1
        self._early = [Early(reach, self._taker) for reach in self._reaches.values()]

    def _reach(self, name: str) -> ScheduleConnection:
        if name not in self._reaches:
            title = f"qd:{self._settings.connection(name).queue}:scheduler"
            queue = open_queue(self._settings, name, title=title, own=self._own)
            _ = queue.ticks  # raises ConfigError where jobs are only sent
            late = self._settings.schedule.late
            self._reaches[name] = ScheduleConnection(queue, self._log, late, None if self._reaches else self._standing)
        return self._reaches[name]

    def _place(self, order: int, entry: Entry, job: EntryJob | None) -> None:
        connection, queue = (self._settings.control, "") if job is None else job.home()
        name = keys.of_host(self._host, entry.name) if entry.every_host else entry.name
        key = (type(entry.timing).__name__, entry.timing.mark)
        self._reach(connection).places.append(EntryState(entry, job, queue, name, order, key))

    # -- what its owner calls

    def turn(self) -> float:
        """Do what is due. Returns the seconds until it wants its next turn, 1.0 at most; earlier when a child has ended.
        Raises nothing of a server's: it is said once that one is away, and the others go on."""
        self._reap()
        for reach in self._reaches.values():
            if reach.look():
                self._take(reach)
        if self.drained:
            self._lanes.leave_taken()
        self._keep()
        if not (self.paused or self.drained or self._over) and any(early.step() for early in self._early):
            return 0.0  # there are more to make
        return min(1.0, self.runs.wants, self._asking.wants, *[self._wants(reach) for reach in self._reaches.values()])

    def _wants(self, reach: ScheduleConnection) -> float:
        if self.paused or self.drained:
            return 1.0
        return min(reach.wants, self._lanes.wants(reach)) if reach.up else reach.wants

    def drain(self) -> None:
        """Take no more ticks; what runs goes on."""
        self.drained = True
        self._asking.drop()
        self._lanes.drain()

    @property
    def down(self) -> bool:
        return self._taker.down

    @down.setter
    def down(self, down: bool) -> None:
        self._taker.down = down

    def beats(self, about: Callable[..., None]) -> None:
        """Call `about(seconds)` at each step of a long turn, which may take so long: whoever watches sees it live. With a
        second argument it is an entry's turn from now on, or "" nobody's."""
        self._about = self._taker.alive = about
        for reach in self._reaches.values():
            reach.queue.beats(about)

    @property
    def idle(self) -> bool:
        """Nothing runs, and nothing will."""
        return not self.runs.alive and not self._lanes and not self._asking and (self.drained or self._over)

    @property
    def _over(self) -> bool:
        """All up to `until` is done."""
        until = self._until
        return until is not None and all(reach.passed(until) for reach in self._reaches.values())

    def close(self) -> None:
        for reach in self._reaches.values():
            reach.close()

    def end(self) -> None:
        """Kill what still runs, and write what is still to be kept."""
        self._asking.drop()
        for ended in self.runs.end():
            self._lanes.ended(ended)
            self._teller.ended(ended, self._control.now / 1000)
        self._kept_at = 0.0
        self._keep()

    # -- what is due

    def _take(self, reach: ScheduleConnection) -> None:
        for _ in range(ROUNDS):
            self._lanes.step(reach, not self.paused)
            if self.paused or self.drained or not reach.up:
                return
            found = reach.in_time()
            if not found:
                break
            self._claim(reach, self._sorted(reach, found))
        self._catch_up(reach)

    def _claim(self, reach: ScheduleConnection, wants: Iterable[TickClaim]) -> None:
        """Some at a time: the server takes the first while the others are looked at; then all of them are told."""
        coming, asked = iter(wants), list[ClaimRequest | None]()
        while some := list(islice(coming, AT_ONCE)):
            asked.append(self._taker.ask(reach, some))
        for run in self._taker.tell(self._taker.taken(reach, asked)):
            self._lanes.run(reach, run)  # taken before, as was found out now

    def _catch_up(self, reach: ScheduleConnection) -> None:
        """With what is behind, for a moment: then signals, leases and what is in time have their turn again."""
        until = time.monotonic() + MOMENT
        while reach.up and reach.backlog:
            self._claim(reach, self._behind(reach, until))
            if time.monotonic() >= until:
                return
            reach.fall_behind()

    def _behind(self, reach: ScheduleConnection, until: float) -> list[TickClaim]:
        """The next few out of the backlog, one at least."""
        wants: list[TickClaim] = []
        while (place := reach.backlog.next(order_of)) is not None:
            if (want := self._sort(reach, place, reach.line)) is not None:
                wants.append(want)
            if not reach.backlog.together:  # all of that moment
                self._lanes.add(reach, reach.line)
                reach.line = []
            if len(wants) >= FEW or time.monotonic() >= until:
                break
        return wants

    def _sorted(self, reach: ScheduleConnection, found: Sequence[tuple[int, list[EntryState]]]) -> Iterator[TickClaim]:
        """Those that are claimed now; others go into a lane."""
        for _, places in found:
            line: list[tuple[EntryState, Due]] = []
            for place in sorted(places, key=order_of):
                if (want := self._sort(reach, place, line)) is not None:
                    yield want
            self._lanes.add(reach, line)

    def _sort(
        self, reach: ScheduleConnection, place: EntryState, line: list[tuple[EntryState, Due]]
    ) -> TickClaim | None:
        """What is claimed now; None: it is asked about, in a lane, or added to this line."""
        due = self._decided(reach, place, reach.now)
        if due is None or not self._has_asked(reach, place, due):
            return None
        if place.job is not None or not due.runs or due.said:
            return place.want(due)
        if place.entry.background:
            self._lanes.add(reach, [(place, due)])
        else:
            line.append((place, due))
        return None

    def _has_asked(self, reach: ScheduleConnection, place: EntryState, due: Due) -> bool:
        """Whether it is known what the user's filters say, as far as there are any. Else they are being asked."""
        if due.said is not None or not due.runs or not asks(place.entry):
            return True
        self._asking.ask(reach, place, due, self._taker.why_not(place.entry, due.at / 1000))
        return False

    def _decided(self, reach: ScheduleConnection, place: EntryState, now: int) -> Due | None:
        if place.answered is not None:
            answered, place.answered = place.answered, None
            return answered
        if place.early is not None and self._in_time(reach, place.early.due.at, now):
            return place.early.due  # what its last tick says is still so
        if not place.raw:  # the first sight: nothing before this moment is due
            since = None if place.lost else self._since
            return Due(now if since is None else min(now, since - 1), runs=False)
        due = reach.decided(place, now)
        if due is not None and self._until is not None and due.at > self._until:
            return None  # not ours any more
        return due

    def _in_time(self, reach: ScheduleConnection, at: int, now: int) -> bool:
        return now - reach.late <= at <= now and (self._until is None or at <= self._until)

    # -- runs that ended, and what the store keeps

    def _reap(self) -> None:
        self._asking.reap()
        if self.paused:
            self._asking.drop()
        for ended in self.runs.reap():
            self._teller.ended(ended, self._control.now / 1000)
            self._lanes.ended(ended)
        if self.runs.wants <= 0:
            self._renew()

    def _user_code(self, seconds: float) -> None:
        """Some of it follows in this process: no lease is to run out meanwhile, however much there is of it."""
        if self.runs.wants <= 0:
            self._renew()
        self._about(seconds)

    def _renew(self) -> None:
        if not self._control.up:
            return self.runs.later()
        try:
            self.runs.renew()
        except ServerBusy:
            self._control.queue.close()  # a replica by now: the name may lead elsewhere
        except ConnectionLost as error:
            self._control.lost(error)

    def _keep(self) -> None:
        """Once a second at most."""
        at = time.monotonic()
        if not self._control.up or (at < self._kept_at + 1.0 and not self.idle):
            return
        self._kept_at = at
        try:
            if not self._swept:
                with suppress(ServerBusy, ServerRefused):  # the next one that starts does it
                    sweep(self._control.store, {entry.name for entry in self._entries}, self._control.now / 1000)
                self._swept = True
            self._teller.keep(self._control.store)
        except ConnectionLost as error:
            self._control.lost(error)
