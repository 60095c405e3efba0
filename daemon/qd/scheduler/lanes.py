"""Which runs wait for which. Each is claimed when its turn comes, and started at once.

line      the runs of one moment, one after the other, in the order of their declaration. Nobody stands in it for longer
          than until the next tick of its own entry: then it starts beside the others
behind    whose next tick has come, too, waits while many such runs of its entry are alive: after an outage an entry of
          every second is no thousand processes
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from qd.errors import ConnectionLost, ServerBusy
from qd.scheduler.claims import Place, Want
from qd.scheduler.moments import Due
from qd.scheduler.reach import Reach
from qd.scheduler.runs import Ended, Runs
from qd.scheduler.taking import Taker

ABREAST = 8  # such runs of one entry at a time; of ticks that were missed there is one


@dataclass(slots=True, eq=False)
class Lane:
    """taken: claimed, and not started yet. running: name of the entry, tick in seconds. late: the entry whose run this is,
    which had stood behind; "" for others. at: its moment, ms, where others may join it."""

    reach: Reach
    waiting: deque[tuple[Place, Due]] = field(default_factory=deque)
    taken: Want | None = None
    running: tuple[str, float] | None = None
    late: str = ""
    at: int = 0

    @property
    def empty(self) -> bool:
        return not (self.waiting or self.taken or self.running)


class Lanes:
    def __init__(self, runs: Runs, taker: Taker, owner: str) -> None:
        self._runs, self._taker, self._owner = runs, taker, owner
        self._lanes: list[Lane] = []
        self._behind: list[tuple[Reach, Place, Due]] = []  # one of an entry: it is planned anew once this is taken

    def __len__(self) -> int:
        """How many have something to run, or something that runs."""
        return sum(not lane.empty for lane in self._lanes) + len(self._behind)

    def add(self, reach: Reach, waiting: Sequence[tuple[Place, Due]]) -> None:
        """Runs of one moment. Where an entry still catches up, the one in time is behind, too."""
        late = {lane.late for lane in self._lanes}
        line = deque(
            [waits for waits in waiting if waits[0].entry.name not in late and not self._joined(reach, *waits)]
        )
        self._behind += [(reach, *waits) for waits in waiting if waits[0].entry.name in late]
        if line:
            place, due = line[0]
            self._lanes.append(Lane(reach, line, at=0 if place.entry.background else due.at))

    def _joined(self, reach: Reach, place: Place, due: Due) -> bool:
        """Whether it found its line: those of its moment that had no filter to ask are in it already."""
        if due.said is None or place.entry.background:
            return False
        line = next((lane for lane in self._lanes if lane.reach is reach and lane.at == due.at), None)
        if line is not None:
            line.waiting = deque(sorted([*line.waiting, (place, due)], key=lambda waits: waits[0].order))
        return line is not None

    def wants(self, reach: Reach) -> float:
        """Seconds until somebody leaves a line of this connection's."""
        lines = [lane.waiting for lane in self._lanes if lane.reach is reach]
        leave = min([leaves(reach, *waits) for line in lines for waits in line], default=math.inf)
        return max(0.0, (leave - reach.now) / 1000)

    def _out_of_line(self, reach: Reach) -> None:
        for lane in [lane for lane in self._lanes if lane.reach is reach and lane.waiting]:
            for waits in [waits for waits in lane.waiting if leaves(reach, *waits) <= reach.now]:
                lane.waiting.remove(waits)
                self._behind.append((reach, *waits))

    def _catch_up(self, reach: Reach) -> None:
        for late in [late for late in self._behind if late[0] is reach]:
            _, place, due = late
            most = 1 if reach.now - due.at > reach.late else ABREAST
            if sum(lane.late == place.entry.name for lane in self._lanes) < most:
                self._behind.remove(late)
                self._lanes.append(Lane(reach, deque([(place, due)]), late=place.entry.name))

    def run(self, reach: Reach, want: Want) -> None:
        """What is taken already."""
        self._lanes.append(Lane(reach, taken=want))

    def drain(self) -> None:
        """What was not claimed yet is left to others."""
        self._behind.clear()
        for lane in self._lanes:
            lane.waiting.clear()

    def step(self, reach: Reach, claims: bool) -> None:
        """Go on with what runs on this connection; without `claims` only what is taken is started."""
        if claims:
            self._out_of_line(reach)
            self._catch_up(reach)
        for lane in [lane for lane in self._lanes if lane.reach is reach]:
            while not lane.running and (lane.taken or (claims and lane.waiting)) and reach.up:
                self._next(lane, reach)
        self._lanes = [lane for lane in self._lanes if not lane.empty]

    def _next(self, lane: Lane, reach: Reach) -> None:
        if lane.taken is None:
            taken = self._taker.taken(reach, [self._taker.ask(reach, [Want(*lane.waiting.popleft())])])
            lane.taken = next(iter(self._taker.tell(taken)), None)
        if lane.taken is not None:
            self._start(lane, lane.taken, reach)

    def _start(self, lane: Lane, want: Want, reach: Reach) -> None:
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


def leaves(reach: Reach, place: Place, due: Due) -> float:
    """The ms at which it stands in line no more; infinite where its entry never comes again."""
    found = reach.next_after(place, due.at)
    return math.inf if found is None else found
