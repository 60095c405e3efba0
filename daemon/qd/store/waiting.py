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
from qd.drivers.keyspace.base import checked, naming
from qd.store.base import KeyspaceStore

Place = Literal["ready", "delayed", "reserved"]
KEYS: Mapping[Place, tuple[tuple[str, Callable[[str], str]], ...]] = {  # with the command that counts
    "ready": (("LLEN", keys.ready), ("LLEN", keys.suspects)),
    "delayed": (("ZCARD", keys.delayed),),
    "reserved": (("ZCARD", keys.reserved),),
}
EDGE = 5000  # jobs that are read from each end
SLICE, SLICE_BYTES = 200, 256 << 10  # limits of one read; a single payload may be larger
FIRST, GROWTH = 8, 4  # jobs of the first read; by how much a read may be larger than the one before


class Waiting(NamedTuple):
    """A payload. score: unix seconds at which it is due or its lease ends; None: it is ready."""

    text: bytes
    score: float | None


def total(store: KeyspaceStore, queue: str, place: Place) -> int:
    counts = [(count, store.prefix + key(queue)) for count, key in KEYS[place]]
    with naming(store.space, counts[0][1]):
        return sum(checked(store.space.call_many(counts)))


def waiting(store: KeyspaceStore, queue: str, place: Place) -> Iterator[Waiting]:
    """The first and the last EDGE jobs, or all if there are not more. Raises ConnectionLost, ServerRefused."""
    for command, key in KEYS[place]:
        name = store.prefix + key(queue)
        with naming(store.space, name):
            count = int(store.space.call(command, name))
        for first, end in [(0, count)] if count <= 2 * EDGE else [(0, EDGE), (-EDGE, 0)]:
            yield from _between(store, name, first, end, scores=command == "ZCARD")


def each(store: KeyspaceStore, queue: str, place: Place, act: Callable[[Waiting, int], bool | None]) -> None:
    """Call `act` for each job, the next in line first, with the number of jobs behind it. It returns whether the job is no
    longer there, or None to stop. Reads as many jobs as there were at the beginning."""
    for command, key in KEYS[place]:
        name, scores = store.prefix + key(queue), command == "ZCARD"
        with naming(store.space, name):
            left = length = int(store.space.call(command, name))
        at, last = 0, b""  # the next position, and the job that was left before it
        while left > 0:
            if at and [last] != [job.text for job in _between(store, name, at - 1, at, scores=scores)]:
                first = max(0, at - SLICE)  # workers have taken jobs before this position: find it again
                before = [job.text for job in _between(store, name, first, at, scores=scores)]
                at = first + (before.index(last) + 1 if last in before else 0)
            some, start = list(_between(store, name, at, at + min(left, SLICE), scores=scores)), at
            for number, job in enumerate(some):
                gone = act(job, length - start - number - 1)
                if gone is None:
                    return
                if not gone:
                    at, last = at + 1, job.text
            length -= len(some) - (at - start)
            left = left - len(some) if some else 0


def _between(store: KeyspaceStore, name: str, at: int, end: int, *, scores: bool) -> Iterator[Waiting]:
    """From position `at` up to, not including, `end`; both count from the end of the queue if `at` is negative."""
    size, largest = FIRST, 1
    while at < end:
        size = max(1, min(size, SLICE, SLICE_BYTES // largest, end - at))
        if scores:
            flat = store.space.call("ZRANGE", name, at, at + size - 1, "WITHSCORES")
            found = [Waiting(*pair) for pair in zip(flat[::2], map(float, flat[1::2]), strict=True)]
        else:
            found = [Waiting(text, None) for text in store.space.call("LRANGE", name, at, at + size - 1)]
        yield from found
        if len(found) < size:
            return  # the queue has become shorter
        largest = max(largest, *(len(each.text) for each in found))
        at, size = at + size, size * GROWTH
