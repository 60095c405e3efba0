"""The schedule as it runs, on every host that wants to; no scheduler leads.

    turn     reap what ended; look at the servers (once a second); take what is due; say when to come again
    due      heap of moments -> filters, pauses -> one claim a tick (tick.lua) -> told
    jobs     claimed and sent in one step, all that are due at once
    runs     of functions and commands: claimed, then forked. Those of one moment that are not `background` go through a
             lane, one after the other; each is claimed when its turn comes

Each tick is decided once, by whoever finds its entry's field as it read it. Who comes second is told what the field is now,
and reckons on from there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from qd.app import Qd
from qd.config import Settings
from qd.connectors.base import Claimed
from qd.connectors.manager import open_queue
from qd.connectors.redis.queue import RedisQueue
from qd.errors import ConfigError, ConnectionLost, ServerRefused
from qd.log import Log
from qd.schedule import Entry
from qd.scheduler.claims import Place, Tokens, Want, written
from qd.scheduler.guard import Broke, Guard
from qd.scheduler.jobs import Jobs
from qd.scheduler.moments import Due, decided
from qd.scheduler.reach import Reach, Standing
from qd.scheduler.runs import Ended, Runs
from qd.scheduler.telling import Teller
from qd.store.schedule import pause_of, sweep

AT_ONCE = 500  # ticks that are made ready before they are claimed
ROUNDS = 20  # looks at what is due in one turn
AGAIN = 1000  # ms until a claim that was refused is tried again


@dataclass(slots=True, eq=False)
class Lane:
    """Runs of one moment, one after the other. taken: claimed, and not started yet."""

    reach: Reach
    waiting: deque[tuple[Place, Due]] = field(default_factory=deque)
    taken: Want | None = None
    running: tuple[str, float] | None = None


class Scheduler:
    """entries: those that are to run here, checked. host: names this host in the log, and its own ticks of on_every_host.
    owner: the master's token. down: whether somebody else knows of maintenance mode. since: unix seconds from which an entry
    is due that nobody has seen before, None: from now; until: no later tick is taken, and all is over then.

    `paused` is set by who owns it: nothing is taken here then, other hosts go on.
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
        down: Callable[[], bool] = bool,
        until: float | None = None,
        since: float | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.paused = self.drained = False
        self._settings, self._log, self._host, self._owner, self._down = settings, log, host, owner, down
        self._until = None if until is None else round(until * 1000)
        self._since = None if since is None else round(since * 1000)
        self._guard = guard or Guard()
        self._jobs = Jobs(app, self._guard)
        self._standing, self._tokens = Standing(), Tokens()
        self._lanes: list[Lane] = []
        self._swept = False
        self._kept_at = 0.0
        self._refused: set[str] = set()
        self._reaches: dict[str, Reach] = {}
        self._control = self._reach(settings.control)
        self._teller = Teller(app.listeners, log, host, self._guard)
        self.runs = Runs(app, settings, log, self._control.store, host=host, forked=self.close)
        self._entries = tuple(entries)
        for order, entry in enumerate(self._entries):
            self._place(order, entry)

    def _reach(self, name: str) -> Reach:
        if name not in self._reaches:
            title = f"qd:{self._settings.connection(name).queue}:scheduler"
            queue = open_queue(self._settings, name, title=title)
            if not isinstance(queue, RedisQueue):
                raise ConfigError(f"connection '{name}' keeps no schedule: use one with driver redis")
            late = self._settings.schedule.late
            self._reaches[name] = Reach(queue, self._log, late, None if self._reaches else self._standing)
        return self._reaches[name]

    def _place(self, order: int, entry: Entry) -> None:
        connection, queue = self._jobs.home(entry) if entry.kind == "job" else (self._settings.control, "")
        name = f"{self._host} {entry.name}" if entry.every_host else entry.name
        timing = entry.timing
        key = (type(timing).__name__, timing.mark)
        self._reach(connection).places.append(Place(entry, queue, name, order, key))

    # -- what its owner calls

    def turn(self) -> float:
        """Do what is due. Returns the seconds until it wants its next turn, 1.0 at most; earlier when a child has ended."""
        self._reap()
        for reach in self._reaches.values():
            if reach.look() and not self.paused and not self.drained:
                self._due(reach)
        if self._control.rests_until <= time.monotonic():
            self._keep()
        return min(1.0, self.runs.wants, *[reach.wants for reach in self._reaches.values()])

    def drain(self) -> None:
        """Take no more ticks; what runs goes on."""
        self.drained = True
        self._lanes = [lane for lane in self._lanes if lane.running or lane.taken]
        for lane in self._lanes:
            lane.waiting.clear()

    @property
    def idle(self) -> bool:
        """Nothing runs, and nothing will."""
        return not self.runs.alive and not self._lanes and (self.drained or self._over)

    @property
    def _over(self) -> bool:
        """All up to `until` is done."""
        if self._until is None:
            return False
        return all(
            reach.begun and reach.now > self._until and (reach.moments.next or self._until + 1) > self._until
            for reach in self._reaches.values()
        )

    def end(self) -> None:
        """Kill what still runs."""
        for ended in self.runs.end():
            self._teller.ended(ended, self._control.now / 1000)

    def close(self) -> None:
        for reach in self._reaches.values():
            reach.close()

    # -- what is due

    def _due(self, reach: Reach) -> None:
        for _ in range(ROUNDS):
            self._step_lanes(reach)
            found = reach.moments.pop(reach.now)
            if not found:
                return
            wants = list[Want]()
            for at, places in found:
                wants += self._sorted(reach, at, places)
            for start in range(0, len(wants), AT_ONCE):
                self._claim(reach, wants[start : start + AT_ONCE])

    def _sorted(self, reach: Reach, at: int, places: list[Place]) -> list[Want]:
        """Those that are claimed now; others go into a lane."""
        wants, lane, now = list[Want](), Lane(reach), reach.now
        for place in sorted(places, key=lambda place: place.order):
            due = self._decided(reach, place, now)
            if due is None:
                continue
            if place.entry.kind == "job" or not due.runs:
                wants.append(Want(place, due, b""))
            elif place.entry.background:
                self._lanes.append(Lane(reach, deque([(place, due)])))
            else:
                lane.waiting.append((place, due))
        if lane.waiting:
            self._lanes.append(lane)
        return wants

    def _decided(self, reach: Reach, place: Place, now: int) -> Due | None:
        if not place.raw:  # the first sight: nothing before this moment is due
            return Due(now if self._since is None else min(now, self._since - 1), runs=False)
        last = place.last
        due = decided(lambda at: reach.next_after(place, at), last, now, reach.late, place.entry.missed)
        if due is None:
            reach.plan(place)
        elif self._until is not None and due.at > self._until:
            return None  # not ours any more
        return due

    # -- claiming

    def _claim(self, reach: Reach, wants: Sequence[Want]) -> list[Want]:
        """Returns those runs that are to be started."""
        began = time.monotonic()
        for want in wants:
            self._make_ready(want)
        parcels = [want.parcel for want in wants if want.parcel is not None]
        self._teller.queueing(parcels)
        answers = reach.take(wants)
        if answers is None:
            for want in wants:
                want.place.unsure[want.after] = want
                reach.moments.add(want.due.at, want.place)
            return []
        took = time.monotonic() - began
        taken = [
            (self._answered(reach, want, answer), answer.holder) for want, answer in zip(wants, answers, strict=True)
        ]
        return [want for want, holder in taken if want is not None and self._told(want, holder, reach, took)]

    def _make_ready(self, want: Want) -> None:
        place, due = want.place, want.due
        want.after = written(due.at, self._tokens.next(), place.key[1])
        if not due.runs or not place.raw:
            return
        want.skip = self._why_not(place.entry, due.at / 1000)
        if want.skip or place.entry.kind != "job":
            return
        try:
            want.parcel = self._jobs.parcel(place.entry)
            want.job = self._jobs.outgoing(want.parcel)
        except Broke as broke:
            want.error = f"its job could not be made: {broke}"

    def _why_not(self, entry: Entry, tick: float) -> str:
        """Why this tick does not run, "" when it does."""
        if note := pause_of(self._standing.pauses, entry.name):
            return f"paused{f' by {note.by}' if note.by else ''}{f': {note.reason}' if note.reason else ''}"
        if not entry.in_maintenance and (self._standing.down or self._down()):
            return self._standing.down or "maintenance mode"
        for each in entry.filters:
            try:
                passes = self._guard.run(lambda each=each: bool(each.passes(tick)))  # type: ignore[misc]
            except Broke as broke:
                return f"its filter {broke}"
            if not passes:
                return each.why
        return ""

    def _answered(self, reach: Reach, want: Want, answer: Claimed) -> Want | None:
        """The tick that was taken: this one, or one whose reply had been lost before."""
        place = want.place
        if answer.taken:
            place.unsure.clear()
            place.raw, place.last = want.after, want.due.at
            reach.plan(place)
            self._refused.discard(place.entry.name)
            return want
        if answer.early:
            reach.moments.add(want.due.at, place)
        elif answer.found is not None:
            mine = place.unsure.pop(answer.found, None)
            reach.saw(place, answer.found)
            self._forget_unsure(place)
            return mine
        else:
            self._refuse(place, answer.refused)
            reach.moments.add(reach.now + AGAIN, place)
        return None

    def _forget_unsure(self, place: Place) -> None:
        """Another went on before we could ask: whether we had taken those ticks nobody can tell any more. A job was sent
        with its tick, by whoever took it; what is run may have been ours to run."""
        for after, want in list(place.unsure.items()):
            if want.due.at <= place.last:
                del place.unsure[after]
                if place.entry.kind != "job" and want.due.runs:
                    reason = "the connection broke while it was taken, and another host went on: nobody may have run it"
                    self._teller.skipped(want, reason, time.time())

    def _refuse(self, place: Place, error: Exception | None) -> None:
        if place.entry.name not in self._refused:
            self._refused.add(place.entry.name)
            self._log.error("schedule.refused", entry=place.entry.name, error=str(error))

    # -- taken

    def _told(self, want: Want, holder: str, reach: Reach, took: float) -> bool:
        """Whether it is a run that is to be started."""
        entry, now = want.place.entry, reach.now / 1000
        if want.due.missed:
            self._teller.missed(want, now)
        if not want.due.runs:
            return False
        if want.skip:
            self._teller.skipped(want, want.skip, now)
        elif want.error:
            self._teller.failed(want, want.error, now)
        elif entry.kind != "job":
            return True
        elif holder:
            self._teller.held(want, holder, now)
        else:
            self._send(want, now, took)
        return False

    def _send(self, want: Want, now: float, took: float) -> None:
        if want.job is None and want.parcel is not None:  # its class has a send() of its own
            try:
                self._jobs.by_hand(want.parcel)
            except Broke as broke:
                return self._teller.failed(want, f"its send() {broke}", now)
        self._teller.sent(want, now, took)

    # -- lanes

    def _step_lanes(self, reach: Reach) -> None:
        for lane in [lane for lane in self._lanes if lane.reach is reach]:
            while not lane.running and reach.rests_until <= time.monotonic() and (lane.taken or lane.waiting):
                if lane.taken is None:
                    place, due = lane.waiting.popleft()
                    lane.taken = next(iter(self._claim(reach, [Want(place, due, b"")])), None)
                if lane.taken is not None:
                    self._start(lane, lane.taken)
        self._lanes = [lane for lane in self._lanes if lane.running or lane.taken or lane.waiting]

    def _start(self, lane: Lane, want: Want) -> None:
        """Start what was taken, unless it runs already."""
        entry, tick, now = want.place.entry, want.due.at / 1000, lane.reach.now / 1000
        try:
            waits = self.runs.waits(entry)
        except (ConnectionLost, ServerRefused) as error:
            return lane.reach.lost(error)  # and once more when it is back
        lane.taken = None
        if waits:
            return self._teller.skipped(want, waits, now)
        self.runs.start(entry, tick, self._owner)
        lane.running = (entry.name, tick)

    def _reap(self) -> None:
        for ended in self.runs.reap():
            self._over_with(ended)
        if self._control.rests_until <= time.monotonic() and self.runs.wants <= 0:
            try:
                self.runs.renew()
            except (ConnectionLost, ServerRefused) as error:
                self._control.lost(error)

    def _over_with(self, ended: Ended) -> None:
        self._teller.ended(ended, self._control.now / 1000)
        for lane in self._lanes:
            if lane.running == (ended.entry.name, ended.tick):
                lane.running = None

    # -- what the store keeps

    def _keep(self) -> None:
        """Once a second at most."""
        at = time.monotonic()
        if at < self._kept_at + 1.0 and not self.idle:
            return
        self._kept_at = at
        try:
            if not self._swept:
                sweep(self._control.store, {entry.name for entry in self._entries}, self._control.now / 1000)
                self._swept = True
            self._teller.keep(self._control.store)
        except (ConnectionLost, ServerRefused) as error:
            self._control.lost(error)
