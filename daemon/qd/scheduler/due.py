"""When something is due, and what becomes of what nobody took in time. Pure: moments are handed in, unix milliseconds.

decided(...)    the first tick after the last one: it runs, or so many were missed
Moments         what is due when; entries of one moment stand together
Backlog         what should have been taken long ago: one after the other, after all that is in time
Reckoner        the tick after a moment; entries of equal timing share one reckoning
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from qd.schedule.entry import Missed
from qd.schedule.timing import Timing

T = TypeVar("T")
Next = Callable[[int], int | None]  # the first tick that is later
MOST = 1000  # missed ticks of one entry that run, at most, and as many are counted
WINDOW = 60_000  # ms, the first look back for the latest tick


class Due(NamedTuple):
    """A tick to be taken. runs: False where it is only passed over. missed: how many were, with this one if it does not run;
    from MOST on there may be more. said: what the user's filters say, None: they were not asked, "": it runs."""

    at: int
    runs: bool = True
    missed: int = 0
    said: str | None = None


def decided(
    next_after: Next, last: int, now: int, late: int, missed: Missed, few: tuple[int, int] = (0, 0)
) -> Due | None:
    """What is to be done next about an entry whose last tick was `last`. late: ms after which a tick is missed. few: later
    than the first and earlier than the second there are no more ticks than may run; so nobody counts them again. None:
    nothing is due yet."""
    first = next_after(last)
    if first is None or first > now:
        return None
    if now - first <= late:
        return Due(first)
    before = now - late
    if missed == "all" and few[0] <= last and first < few[1]:
        return Due(first)
    if missed == "all":
        kept = latest(next_after, last, before, MOST)
        return Due(kept[0], missed=0 if kept[0] == first else counted(next_after, last, kept[0]))
    found = latest(next_after, last, before, 1)[0]
    count = counted(next_after, last, before)
    return Due(found, missed=count - 1) if missed == "once" else Due(found, runs=False, missed=count)


def latest(next_after: Next, after: int, before: int, most: int) -> list[int]:
    """The last ticks, `most` at most, later than `after` and earlier than `before`; there is one. Looks back in growing
    steps: a timing of seconds that stood still for a month has millions."""
    window = WINDOW
    while True:
        start = max(after, before - window)
        found = ticks(next_after, start, before)
        if len(found) >= most or start == after:
            return found[-most:]
        window *= 4


def ticks(next_after: Next, after: int, before: int) -> list[int]:
    found, at = list[int](), next_after(after)
    while at is not None and at < before:
        found.append(at)
        at = next_after(at)
    return found


def counted(next_after: Next, after: int, before: int) -> int:
    """How many there are between the two, MOST at most."""
    count, at = 0, next_after(after)
    while at is not None and at < before and count < MOST:
        count += 1
        at = next_after(at)
    return count


class Reckoner:
    """Timings in milliseconds. The last answer of each is kept: as a rule all entries of a timing ask for the same."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], tuple[int, int | None]] = {}

    def next_after(self, timing: Timing, key: tuple[str, str], at: int) -> int | None:
        asked, answer = self._last.get(key, (-1, None))
        if asked != at:
            found = timing.next_after(at / 1000)
            answer = None if found is None else round(found * 1000)
            self._last[key] = (at, answer)
        return answer


class Moments(Generic[T]):
    """Things by the moment at which they are due."""

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._at: dict[int, list[T]] = {}

    def add(self, at: int, what: T) -> None:
        found = self._at.get(at)
        if found is None:
            self._at[at] = [what]
            heapq.heappush(self._heap, at)
        else:
            found.append(what)

    def pop(self, now: float = math.inf) -> list[tuple[int, list[T]]]:
        """All that is due, the earliest first, in the order of add()."""
        found = []
        while self._heap and self._heap[0] <= now:
            at = heapq.heappop(self._heap)
            found.append((at, self._at.pop(at)))
        return found

    @property
    def next(self) -> int | None:
        return self._heap[0] if self._heap else None

    def at(self, moment: int) -> Sequence[T]:
        """What is due then, in the order of add()."""
        return self._at.get(moment, ())

    def __len__(self) -> int:
        return sum(map(len, self._at.values()))


class Backlog(Generic[T]):
    """Things that are far behind. They come one by one: who takes them may stop after each."""

    def __init__(self) -> None:
        self._moments: Moments[T] = Moments()
        self._together: deque[T] = deque()

    def add(self, at: int, what: T) -> None:
        self._moments.add(at, what)

    def next(self, order: Callable[[T], int]) -> T | None:
        """The earliest; of one moment the first by `order`."""
        if not self._together and (at := self._moments.next) is not None:
            ((_, together),) = self._moments.pop(at)
            self._together.extend(sorted(together, key=order))
        return self._together.popleft() if self._together else None

    @property
    def together(self) -> bool:
        """The next one was due at the same moment as the one that was taken last."""
        return bool(self._together)

    def clear(self) -> list[T]:
        """What was left."""
        found = [*self._together, *[one for _, several in self._moments.pop() for one in several]]
        self._together.clear()
        return found

    def __len__(self) -> int:
        return len(self._together) + len(self._moments)
