"""Statistics of jobs on the server: how many were started and how they ended, their times, and what the queues held.

    total           since statistics are kept, for exporters; expires 30 days after the last write
    hours, minutes  what was added in each, by the server's clock; kept 30 days and 8 hours

Keepers write them every 10 s (keeper/report.py). A field is `connection 0x1f queue 0x1f job`; its value begins with the
number of its format, and readers skip formats that they do not know. Of names beyond MOST, the job is `other` with neither
connection nor queue.

A History reads the minutes of the last hours, and computes how fast jobs come and go:

    out  jobs per minute that have ended: done, failed, cancelled
    in   out + the growth of ready, delayed and reserved jobs; also what `qd clear` or a move took away counts

They cover the time since the first size of the queue in the window. A keeper writes sizes when it starts, also as those at
the end of the minute before unless that minute has some. So the first one counts even after later ones of its minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from qd.drivers.keyspace import keys
from qd.drivers.types import Sizes
from qd.process.counters import BUCKETS, RUN, RUN_US, WAIT, WAIT_US, WORDS
from qd.store.base import Store

FORMAT = b"1"  # of numbers; of depths until 0.9
TIMED = b"2"  # of depths: with the time
MOST = 300  # names in a total, an hour or a minute, for all masters
OTHER = keys.OF.join(("", "", "other"))
KEPT_MINUTES, KEPT_HOURS = 8 * 3600, 30 * 86400  # seconds
# Seconds, upper bounds of the buckets; the last one has none.
BOUNDS: tuple[float, ...] = tuple(0.001 * 2**k for k in range(BUCKETS - 1))
WINDOW = 5  # minutes from which the rates of a queue are computed
SHORTEST = 10.0  # seconds: what keepers write at once
UNFINISHED = 90.0  # seconds: keepers still add to a minute after its end
FAR = 1e12  # unix seconds
Place = tuple[str, str]  # connection, queue


class Name(NamedTuple):
    """What numbers are about. job: "" for a queue."""

    connection: str
    queue: str
    job: str


class Numbers(NamedTuple):
    """Attempts that were started, and how they ended. wait, run: histograms with 24 buckets; wait_ms, run_ms: their sums."""

    started: int
    done: int
    failed: int
    released: int
    timed_out: int
    crashed: int
    cancelled: int
    lease_lost: int
    handed_back: int
    wait: tuple[int, ...]
    run: tuple[int, ...]
    wait_ms: int
    run_ms: int


class Depth(NamedTuple):
    """What a queue held. oldest: seconds for which the next job has been waiting. at: None: at the end of its minute."""

    ready: int
    delayed: int
    reserved: int
    failed: int
    oldest: float | None
    at: float | None = None


NOTHING = Numbers(0, 0, 0, 0, 0, 0, 0, 0, 0, (0,) * BUCKETS, (0,) * BUCKETS, 0, 0)


def totals(store: Store) -> dict[Name, Numbers]:
    return _numbers(store.fields(keys.STATS_TOTAL))


def periods(
    store: Store, since: float, until: float, step: int = 60
) -> dict[int, tuple[dict[Name, Numbers], dict[Name, Depth]]]:
    """Unix minute -> what was added in it, and what the queues held at its end; for each minute between two moments (unix
    seconds) that has any. step: 3600 for hours, of which only what was added is known."""
    found, hours = {}, step != 60
    for at in range(int(max(since, until - (KEPT_HOURS if hours else KEPT_MINUTES)) // step), int(until // step) + 1):
        added = _numbers(store.fields(keys.stats_hour(at) if hours else keys.stats_minute(at)))
        depths = {} if hours else _depths(store.fields(keys.stats_depths(at)))
        if added or depths:
            found[at] = added, depths
    return found


def quantile(buckets: Sequence[int], q: float) -> float | None:
    """The upper bound, in seconds, of the bucket with the quantile `q`. None: the histogram is empty. Times in the last
    bucket, which has no bound, count as its lower bound."""
    total = sum(buckets)
    if not total:
        return None
    at = [count >= q * total and count > 0 for count in accumulate(buckets)].index(True)
    return BOUNDS[min(at, BUCKETS - 2)]


def text_of_numbers(words: Iterable[int]) -> str:
    """The value of a field, from the words of a row (process/counters.py)."""
    return " ".join([FORMAT.decode(), *(f"{index}:{value}" for index, value in enumerate(words) if value)])


def text_of_depth(depth: Depth) -> str:
    return " ".join([TIMED.decode(), *("-" if value is None else f"{value:.15g}" for value in depth)])


def _numbers(fields: Mapping[str, bytes]) -> dict[Name, Numbers]:
    found = dict[Name, Numbers]()
    for field, value in fields.items():
        name, words = field.split(keys.OF), [0] * WORDS
        if value[:2] != FORMAT + b" " or len(name) != 3:
            continue
        for part in value.split()[1:]:
            index, _, number = part.partition(b":")
            words[int(index)] = int(number)
        wait, run = (tuple(words[first : first + BUCKETS]) for first in (WAIT, RUN))
        found[Name(*name)] = Numbers(*words[:WAIT], wait, run, words[WAIT_US] // 1000, words[RUN_US] // 1000)  # type: ignore[call-arg, arg-type]
    return found


def _depths(fields: Mapping[str, bytes]) -> dict[Name, Depth]:
    found = dict[Name, Depth]()
    for field, value in fields.items():
        connection, _, queue = field.partition(keys.OF)
        if value[:2] in (FORMAT + b" ", TIMED + b" "):
            ready, delayed, reserved, failed, *times = value.split()[1:]
            counts = int(ready), int(delayed), int(reserved), int(failed)
            found[Name(connection, queue, "")] = Depth(*counts, *(None if at == b"-" else float(at) for at in times))
    return found


# -- rates


class Rate(NamedTuple):
    """Per minute, over the last minutes. wait_p95, run_p95: seconds; None: no job was started, or none ended. ended: jobs,
    not per minute."""

    enters: float = 0.0
    leaves: float = 0.0
    failed: float = 0.0
    growth: float = 0.0
    wait_p95: float | None = None
    run_p95: float | None = None
    ended: int = 0

    def empty_in(self, sizes: Sizes) -> float | None:
        """Seconds until this queue is empty at this pace. None: it is empty now, or it is not shrinking."""
        jobs = sizes.ready + sizes.delayed + sizes.reserved
        return jobs / -self.growth * 60 if jobs and self.growth < 0 else None


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
            total = self.totals.get(minute, NOTHING)
            if wanted is not None:
                total = summed(numbers for name, numbers in added.items() if wanted(name))
            held = [depth.ready for name, depth in depths.items() if wanted is None or wanted(name)]
            times = *middle_and_most(total.wait), *middle_and_most(total.run)
            found.append(Point(minute * self.step, total.done, total.failed, *times, sum(held) if held else None))
        return found

    def rates(self) -> Mapping[Place, Rate]:
        """The rates of each queue over WINDOW minutes and the one that has begun, or the part of them that is known."""
        before = int(self.now // 60) - WINDOW - 1  # its last sizes are those at the start of the window
        span = [minute for minute in self.minutes if minute >= before]
        added, depths = dict[Place, list[Numbers]](), dict[Place, list[tuple[float, int]]]()
        for minute in span:
            for name, numbers in self.minutes[minute][0].items() if minute > before else ():
                added.setdefault(name[:2], []).append(numbers)
            for name, depth in self.minutes[minute][1].items():
                at = min(self.now, 60.0 * (minute + 1)) if depth.at is None else depth.at
                depths.setdefault(name[:2], []).append((at, depth.ready + depth.delayed + depth.reserved))
        found = dict[Place, Rate]()
        for place in {*added, *depths}:
            total = summed(added.get(place, ()))
            held = depths.get(place, [(60.0 * span[0], 0)])
            (began, first), (at, last) = held[0], held[-1]
            # Keepers write counts and sizes together: what is newer than that is in neither.
            until = at if self.now - at < 2 * SHORTEST else self.now
            length, ended = max(SHORTEST, until - began) / 60, total.done + total.failed + total.cancelled
            leaves, growth = ended / length, (last - first) / max(SHORTEST, at - began) * 60
            p95 = quantile(total.wait, 0.95), quantile(total.run, 0.95)
            found[place] = Rate(max(0.0, leaves + growth), leaves, total.failed / length, growth, *p95, ended)
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
