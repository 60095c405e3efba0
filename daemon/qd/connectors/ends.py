"""What the end of a job does to what it is tied to: its lock, its chain, its batch, its record. The worker asks for each
end, and whoever takes a waiting job away; worker and keeper ask for a job that is put back."""

from __future__ import annotations

import time
from typing import Literal

from qd.connectors.effects import Count, Effect, Free, Hold, Keep, Push
from qd.links import linked
from qd.payload import Payload
from qd.ties import HOLD, Ties

End = Literal["done", "skipped", "failed"]  # skipped: not run, for its batch was cancelled


def ends(payload: Payload, how: End, place: str = "", value: bytes = b"null") -> list[Effect]:
    """In the order in which they come to pass; [] for a job that is tied to nothing. To the others a job that was cancelled
    has failed. place: queue and id of the record of one that has failed, "" where none is kept.
    value: its result or error as JSON, for its record (result_ttl)."""
    ties, effects = payload.qd, list[Effect]()
    if ties is None:
        return effects
    now, uuid = int(time.time()), payload.uuid or ""
    if ties.unique is not None:
        effects.append(Free(ties.unique, uuid))
    if how == "failed":
        effects += [Push(link.queue, linked(link, now), link.delay) for link in ties.catch]
    else:
        effects += _next(ties, now)
    if ties.batch is not None:
        effects.append(Count(ties.batch, uuid, how, place))
    if ties.result and (known := payload.id or uuid):
        effects.append(Keep(known, "failed" if how == "failed" else "done", value, ties.result))
    return effects


def _next(ties: Ties, now: int) -> list[Push]:
    """The next of the chain, with what then remains of it."""
    if not ties.chain:
        return []
    link, *rest = ties.chain
    return [Push(link.queue, linked(link, now, tuple(rest), ties.catch), link.delay)]


def put_back(payload: Payload, delay: float) -> tuple[Effect, ...]:
    """Its lock lasts until it is due again, in `delay` seconds, and as long from then as it did from the first time. One
    that has begun, and held it until then only, has none: nothing is held of a lock that is not its own."""
    ties = payload.qd
    if ties is None or ties.unique is None:
        return ()
    return (Hold(ties.unique, payload.uuid or "", delay + (ties.hold or HOLD)),)
