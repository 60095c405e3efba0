"""Jobs and effects as keys and arguments of the scripts.

Sending many jobs takes one round trip, with a script call for each queue and kind of job:

    push.lua, later.lua   ready, delayed
    unique.lua            jobs that need a lock
    keyed_send.lua        jobs that wait under a name and can be moved and cancelled, O(log n)

A keyed job has an entry under its name:

    queues:Q:keyed   hash   NAME -> ISSUE DUE PAYLOAD     a field for each job that waits under a name
    payload          "qd":{"key":"ISSUE NAME"}            ISSUE: five digits, a dot, the beginning of the job's id

A payload in delayed or ready is the waiting one only if the entry has its issue. Any other was moved, replaced or cancelled,
and the turn that takes it drops it (tied.lua). So no script searches the ready list, and Laravel workers may promote due
jobs without knowing about entries.

    entry         payload           dispatch             cancel            reschedule        a worker takes it
    none          -                 entry, added         False             False             -
    issue t       in delayed        replaced, old gone   True, both gone   True, moved       (not due yet)
    issue t       in ready          replaced             True, entry gone  True, added       True: entry gone, it runs
    none/other    in ready          entry, added         False             False             it is dropped
    none          taken, runs or    entry, added: a      False             False             it runs: marked "taken"
                  waits for a retry separate job
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg, Keyspace, ScriptCall, grouped, naming, script
from qd.drivers.types import Count, Effect, Forget, Free, Hold, Keep, Leave, Outgoing, Push, Vacate
from qd.errors import ConnectionLost

CHUNK = 1000  # maximum number of payloads in a script call
Keys = Callable[..., list[str]]
"""Adds the prefix to names."""


def sent(space: Keyspace, named: Keys, jobs: Sequence[Outgoing]) -> list[str | None]:
    """Send jobs, in the given order within a queue and kind. Returns for each None, or the id of the job that holds its
    lock. Raises as Connector.post; after an error the other calls have been executed anyway."""
    found: list[str | None] = [None] * len(jobs)
    calls = calls_of(named, jobs)
    replies = space.run_many(calls)
    for call, reply in zip(calls, replies, strict=True):
        if isinstance(reply, Exception):
            with naming(space, *call.names):
                raise reply
    for call, reply in zip(calls, replies, strict=True):
        if reply == len(call.places):
            continue
        if not isinstance(reply, list) or len(reply) != len(call.places):
            space.close()
            raise ConnectionLost(space.stranger)
        for place, holder in zip(call.places, reply, strict=True):
            if (holder := holder.decode("utf-8", "replace")) != jobs[place].owner:
                found[place] = holder
    return found


def calls_of(named: Keys, jobs: Sequence[Outgoing]) -> list[ScriptCall]:
    kinds = [
        ("keyed_send" if job.key else "unique" if job.lock else "later" if job.delay else "push", job.queue)
        for job in jobs
    ]
    return [call_of(named, kind, queue, jobs, some) for (kind, queue), some in grouped(kinds, CHUNK)]


def call_of(named: Keys, kind: str, queue: str, jobs: Sequence[Outgoing], places: Sequence[int]) -> ScriptCall:
    names, args = [key(queue) for key in KINDS[kind]], list[Arg]()
    for job in [jobs[place] for place in places]:
        if kind == "push":
            args.append(job.payload)
        elif kind == "later":
            args += (job.delay, job.payload)
        elif kind == "keyed_send":
            args += keyed_args(job)
        else:
            names.append(keys.unique(job.lock))
            args += single_args(job)
    return ScriptCall(script(kind), named(*names), args, places)


KINDS = {
    "push": (keys.ready, keys.notify),
    "later": (keys.delayed, keys.notify),
    "unique": (keys.ready, keys.delayed, keys.notify),
    "keyed_send": (keys.ready, keys.delayed, keys.notify, keys.keyed),
}
"""Script -> the first keys of a call."""


def single_args(job: Outgoing) -> tuple[Arg, ...]:
    """For put_single (single.lua): owner, ms to hold the lock, delay in s, payload."""
    return job.owner, max(1, round(1000 * (job.delay + job.hold))), job.delay, job.payload


def keyed_args(job: Outgoing) -> tuple[Arg, ...]:
    """For add (keyed.lua): name, issue, delay in s, payload."""
    issue, _, name = job.key.partition(" ")
    return name, issue, job.delay, job.payload


PLACES = (keys.lock(""), keys.slots(""))  # beginnings of the names of places


def effect_args(effects: Sequence[Effect], prefix: str) -> tuple[list[str], list[Arg]]:
    """Keys (without the prefix) and arguments of effects.lua, which follow those of the answer's script.

    An effect on a key of another kind, which only another program can have put into the payload, is logged and skipped:
    otherwise the server would refuse the answer forever.
    """
    names, args = list[str](), list[Arg]()
    for effect in effects:
        more_names, more_args = _one(effect, prefix)
        names += more_names
        args += more_args
    return names, args


def _one(effect: Effect, prefix: str) -> tuple[tuple[str, ...], tuple[Arg, ...]]:
    match effect:
        case Push(queue) if not keys.is_queue(queue):
            return skipped(f"a job is not sent: its queue '{queue}', from the previous job's payload, is another key")
        case Count(id) if ":" in id:
            return skipped(f"the end of a job is not counted: '{id}' in its payload is not a batch")
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
        case Forget(id):
            return (keys.steps(id),), ("forget",)
        case Count(id, job, how, place):
            return (keys.batch(id), keys.batch_pending(id), keys.batch_failed(id)), ("count", job, how, place, prefix)


def left_by(space: Keyspace, prefix: str, owner: str, holder: str = "") -> tuple[Effect, ...]:
    """The effects that free the places `owner` still has, for the step that ends its job. () for most jobs.

    owner: the job's id in its middleware. holder: the attempt that ends, if the job runs again. Raises as a command. If the
    record is on an unreachable node of a cluster, the effect reads the record once the node is back.
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
    """flat: fields and values of the record. only: the holder whose places to free; "": any."""
    effects = list[Leave]()
    for at in range(0, len(flat), 2):
        place, held = (raw.decode("utf-8", "replace") for raw in flat[at : at + 2])
        holder = held.partition(" ")[2]
        if place.startswith(PLACES) and only in ("", holder):
            effects += [Leave(place, owner, holder), Leave(record, place, holder)]
    return effects


def skipped(reason: str) -> tuple[tuple[str, ...], tuple[Arg, ...]]:
    import logging  # producers do not need it

    logging.getLogger("qd.effects").error(reason)
    return (), ()
