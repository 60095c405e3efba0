"""Runs of one moment, one after the other. Each is claimed when its turn comes, and started at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from qd.errors import ConnectionLost, ServerRefused
from qd.scheduler.claims import Place, Want
from qd.scheduler.moments import Due
from qd.scheduler.reach import Reach
from qd.scheduler.runs import Ended, Runs
from qd.scheduler.taking import Taker

LATE = 1000  # ms


@dataclass(slots=True, eq=False)
class Lane:
    """taken: claimed, and not started yet."""

    reach: Reach
    waiting: deque[tuple[Place, Due]] = field(default_factory=deque)
    taken: Want | None = None
    running: tuple[str, float] | None = None

    @property
    def empty(self) -> bool:
        return not (self.waiting or self.taken or self.running)


class Lanes:
    def __init__(self, runs: Runs, taker: Taker, owner: str) -> None:
        self._runs, self._taker, self._owner = runs, taker, owner
        self._lanes: list[Lane] = []

    def __len__(self) -> int:
        return len(self._lanes)

    def add(self, reach: Reach, waiting: Sequence[tuple[Place, Due]]) -> None:
        """A lane of their own; but what is late waits for the run before of the same entry: a thousand missed ticks are no
        thousand processes."""
        own = deque[tuple[Place, Due]]()
        for place, due in waiting:
            lane = self._of(place) if reach.now - due.at > LATE else None
            (own if lane is None else lane.waiting).append((place, due))
        if own:
            self._lanes.append(Lane(reach, own))

    def _of(self, place: Place) -> Lane | None:
        """The one where a run of the same entry lives."""
        name = place.entry.name
        return next((lane for lane in self._lanes if lane.running and lane.running[0] == name), None)

    def run(self, reach: Reach, want: Want) -> None:
        """What is taken already."""
        self._lanes.append(Lane(reach, taken=want))

    def drain(self) -> None:
        """What was not claimed yet is left to others."""
        for lane in self._lanes:
            lane.waiting.clear()

    def step(self, reach: Reach, claims: bool) -> None:
        """Go on with what runs on this connection; without `claims` only what is taken is started."""
        for lane in [lane for lane in self._lanes if lane.reach is reach]:
            while not lane.running and (lane.taken or (claims and lane.waiting)) and reach.up:
                self._next(lane, reach)
        self._lanes = [lane for lane in self._lanes if not lane.empty]

    def _next(self, lane: Lane, reach: Reach) -> None:
        if lane.taken is None:
            taken = self._taker.claim(reach, [Want(*lane.waiting.popleft())])
            lane.taken = next(iter(self._taker.tell(taken)), None)
        if lane.taken is not None:
            self._start(lane, lane.taken, reach)

    def _start(self, lane: Lane, want: Want, reach: Reach) -> None:
        """Unless it runs already, here or elsewhere."""
        entry, tick = want.place.entry, want.due.at / 1000
        try:
            waits = self._runs.waits(entry)
        except (ConnectionLost, ServerRefused) as error:
            return reach.lost(error)  # it is taken, and started when the server is back
        lane.taken = None
        if waits:
            return self._taker.teller.skipped(want, waits, reach.now / 1000)
        self._runs.start(entry, tick, self._owner)
        lane.running = (entry.name, tick)

    def ended(self, ended: Ended) -> None:
        for lane in self._lanes:
            if lane.running == (ended.entry.name, ended.tick):
                lane.running = None
