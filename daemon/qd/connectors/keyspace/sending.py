"""Many jobs in one round trip: a script call for each queue and kind of job, all of them in one write.

    push.lua, later.lua   ready, delayed
    unique.lua            those that need a lock
    keyed_send.lua        those that can be moved and cancelled

queue.py calls it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from qd.connectors.base import Outgoing
from qd.connectors.keyspace import keys
from qd.connectors.keyspace.base import Arg, Call, Keyspace, script
from qd.errors import ConnectionLost

CHUNK = 1000  # payloads a script call carries at most
Keys = Callable[..., list[str]]


def sent(space: Keyspace, named: Keys, jobs: Sequence[Outgoing]) -> list[str | None]:
    """Send them, in the order given within a queue and kind. For each the id of the job that holds its lock, None: it was
    sent. Raises as Connector.post."""
    found: list[str | None] = [None] * len(jobs)
    calls = calls_of(named, jobs)
    for call, reply in zip(calls, together(space, calls), strict=True):
        if reply == len(call.places):
            continue
        if not isinstance(reply, list) or len(reply) != len(call.places):
            space.close()
            raise ConnectionLost(space.stranger)
        for place, holder in zip(call.places, reply, strict=True):
            if (holder := holder.decode("utf-8", "replace")) != jobs[place].owner:
                found[place] = holder
    return found


def together(space: Keyspace, calls: Sequence[Call]) -> list[Any]:
    """All replies, after one write. Raises the first error; the calls behind it have been made all the same."""
    replies = space.run_many(calls)
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def calls_of(named: Keys, jobs: Sequence[Outgoing]) -> list[Call]:
    groups = defaultdict[tuple[str, str], list[int]](list)
    for place, job in enumerate(jobs):
        kind = "keyed" if job.key else "unique" if job.lock else "later" if job.delay else "push"
        groups[kind, job.queue].append(place)
    calls = []
    for (kind, queue), places in groups.items():
        for at in range(0, len(places), CHUNK):
            calls.append(KINDS[kind](named, queue, jobs, places[at : at + CHUNK]))
    return calls


def call(name: str, names: Sequence[str], args: Iterable[Arg], places: Sequence[int]) -> Call:
    return Call(script(name), names, list(args), places)


def push(named: Keys, queue: str, jobs: Sequence[Outgoing], places: Sequence[int]) -> Call:
    payloads = [jobs[place].payload for place in places]
    return call("push", named(keys.ready(queue), keys.notify(queue)), payloads, places)


def later(named: Keys, queue: str, jobs: Sequence[Outgoing], places: Sequence[int]) -> Call:
    pairs: list[Arg] = []
    for place in places:
        pairs += (jobs[place].delay, jobs[place].payload)
    return call("later", named(keys.delayed(queue), keys.notify(queue)), pairs, places)


def unique(named: Keys, queue: str, jobs: Sequence[Outgoing], places: Sequence[int]) -> Call:
    locks, args = [], list[Arg]()
    for place in places:
        locks.append(keys.unique(jobs[place].lock))
        args += single_words(jobs[place])
    return call("unique", named(keys.ready(queue), keys.delayed(queue), keys.notify(queue), *locks), args, places)


def keyed(named: Keys, queue: str, jobs: Sequence[Outgoing], places: Sequence[int]) -> Call:
    args = list[Arg]()
    for place in places:
        args += keyed_words(jobs[place])
    kinds = (keys.ready, keys.delayed, keys.notify, keys.keyed)
    return call("keyed_send", named(*[kind(queue) for kind in kinds]), args, places)


def single_words(job: Outgoing) -> tuple[Arg, ...]:
    """As put_single (single.lua) reads them: owner, ms it holds the lock, delay in s, payload."""
    return job.owner, max(1, round(1000 * (job.delay + job.hold))), job.delay, job.payload


def keyed_words(job: Outgoing) -> tuple[Arg, ...]:
    """As add (keyed.lua) reads them: name, issue, delay in s, payload."""
    issue, _, name = job.key.partition(" ")
    return name, issue, job.delay, job.payload


KINDS = {"push": push, "later": later, "unique": unique, "keyed": keyed}
