"""Jobs of the next moment, made in the second before it, while nothing else is to be done: some at a time.

Nothing is asked of a server, told, or decided then. What a tick is, whether it runs, and who takes it is found out at its
moment as ever; a parcel that was made for it and is not used is thrown away.
"""

from __future__ import annotations

from qd.scheduler.reach import Reach
from qd.scheduler.taking import Taker

LEAD = 1500  # ms before a moment at which it begins: more than the longest wait between two turns
NEAR = 5  # ms before it in which nothing more is begun
STEP = 100  # entries of one turn


class Early:
    """Of the entries of one server."""

    def __init__(self, reach: Reach, taker: Taker) -> None:
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
