"""Effects as effects.lua reads them: their keys behind those of the script that answers, and a word each with its values
behind its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from qd.connectors.effects import Count, Effect, Free, Hold, Keep, Leave, Push, Vacate
from qd.connectors.keyspace import keys
from qd.connectors.keyspace.base import Arg, Keyspace
from qd.errors import ConnectionLost

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
