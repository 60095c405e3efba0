"""Wall clocks to moments: what a cron expression means in a time zone whose clocks are changed twice a year.

As Debian's cron does it. An expression of moments (`30 2 * * *`) comes once: what the change leaves out comes as the
new time begins, what it repeats comes the first time only. A beat (its minute or hour begins with `*`) follows the hands
of the clock as they are: what is left out does not come, what is repeated comes again, so that it goes by elapsed time.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from datetime import datetime, timedelta

from qd.schedule.cron import Walls, fixed
from qd.schedule.zones import zone_of

EPOCH = datetime(1970, 1, 1)
LONGEST = 3 * 3600  # seconds; a longer gap is no change of the clock: Samoa had no 30 December 2011, nothing ran for it
NEVER = math.inf
LAST = 200_000_000_000  # in the year 8307: nothing comes after it, for the calendar ends in 9999


class Ticks:
    """The moments (unix seconds) at which an expression is due in a zone. One for all entries that say the same.

    expression: as cron.read returns it. It remembers the last answer: not for several threads at once.
    """

    def __init__(self, expression: str, zone: str) -> None:
        self._walls = Walls(expression)
        self._zone = zone_of(zone)
        self._find = self._fixed if fixed(expression) else self._beat
        if zone == "UTC":
            self._find = self._plain
        self._from, self._next = 0.0, -NEVER

    def after(self, at: float) -> float:
        """The first that is later than `at`; infinite when there is none."""
        if not self._from <= at < self._next:
            self._from, self._next = at, self._find(math.floor(at)) if at < LAST else NEVER
        return self._next

    def _plain(self, second: int) -> float:
        wall = self._walls.after(EPOCH + timedelta(seconds=second))
        return NEVER if wall is None else (wall - EPOCH).total_seconds()

    def _fixed(self, second: int) -> float:
        wall = self._walls.after(self._wall(second).replace(tzinfo=None, fold=0))
        while wall is not None:
            tick = self._once(wall)
            if tick is not None and tick > second:
                return tick
            wall = self._walls.after(wall)
        return NEVER

    def _once(self, wall: datetime) -> float | None:
        """The moment at which the clock shows `wall` for the first time; the end of the gap if it never does."""
        before, after = self._moments(wall)
        if before <= after:
            return before
        return self._end_of_gap(after, before) if before - after <= LONGEST else None

    def _end_of_gap(self, start: float, end: float) -> float:
        """The moment after `start`, up to `end`, at which the clock is put forward."""
        span = range(int(start), int(end))
        new = self._wall(span.stop).utcoffset()
        return float(span.start + bisect_left(span, True, key=lambda second: self._wall(second).utcoffset() == new))

    def _beat(self, second: int) -> float:
        here = self._wall(second)
        wall = here.replace(tzinfo=None, fold=0)
        found = self._shown(wall, second)
        first, again = self._moments(wall)
        back = again - first
        if back <= 0 or here.fold:
            return found
        if found <= second + back and self._wall(int(found)).utcoffset() == here.utcoffset():
            return found  # the clock has not been put back yet
        return min(found, self._shown(wall - timedelta(seconds=back), second))

    def _shown(self, wall: datetime, second: int) -> float:
        """The first moment after `second` at which the clock shows what is named, of all that is later than `wall`."""
        while (named := self._walls.after(wall)) is not None:
            first, again = self._moments(named)
            if first <= again and again > second:  # else it is in a gap, or over
                return first if first > second else again
            wall = named
        return NEVER

    def _wall(self, second: int) -> datetime:
        return datetime.fromtimestamp(second, self._zone)

    def _moments(self, wall: datetime) -> tuple[float, float]:
        """When the clock shows `wall`: equal, two where it is shown twice, the later one first where it never is."""
        first = wall.replace(tzinfo=self._zone)
        return first.timestamp(), first.replace(fold=1).timestamp()
