"""Jobs that wait under a name, so that they can be moved and cancelled: one script call each, O(log n).

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

from collections.abc import Callable

from qd.connectors.keyspace import keys
from qd.connectors.keyspace.base import Keyspace, script

Keys = Callable[..., list[str]]


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
