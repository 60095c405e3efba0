"""Statistics of jobs on the server: how many were started and how they ended, their times, and what the queues held.

    total           since statistics are kept, for exporters; expires 30 days after the last write
    hours, minutes  what was added in each, by the server's clock; kept 30 days and 8 hours

Keepers write them every 10 s (keeper/report.py). A field is `connection 0x1f queue 0x1f job`; its value begins with the
number of its format, and readers skip formats that they do not know. Of names beyond MOST, the job is `other` with neither
connection nor queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from qd.drivers.keyspace import keys
from qd.process.counters import BUCKETS, RUN, RUN_US, WAIT, WAIT_US, WORDS
from qd.store.base import Store

FORMAT = b"1"
MOST = 300  # names in a total, an hour or a minute, for all masters
OTHER = keys.OF.join(("", "", "other"))
KEPT_MINUTES, KEPT_HOURS = 8 * 3600, 30 * 86400  # seconds
# Seconds, upper bounds of the buckets; the last one has none.
BOUNDS: tuple[float, ...] = tuple(0.001 * 2**k for k in range(BUCKETS - 1))


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
    """What a queue held. oldest: seconds for which the next job has been waiting."""

    ready: int
    delayed: int
    reserved: int
    failed: int
    oldest: float | None


def totals(store: Store) -> dict[Name, Numbers]:
    return _numbers(store.fields(keys.STATS_TOTAL))


def minutes(store: Store, since: float, until: float) -> dict[int, tuple[dict[Name, Numbers], dict[Name, Depth]]]:
    """Unix minute -> what was added in it, and what the queues held at its end; for each minute between two moments (unix
    seconds) that has any."""
    found = {}
    for minute in range(int(max(since, until - KEPT_MINUTES) // 60), int(until // 60) + 1):
        added = _numbers(store.fields(keys.stats_minute(minute)))
        depths = _depths(store.fields(keys.stats_depths(minute)))
        if added or depths:
            found[minute] = added, depths
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
    return " ".join([FORMAT.decode(), *("-" if value is None else f"{value:.10g}" for value in depth)])


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
        if value[:2] == FORMAT + b" ":
            ready, delayed, reserved, failed, oldest = value.split()[1:]
            counts = int(ready), int(delayed), int(reserved), int(failed)
            found[Name(connection, queue, "")] = Depth(*counts, None if oldest == b"-" else float(oldest))
    return found
