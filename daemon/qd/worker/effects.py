"""What an outcome does to others, worked out from what its job is tied to. ending.py hands it to the answer."""

from __future__ import annotations

import time

from qd.connectors.effects import Effect, Free, Push, Unkey
from qd.links import linked
from qd.payload import Payload
from qd.ties import Ties
from qd.worker.outcome import Back, Cancelled, Dropped, Failed, Lost, Outcome


def effects_of(queue: str, payload: Payload, outcome: Outcome) -> tuple[Effect, ...]:
    """In the order in which they come to pass; () for a job that is tied to nothing, for one that comes back, and for
    one that was dropped: who cancelled or moved it has seen to them."""
    ties = payload.qd
    if ties is None or isinstance(outcome, Back | Lost | Dropped):
        return ()
    now, effects = int(time.time()), list[Effect]()
    if ties.unique is not None:
        effects.append(Free(ties.unique, payload.uuid or ""))
    if ties.key is not None:
        effects.append(Unkey(queue, ties.key, payload.id or ""))
    if isinstance(outcome, Failed | Cancelled):
        effects += [Push(link.queue, linked(link, now), link.delay) for link in ties.catch]
    else:
        effects += _next(ties, now)
    return tuple(effects)


def _next(ties: Ties, now: int) -> list[Push]:
    """The next of the chain, with what then remains of it."""
    if not ties.chain:
        return []
    link, *rest = ties.chain
    return [Push(link.queue, linked(link, now, tuple(rest), ties.catch), link.delay)]
