"""How fast jobs come and go, from the minutes of the last hours (store/statistics.py).

out  jobs per minute that have ended: done, failed, cancelled
in   out + the growth of ready, delayed and reserved jobs; also what `qd clear` or a move took away counts
eta  seconds until the queue is empty at this pace; None: it is not shrinking, or it is empty
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from qd.process.counters import BUCKETS
from qd.store.base import Store
from qd.store.statistics import KEPT_MINUTES, Depth, Name, Numbers, periods, quantile

WINDOW = 5  # minutes from which the rates of a queue are computed
SHORTEST = 10.0  # seconds: what keepers write at once
UNFINISHED = 90.0  # seconds: keepers still add to a minute after its end
FAR = 1e12  # unix seconds
NOTHING = Numbers(0, 0, 0, 0, 0, 0, 0, 0, 0, (0,) * BUCKETS, (0,) * BUCKETS, 0, 0)
Place = tuple[str, str]  # connection, queue


class Rate(NamedTuple):
    """Per minute, over the last minutes. wait_p95, run_p95: seconds; None: no job was started, or none ended."""

    enters: float = 0.0
    leaves: float = 0.0
    failed: float = 0.0
    growth: float = 0.0
    eta: float | None = None
    wait_p95: float | None = None
    run_p95: float | None = None


class Point(NamedTuple):
    """One minute of a chart. at: unix seconds at which it begins. depth: None if no keeper wrote it in this minute."""

    at: int
    done: int
    failed: int
    wait_p50: float | None
    wait_p95: float | None
    run_p50: float | None
    run_p95: float | None
    depth: int | None


class History:
    """The minutes of the last `seconds`, or the hours if `step` is 3600. Each is read once when it is over; refresh() reads
    what is new. What is said of minutes applies to hours; rates need minutes."""

    def __init__(self, store: Store, seconds: float = KEPT_MINUTES, step: int = 60) -> None:
        self.store, self.seconds, self.step = store, seconds, step
        self.minutes = dict[int, tuple[dict[Name, Numbers], dict[Name, Depth]]]()
        self.totals = dict[int, Numbers]()  # of each minute, over all names
        self.now = self._read = 0.0

    def refresh(self) -> History:
        self.now = now = self.store.now()
        since = max(now - self.seconds, self._read - UNFINISHED)
        fresh = periods(self.store, since, now, self.step)
        self.minutes.update(fresh)
        self.totals.update({minute: summed(added.values()) for minute, (added, _) in fresh.items()})
        self._read = now
        oldest = int((now - self.seconds) // self.step)
        self.minutes = {minute: each for minute, each in sorted(self.minutes.items()) if minute >= oldest}
        self.totals = {minute: each for minute, each in self.totals.items() if minute >= oldest}
        return self

    def total(self, since: float) -> Numbers:
        """The sum of what was added since then (unix seconds, rounded down to a minute)."""
        return summed(each for minute, each in self.totals.items() if minute >= since // self.step)

    def by_name(self, since: float, until: float = FAR) -> dict[Name, Numbers]:
        found = dict[Name, list[Numbers]]()
        for minute, (added, _) in self.minutes.items():
            if since // self.step <= minute < until // self.step:
                for name, numbers in added.items():
                    found.setdefault(name, []).append(numbers)
        return {name: summed(each) for name, each in found.items()}

    def points(self, since: float, wanted: Callable[[Name], bool] | None = None) -> list[Point]:
        """One per minute that is over, also for minutes in which nothing happened. depth: ready jobs of wanted queues."""
        found = list[Point]()
        for minute in range(int(max(since, self.now - self.seconds) // self.step) + 1, int(self.now // self.step)):
            added, depths = self.minutes.get(minute, ({}, {}))
            if wanted is None:
                all_of = self.totals.get(minute, NOTHING)
            else:
                all_of = summed(numbers for name, numbers in added.items() if wanted(name))
            held = [depth.ready for name, depth in depths.items() if wanted is None or wanted(name)]
            (wait_p50, wait_p95), (run_p50, run_p95) = middle_and_most(all_of.wait), middle_and_most(all_of.run)
            depth = sum(held) if held else None
            counts = minute * self.step, all_of.done, all_of.failed
            found.append(Point(*counts, wait_p50, wait_p95, run_p50, run_p95, depth))
        return found

    def rates(self) -> Mapping[Place, Rate]:
        """The rates of each queue over the last minutes, with the one that has begun."""
        span = [minute for minute in self.minutes if minute >= int(self.now // 60) - WINDOW]
        if not span:
            return {}
        of_place = dict[Place, list[Numbers]]()
        for name, numbers in self.by_name(span[0] * 60).items():
            of_place.setdefault((name.connection, name.queue), []).append(numbers)
        depths = dict[Place, list[tuple[int, int]]]()
        for minute in span:
            for name, depth in self.minutes[minute][1].items():
                held = depth.ready + depth.delayed + depth.reserved
                depths.setdefault((name.connection, name.queue), []).append((minute, held))
        length = max(SHORTEST, self.now - span[0] * 60) / 60
        found = dict[Place, Rate]()
        for place in {*of_place, *depths}:
            of_queue = summed(of_place.get(place, ()))
            first, last_one = (depths[place][0], depths[place][-1]) if place in depths else ((0, 0), (0, 0))
            apart = last_one[0] - first[0]
            growth = (last_one[1] - first[1]) / apart if apart else 0.0
            leaves = (of_queue.done + of_queue.failed + of_queue.cancelled) / length
            eta = last_one[1] / -growth * 60 if growth < 0 and last_one[1] else None
            p95 = quantile(of_queue.wait, 0.95), quantile(of_queue.run, 0.95)
            found[place] = Rate(max(0.0, leaves + growth), leaves, of_queue.failed / length, growth, eta, *p95)
        return found


def middle_and_most(buckets: Sequence[int]) -> tuple[float | None, float | None]:
    return quantile(buckets, 0.5), quantile(buckets, 0.95)


def summed(parts: Iterable[Numbers]) -> Numbers:
    every = [*parts]
    if len(every) < 2:
        return every[0] if every else NOTHING
    columns = [*zip(*every, strict=True)]
    added = [
        sum(column) if isinstance(column[0], int) else tuple(map(sum, zip(*column, strict=True))) for column in columns
    ]
    return Numbers(*added)  # type: ignore[arg-type]
