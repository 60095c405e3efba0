"""How a tick is decided: by pauses, maintenance mode and filters whether it runs; one claim; what is told of it then.

Jobs of the next moment, made in the second before it, while nothing else is to be done: some at a time.

Nothing is asked of a server, told, or decided then. What a tick is, whether it runs, and who takes it is found out at its
moment as ever; a parcel that was made for it and is not used is thrown away.

Which runs wait for which. Each is claimed when its turn comes, and started at once.

line      the runs of one moment, one after the other, in the order of their declaration. Nobody stands in it for longer
          than until the next tick of its own entry: then it starts beside the others
behind    whose next tick has come, too, waits while many such runs of its entry are alive: after an outage an entry of
          every second is no thousand processes
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from qd.drivers.types import Answers, Claimed
from qd.errors import ConnectionLost, ServerBusy
from qd.schedule.entry import Entry
from qd.scheduler.connection import ControlFlags, EntryState, ScheduleConnection, TickClaim, Tokens
from qd.scheduler.due import Due
from qd.scheduler.entry_job import Broke, EntryJob, Guard
from qd.scheduler.filters import refusal
from qd.scheduler.report import TickReport
from qd.scheduler.runs import Ended, Runs
from qd.store.controls import by_and_why
from qd.store.schedule import Field, pause_of, written_field

HOLDS = 30.0  # seconds that user code may hold up one tick: hooks of the payload, listeners
AGAIN = 1000  # ms until a claim that was refused is tried again


class TakenTick(NamedTuple):
    """holder: who has the lock of its job, which was not sent. now: unix seconds; took: seconds that the claim took."""

    want: TickClaim
    holder: str
    now: float
    took: float


def still(seconds: float, doing: str = "") -> None:
    """Nobody watches."""


class ClaimRequest(NamedTuple):
    """Claims whose answers nobody has waited for yet. began: monotonic seconds."""

    wants: Sequence[TickClaim]
    began: float
    answers: Answers


class TickTaker:
    """down: maintenance mode, as whoever owns the scheduler knows it; theirs: its words where no note of ours says so.
    alive: called with the seconds that the next step may take, and with the entry if it is one's turn now, "" nobody's."""

    def __init__(self, standing: ControlFlags, teller: TickReport, guard: Guard) -> None:
        self.teller, self.standing, self.down = teller, standing, False
        self.theirs = "maintenance mode"
        self.alive: Callable[..., None] = still
        self._guard, self._tokens = guard, Tokens()
        self._refused: set[str] = set()

    def ask(self, reach: ScheduleConnection, wants: Sequence[TickClaim]) -> ClaimRequest | None:
        """Claim them. None: the server is away; they are due again."""
        if not reach.up:
            for want in wants:
                reach.moments.add(want.due.at, want.place)
            return None
        began = time.monotonic()
        for want in wants:
            self._make_ready(want)
        self.alive(HOLDS, "")
        parcels = [want.parcel for want in wants if want.parcel is not None]
        self.teller.queueing(parcels)
        answers = reach.claim(wants)
        if answers is None:
            self._unsure(reach, wants)
            return None
        return ClaimRequest(wants, began, answers)

    def taken(self, reach: ScheduleConnection, asked: Sequence[ClaimRequest | None]) -> list[TakenTick]:
        """Those that were taken, to be told; what is due next of each entry is planned."""
        each_asked, found = [each for each in asked if each is not None], list[TakenTick]()
        for each, answers in zip(each_asked, reach.answers([each.answers for each in each_asked]), strict=True):
            if answers is None:
                self._unsure(reach, each.wants)
                continue
            took = time.monotonic() - each.began
            for want, answer in zip(each.wants, answers, strict=True):
                mine = self._answered(reach, want, answer)
                if mine is not None:
                    found.append(TakenTick(mine, answer.holder, answer.now, took))
        return found

    def _unsure(self, reach: ScheduleConnection, wants: Sequence[TickClaim]) -> None:
        """Whether they were taken is found out when they are claimed again."""
        for want in wants:
            want.place.unsure[want.after] = want
            reach.moments.add(want.due.at, want.place)

    def _make_ready(self, want: TickClaim) -> None:
        place, due = want.place, want.due
        want.after = want.after or self._after(want)
        if not due.runs or not place.raw:
            return
        want.skip = self.why_not(place.entry, due.at / 1000) or due.said or ""
        if want.skip:
            want.parcel = want.job = None
        elif place.job is not None and want.parcel is None:
            self._make(place.job, want)

    def _after(self, want: TickClaim) -> bytes:
        return written_field(Field(want.due.at, self._tokens.next(), want.place.key[1]))

    def _make(self, job: EntryJob, want: TickClaim) -> None:
        self.alive(HOLDS, want.place.entry.name)
        try:
            want.parcel = job.parcel()
            want.job = job.outgoing(want.parcel)
        except Broke as broke:
            want.error = f"its job could not be made: {broke}"

    def make_early(self, place: EntryState, at: int) -> None:
        """What can be made of a tick that is yet to come. Whether it runs is decided at its moment."""
        job, place.early = place.job, None
        if job is None or not place.raw or place.entry.filters:
            return  # to be run, not seen yet, or to be asked about
        if (parcel := job.early(at)) is not None:
            want = place.early = TickClaim(place, Due(at), job=job.outgoing(parcel), parcel=parcel)
            want.after = self._after(want)

    def why_not(self, entry: Entry, tick: float) -> str:
        """Why this tick does not run as far as the scheduler itself can tell, "" when it does; the user's own filters are
        asked elsewhere (asking.py)."""
        standing = self.standing
        if standing.pauses and (note := pause_of(standing.pauses, entry.name)):
            return f"paused{by_and_why(note)}"
        if (standing.down or self.down) and not entry.in_maintenance:
            return standing.down or self.theirs
        if not entry.filters:
            return ""
        return refusal([each for each in entry.filters if not each.foreign], tick, self._guard)

    def _answered(self, reach: ScheduleConnection, want: TickClaim, answer: Claimed) -> TickClaim | None:
        """The tick that was taken: this one, or one whose reply had been lost before."""
        place = want.place
        if answer.taken:
            place.unsure.clear()
            place.raw, place.last = want.after, want.due.at
            reach.plan(place)
            self._refused.discard(place.entry.name)
            return want
        if answer.early:
            reach.early(place, want.due.at)
        elif answer.found is not None:
            mine = place.unsure.pop(answer.found, None)
            reach.saw(place, answer.found)
            self._forget_unsure(place, reach.now / 1000)
            return mine
        elif isinstance(answer.refused, ServerBusy):
            reach.moments.add(want.due.at, place)
        else:
            self._refuse(reach, place, answer.refused)
            reach.moments.add(reach.now + AGAIN, place)
        return None

    def _forget_unsure(self, place: EntryState, now: float) -> None:
        """Another went on before we could ask: whether we had taken those ticks nobody can tell any more. A job was sent
        with its tick, by whoever took it; what is run may have been ours to run."""
        for after, want in list(place.unsure.items()):
            if want.due.at <= place.last:
                del place.unsure[after]
                if place.job is None and want.due.runs and want.due.at < place.last:
                    reason = "the connection broke while it was taken, and another host went on: nobody may have run it"
                    self.teller.skipped(want, reason, now)

    def _refuse(self, reach: ScheduleConnection, place: EntryState, error: Exception | None) -> None:
        name = place.entry.name
        if name not in self._refused:
            self._refused.add(name)
            self.alive(HOLDS)  # of ten thousand entries each key is looked at
            self.teller.log.error("schedule.refused", entry=name, error=reach.strange(place) or str(error))

    # -- taken

    def tell(self, taken: Sequence[TakenTick]) -> list[TickClaim]:
        """What became of them. Returns those runs that are to be started."""
        return [each.want for each in taken if self._told(*each)]

    def _told(self, want: TickClaim, holder: str, now: float, took: float) -> bool:
        """Whether it is a run that is to be started."""
        place = want.place
        self.alive(HOLDS, place.entry.name)
        if want.due.missed:
            self.teller.missed(want, now)
        if not want.due.runs:
            return False
        if want.skip:
            self.teller.skipped(want, want.skip, now)
        elif want.error:
            self.teller.failed(want, want.error, now)
        elif place.job is None:
            return True
        elif holder:
            self.teller.held(want, holder, now)
        else:
            self._send(place.job, want, now, took)
        return False

    def _send(self, job: EntryJob, want: TickClaim, now: float, took: float) -> None:
        if want.job is None and want.parcel is not None:  # its class has a send() of its own
            try:
                job.by_hand(want.parcel)
            except Broke as broke:
                return self.teller.failed(want, f"its send() {broke}", now)
        self.teller.sent(want, now, took)


LEAD = 1500  # ms before a moment at which it begins: more than the longest wait between two turns
NEAR = 5  # ms before it in which nothing more is begun
STEP = 100  # entries of one turn


class Early:
    """Of the entries of one server."""

    def __init__(self, reach: ScheduleConnection, taker: TickTaker) -> None:
        self._reach, self._taker = reach, taker
        self._at = self._seen = 0

    def step(self) -> bool:
        """Make some. True: there is more to make."""
        at = self._reach.moments.next
        if at is None or not self._reach.up or not NEAR < at - self._reach.now < LEAD:
            return False
        if at != self._at:
            self._at, self._seen = at, 0
        places = self._reach.moments.at(at)
        for place in places[self._seen : self._seen + STEP]:
            self._taker.make_early(place, at)
        self._seen = min(self._seen + STEP, len(places))
        return self._seen < len(places)


ABREAST = 8  # such runs of one entry at a time; of ticks that were missed there is one


@dataclass(slots=True, eq=False)
class Lane:
    """taken: claimed, and not started yet. running: name of the entry, tick in seconds. late: the entry whose run this is,
    which had stood behind; "" for others. at: its moment, ms, where others may join it."""

    reach: ScheduleConnection
    waiting: deque[tuple[EntryState, Due]] = field(default_factory=deque)
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
        self._behind: list[
            tuple[ScheduleConnection, EntryState, Due]
        ] = []  # one of an entry: it is planned anew once this is taken

    def __len__(self) -> int:
        """How many have something to run, or something that runs."""
        return sum(not lane.empty for lane in self._lanes) + len(self._behind)

    def add(self, reach: ScheduleConnection, waiting: Sequence[tuple[EntryState, Due]]) -> None:
        """Runs of one moment. Where an entry still catches up, the one in time is behind, too."""
        late = {lane.late for lane in self._lanes}
        line = deque(
            [waits for waits in waiting if waits[0].entry.name not in late and not self._joined(reach, *waits)]
        )
        self._behind += [(reach, *waits) for waits in waiting if waits[0].entry.name in late]
        if line:
            place, due = line[0]
            self._lanes.append(Lane(reach, line, at=0 if place.entry.background else due.at))

    def _joined(self, reach: ScheduleConnection, place: EntryState, due: Due) -> bool:
        """Whether it found its line: those of its moment that had no filter to ask are in it already."""
        if due.said is None or place.entry.background:
            return False
        line = next((lane for lane in self._lanes if lane.reach is reach and lane.at == due.at), None)
        if line is not None:
            line.waiting = deque(sorted([*line.waiting, (place, due)], key=lambda waits: waits[0].order))
        return line is not None

    def wants(self, reach: ScheduleConnection) -> float:
        """Seconds until somebody leaves a line of this connection's."""
        lines = [lane.waiting for lane in self._lanes if lane.reach is reach]
        leave = min([leaves(reach, *waits) for line in lines for waits in line], default=math.inf)
        return max(0.0, (leave - reach.now) / 1000)

    def _out_of_line(self, reach: ScheduleConnection) -> None:
        for lane in [lane for lane in self._lanes if lane.reach is reach and lane.waiting]:
            for waits in [waits for waits in lane.waiting if leaves(reach, *waits) <= reach.now]:
                lane.waiting.remove(waits)
                self._behind.append((reach, *waits))

    def _catch_up(self, reach: ScheduleConnection) -> None:
        for late in [late for late in self._behind if late[0] is reach]:
            _, place, due = late
            most = 1 if reach.now - due.at > reach.late else ABREAST
            if sum(lane.late == place.entry.name for lane in self._lanes) < most:
                self._behind.remove(late)
                self._lanes.append(Lane(reach, deque([(place, due)]), late=place.entry.name))

    def run(self, reach: ScheduleConnection, want: TickClaim) -> None:
        """What is taken already."""
        self._lanes.append(Lane(reach, taken=want))

    def drain(self) -> None:
        """What was not claimed yet is left to others."""
        self._behind.clear()
        for lane in self._lanes:
            lane.waiting.clear()

    def step(self, reach: ScheduleConnection, claims: bool) -> None:
        """Go on with what runs on this connection; without `claims` only what is taken is started."""
        if claims:
            self._out_of_line(reach)
            self._catch_up(reach)
        for lane in [lane for lane in self._lanes if lane.reach is reach]:
            while not lane.running and (lane.taken or (claims and lane.waiting)) and reach.up:
                self._next(lane, reach)
        self._lanes = [lane for lane in self._lanes if not lane.empty]

    def _next(self, lane: Lane, reach: ScheduleConnection) -> None:
        if lane.taken is None:
            taken = self._taker.taken(reach, [self._taker.ask(reach, [TickClaim(*lane.waiting.popleft())])])
            lane.taken = next(iter(self._taker.tell(taken)), None)
        if lane.taken is not None:
            self._start(lane, lane.taken, reach)

    def _start(self, lane: Lane, want: TickClaim, reach: ScheduleConnection) -> None:
        """Unless it runs already, here or elsewhere."""
        entry, tick = want.place.entry, want.due.at / 1000
        try:
            waits = self._runs.waits(entry)
        except ServerBusy as error:
            return reach.refuses(error)
        except ConnectionLost as error:
            return reach.lost(error)  # it is taken, and started when the server is back
        lane.taken, reach.busy = None, reach.busy and not entry.alone
        if waits:
            return self._taker.teller.skipped(want, waits, reach.now / 1000)
        self._runs.start(entry, tick, self._owner)
        lane.running = (entry.name, tick)

    def leave_taken(self) -> None:
        """The scheduler stops: what cannot be begun, since its server is away, is not waited for."""
        for lane in self._lanes:
            if lane.taken is not None and not lane.reach.up:
                reason = "taken, and then the server was away until the scheduler was told to stop"
                self._taker.teller.skipped(lane.taken, reason, lane.reach.now / 1000)
                lane.taken = None

    def ended(self, ended: Ended) -> None:
        for lane in self._lanes:
            if lane.running == (ended.entry.name, ended.tick):
                lane.running = None


def leaves(reach: ScheduleConnection, place: EntryState, due: Due) -> float:
    """The ms at which it stands in line no more; infinite where its entry never comes again."""
    found = reach.next_after(place, due.at)
    return math.inf if found is None else found
