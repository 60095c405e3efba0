"""Reads the jobs of a queue in slices, so that no read blocks the server, and only the two ends of a long queue.

    ready     queues:NAME, then queues:NAME:suspects    the next in line first
    delayed   queues:NAME:delayed                       the first due first
    reserved  queues:NAME:reserved                      the first lease to end first

Workers go on meanwhile: a job that moves may be missed, or read twice. Only commands that an operator who looks may call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import checked
from qd.store.base import KeyspaceStore

Place = Literal["ready", "delayed", "reserved"]
KEYS: Mapping[Place, tuple[tuple[str, Callable[[str], str]], ...]] = {
    "ready": (("list", keys.ready), ("list", keys.suspects)),
    "delayed": (("zset", keys.delayed),),
    "reserved": (("zset", keys.reserved),),
}
EDGE = 5000  # jobs that are read from each end
SLICE, SLICE_BYTES = 200, 256 << 10  # limits of one read; a single payload may be larger
FIRST, GROWTH = 8, 4  # jobs of the first read; by how much a read may be larger than the one before


class Waiting(NamedTuple):
    """A payload. score: unix seconds at which it is due or its lease ends; None: it is ready."""

    text: bytes
    score: float | None


def total(store: KeyspaceStore, queue: str, place: Place) -> int:
    commands = [("LLEN" if kind == "list" else "ZCARD", store.prefix + key(queue)) for kind, key in KEYS[place]]
    return sum(checked(store.space.call_many(commands)))


def waiting(store: KeyspaceStore, queue: str, place: Place) -> Iterator[Waiting]:
    """The first and the last EDGE jobs, or all if there are not more. Raises ConnectionLost, ServerRefused."""
    for kind, key in KEYS[place]:
        name = store.prefix + key(queue)
        count = int(store.space.call("LLEN" if kind == "list" else "ZCARD", name))
        ends = [(0, count)] if count <= 2 * EDGE else [(0, EDGE), (-EDGE, 0)]
        for first, end in ends:
            yield from _between(store, name, kind, first, end)


def each(store: KeyspaceStore, queue: str, place: Place, act: Callable[[Waiting, int], bool | None]) -> None:
    """Call `act` for each job, the next in line first, with the number of jobs behind it. It returns whether the job is no
    longer there, or None to stop. Reads as many jobs as there were at the beginning."""
    for kind, key in KEYS[place]:
        name = store.prefix + key(queue)
        left = length = int(store.space.call("LLEN" if kind == "list" else "ZCARD", name))
        at, last = 0, b""  # the next position, and the job that was left before it
        while left > 0:
            if at and [last] != [job.text for job in _between(store, name, kind, at - 1, at)]:
                first = max(0, at - SLICE)  # workers have taken jobs before this position: find it again
                before = [job.text for job in _between(store, name, kind, first, at)]
                at = first + (before.index(last) + 1 if last in before else 0)
            some, start = list(_between(store, name, kind, at, at + min(left, SLICE))), at
            for number, job in enumerate(some):
                gone = act(job, length - start - number - 1)
                if gone is None:
                    return
                if not gone:
                    at, last = at + 1, job.text
            length -= len(some) - (at - start)
            left = left - len(some) if some else 0


def _between(store: KeyspaceStore, name: str, kind: str, at: int, end: int) -> Iterator[Waiting]:
    """From position `at` up to, not including, `end`; both count from the end of the queue if `at` is negative."""
    size, largest = FIRST, 1
    while at < end:
        size = max(1, min(size, SLICE, SLICE_BYTES // largest, end - at))
        if kind == "list":
            found = [Waiting(text, None) for text in store.space.call("LRANGE", name, at, at + size - 1)]
        else:
            flat = store.space.call("ZRANGE", name, at, at + size - 1, "WITHSCORES")
            found = [Waiting(*pair) for pair in zip(flat[::2], map(float, flat[1::2]), strict=True)]
        yield from found
        if len(found) < size:
            return  # the queue has become shorter
        largest = max(largest, *(len(each.text) for each in found))
        at, size = at + size, size * GROWTH
