"""When an entry is due, and what happens to missed ticks. Pure: times are passed in, in unix milliseconds.

decide(...)     the next tick to take, and how many were missed
Moments         items by the time at which they are due
Backlog         overdue items, taken one by one after all punctual ones
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from qd.schedule.entry import Missed

T = TypeVar("T")
Next = Callable[[int], int | None]  # the first tick that is later
MOST = 1000  # missed ticks of one entry that are run, and that are counted
WINDOW = 60_000  # ms; the first step back in search of the latest tick


class Due(NamedTuple):
    """A tick to take, unix ms.

    runs: False if it is only skipped. missed: number of missed ticks, including this one if it does not run; MOST means
    that or more. answer: of the user's filters; None: not evaluated yet, "": it runs, else why not.
    """

    at: int
    runs: bool = True
    missed: int = 0
    answer: str | None = None


def decide(
    next_after: Next, last: int, now: int, late: int, missed: Missed, complete: tuple[int, int] = (0, 0)
) -> Due | None:
    """The next tick of an entry whose last tick was `last`. None if nothing is due yet.

    late: ms after which a tick counts as missed. complete: no more ticks than may run are between these two, so that
    they need not be counted again.
    """
    first = next_after(last)
    if first is None or first > now:
        return None
    if now - first <= late:
        return Due(first)
    before = now - late
    if missed == "all" and complete[0] <= last and first < complete[1]:
        return Due(first)
    if missed == "all":
        kept = latest(next_after, last, before, MOST)
        return Due(kept[0], missed=0 if kept[0] == first else count(next_after, last, kept[0]))
    found = latest(next_after, last, before, 1)[0]
    missed_count = count(next_after, last, before)
    return Due(found, missed=missed_count - 1) if missed == "once" else Due(found, runs=False, missed=missed_count)


def latest(next_after: Next, after: int, before: int, most: int) -> list[int]:
    """The last `most` ticks after `after` and before `before`; there is at least one.

    Searches back in growing steps: a timing of seconds has millions of ticks after a month's stop.
    """
    window = WINDOW
    while True:
        start = max(after, before - window)
        found = list(ticks(next_after, start, before))
        if len(found) >= most or start == after:
            return found[-most:]
        window *= 4


def ticks(next_after: Next, after: int, before: int) -> Iterator[int]:
    at = next_after(after)
    while at is not None and at < before:
        yield at
        at = next_after(at)


def count(next_after: Next, after: int, before: int) -> int:
    """The number of ticks between the two, at most MOST."""
    return sum(1 for _ in islice(ticks(next_after, after, before), MOST))


class Moments(Generic[T]):
    def __init__(self) -> None:
        self._heap: list[int] = []
        self._at: dict[int, list[T]] = {}

    def add(self, at: int, item: T) -> None:
        found = self._at.get(at)
        if found is None:
            self._at[at] = [item]
            heapq.heappush(self._heap, at)
        else:
            found.append(item)

    def pop(self, now: float = math.inf) -> list[tuple[int, list[T]]]:
        """All due items, the earliest first, in the order of add()."""
        found = []
        while self._heap and self._heap[0] <= now:
            at = heapq.heappop(self._heap)
            found.append((at, self._at.pop(at)))
        return found

    @property
    def next(self) -> int | None:
        return self._heap[0] if self._heap else None

    def at(self, moment: int) -> Sequence[T]:
        """The items due then, in the order of add()."""
        return self._at.get(moment, ())

    def __len__(self) -> int:
        return sum(map(len, self._at.values()))


class Backlog(Moments[T]):
    """Overdue items, one by one: the caller may stop after each."""

    def __init__(self) -> None:
        super().__init__()
        self._together: deque[T] = deque()

    def take(self, order: Callable[[T], int]) -> T | None:
        """The earliest item; of several due at one time the first by `order`."""
        if not self._together and (at := self.next) is not None:
            ((_, together),) = self.pop(at)
            self._together.extend(sorted(together, key=order))
        return self._together.popleft() if self._together else None

    @property
    def together(self) -> bool:
        """Whether the next item was due at the same time as the last one."""
        return bool(self._together)

    def clear(self) -> list[T]:
        found = [*self._together, *[one for _, several in self.pop() for one in several]]
        self._together.clear()
        return found

    def __len__(self) -> int:
        return len(self._together) + super().__len__()
