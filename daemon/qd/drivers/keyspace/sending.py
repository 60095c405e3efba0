"""Many jobs in one round trip: a script call for each queue and kind of job, all of them in one write.

    push.lua, later.lua   ready, delayed
    unique.lua            those that need a lock
    keyed_send.lua        those that can be moved and cancelled

queue.py calls it.

Effects as effects.lua reads them: their keys behind those of the script that answers, and a word each with its values
behind its arguments.

Jobs that wait under a name, so that they can be moved and cancelled: one script call each, O(log n).

    queues:Q:keyed   hash   NAME -> ISSUE DUE PAYLOAD     a field for each job that waits under a name
    payload          "qd":{"key":"ISSUE NAME"}            ISSUE: five digits, a dot, the beginning of the job's id

The entry decides. A payload that stands in delayed or in ready is the one that waits when its entry has its issue; each
other one was moved, replaced or cancelled, and whoever takes it drops it in the same step (tied.lua, part of every turn).
So nothing has to be looked for in the ready list, and a Laravel worker may move what is due as it likes: it knows nothing of
entries, and need not.

    entry         payload           dispatch             cancel            reschedule        a worker takes it
    none          -                 entry, added         False             False             -
    issue t       in delayed        replaced, old gone   True, both gone   True, moved       (it is not due yet)
    issue t       in ready          replaced             True, entry gone  True, added       True: entry gone, it runs
    none/other    in ready          entry, added         False             False             it is dropped
    none          taken, runs or    entry, added: a      False             False             it runs: it says "taken"
                  waits for a retry job of its own
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import ceil
from typing import Any

from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg, Keyspace, ScriptCall, script
from qd.drivers.types import Count, Effect, Free, Hold, Keep, Leave, Outgoing, Push, Vacate
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


def together(space: Keyspace, calls: Sequence[ScriptCall]) -> list[Any]:
    """All replies, after one write. Raises the first error; the calls behind it have been made all the same."""
    replies = space.run_many(calls)
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def calls_of(named: Keys, jobs: Sequence[Outgoing]) -> list[ScriptCall]:
    groups = defaultdict[tuple[str, str], list[int]](list)
    for place, job in enumerate(jobs):
        kind = "keyed" if job.key else "unique" if job.lock else "later" if job.delay else "push"
        groups[kind, job.queue].append(place)
    calls = []
    for (kind, queue), places in groups.items():
        for at in range(0, len(places), CHUNK):
            calls.append(KINDS[kind](named, queue, jobs, places[at : at + CHUNK]))
    return calls


def call(name: str, names: Sequence[str], args: Iterable[Arg], places: Sequence[int]) -> ScriptCall:
    return ScriptCall(script(name), names, list(args), places)


def push(named: Keys, queue: str, jobs: Sequence[Outgoing], places: Sequence[int]) -> ScriptCall:
    payloads = [jobs[place].payload for place in places]
    return call("push", named(keys.ready(queue), keys.notify(queue)), payloads, places)


def later(named: Keys, queue: str, jobs: Sequence[Outgoing], places: Sequence[int]) -> ScriptCall:
    pairs: list[Arg] = []
    for place in places:
        pairs += (jobs[place].delay, jobs[place].payload)
    return call("later", named(keys.delayed(queue), keys.notify(queue)), pairs, places)


def unique(named: Keys, queue: str, jobs: Sequence[Outgoing], places: Sequence[int]) -> ScriptCall:
    locks, args = [], list[Arg]()
    for place in places:
        locks.append(keys.unique(jobs[place].lock))
        args += single_words(jobs[place])
    return call("unique", named(keys.ready(queue), keys.delayed(queue), keys.notify(queue), *locks), args, places)


def keyed(named: Keys, queue: str, jobs: Sequence[Outgoing], places: Sequence[int]) -> ScriptCall:
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


PLACES = (keys.lock(""), keys.slots(""))  # what the names of places begin with
NOTHING: tuple[tuple[str, ...], tuple[Arg, ...]] = ((), ())


def spoken(effects: Sequence[Effect], prefix: str) -> tuple[list[str], list[Arg]]:
    """Names of keys (without the prefix) and arguments. What would go to a key that is something else, which nobody of ours
    has written, is passed over, and told: the server would refuse the answer for ever."""
    names, args = list[str](), list[Arg]()
    for effect in effects:
        these, words = _one(effect, prefix)
        names += these
        args += words
    return names, args


def _one(effect: Effect, prefix: str) -> tuple[tuple[str, ...], tuple[Arg, ...]]:
    match effect:
        case Push(queue) if not keys.is_queue(queue):
            return passed(
                f"a job is not sent: '{queue}', the queue that the payload before it names, is a key of another"
            )
        case Count(id) if ":" in id:
            return passed(f"the end of a job is not counted: '{id}', which its payload names, is no batch")
        case Push(queue, payload, delay):
            return (keys.ready(queue), keys.delayed(queue), keys.notify(queue)), ("push", payload, delay)
        case Free(name, owner):
            return (keys.unique(name),), ("free", owner)
        case Hold(name, owner, seconds):
            return (keys.unique(name),), ("hold", owner, ceil(seconds))
        case Leave(key, field, holder):
            return (key,), ("leave", field, holder)
        case Vacate(owner, holder):
            return (keys.places_of(owner),), ("vacate", holder)
        case Keep(id, status, value, ttl):
            return (keys.kept(id),), ("keep", id, status, value, ttl)
        case Count(id, job, how, place):
            return (keys.batch(id), keys.batch_pending(id), keys.batch_failed(id)), ("count", job, how, place, prefix)


def left_by(space: Keyspace, prefix: str, owner: str, holder: str = "") -> tuple[Effect, ...]:
    """What frees the places that `owner` still has, for the step that ends its job. () for most jobs.

    owner: of a job, as its middleware calls it. holder: the attempt that ends, if the job runs again. Raises as a command.
    If the record is on a node of a cluster that is away, the effect reads the record once the node is back.
    """
    record = keys.places_of(owner)
    try:
        flat: list[bytes] = space.call("HGETALL", prefix + record)
    except ConnectionLost:
        if not getattr(space, "vacates", lambda _: False)(prefix + record):
            raise
        return (Vacate(owner, holder),)
    return tuple(leaves(record, owner, flat))


def leaves(record: str, owner: str, flat: Sequence[bytes], only: str = "") -> list[Leave]:
    """flat: fields and values of the record. only: the holder whose places are freed; "": any."""
    effects = list[Leave]()
    for at in range(0, len(flat), 2):
        place, held = (raw.decode("utf-8", "replace") for raw in flat[at : at + 2])
        holder = held.partition(" ")[2]
        if place.startswith(PLACES) and only in ("", holder):
            effects += [Leave(place, owner, holder), Leave(record, place, holder)]
    return effects


def passed(told: str) -> tuple[tuple[str, ...], tuple[Arg, ...]]:
    import logging  # no producer needs it

    logging.getLogger("qd.effects").error(told)
    return NOTHING


def cancelled(space: Keyspace, named: Keys, queue: str, name: str) -> bool:
    names = named(keys.delayed(queue), keys.keyed(queue))
    return bool(script("keyed_cancel").call(space, names, name))


def moved(space: Keyspace, named: Keys, queue: str, name: str, delay: float) -> bool:
    kinds = (keys.ready, keys.delayed, keys.notify, keys.keyed)
    names = named(*[kind(queue) for kind in kinds])
    return bool(script("keyed_move").call(space, names, name, delay))


def due(space: Keyspace, named: Keys, queue: str, name: str) -> float | None:
    found = script("keyed_due").call(space, named(keys.keyed(queue)), name)
    return None if found is None else float(found)
