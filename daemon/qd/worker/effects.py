"""What an outcome does to others, worked out from what its job is tied to. ending.py hands it to the answer."""

from __future__ import annotations

import time

from qd.connectors.base import Reserved
from qd.connectors.effects import Count, Effect, Free, Push
from qd.links import linked
from qd.payload import Payload
from qd.ties import SKIPPED, Ties
from qd.worker.outcome import Back, Cancelled, Done, Dropped, Failed, Lost, Outcome


def effects_of(job: Reserved, payload: Payload, outcome: Outcome) -> tuple[Effect, ...]:
    """In the order in which they come to pass; () for a job that is tied to nothing, for one that comes back. One that was
    dropped is still counted; who cancelled or moved it has seen to the rest."""
    ties = payload.qd
    if ties is None or isinstance(outcome, Back | Lost):
        return ()
    if isinstance(outcome, Dropped):
        return () if ties.batch is None else (_count(ties.batch, job, payload, outcome),)
    now, effects = int(time.time()), list[Effect]()
    if ties.unique is not None:
        effects.append(Free(ties.unique, payload.uuid or ""))
    if isinstance(outcome, Failed | Cancelled):
        effects += [Push(link.queue, linked(link, now), link.delay) for link in ties.catch]
    else:
        effects += _next(ties, now)
    if ties.batch is not None:
        effects.append(_count(ties.batch, job, payload, outcome))
    return tuple(effects)


def _next(ties: Ties, now: int) -> list[Push]:
    """The next of the chain, with what then remains of it."""
    if not ties.chain:
        return []
    link, *rest = ties.chain
    return [Push(link.queue, linked(link, now, tuple(rest), ties.catch), link.delay)]


def _count(batch: str, job: Reserved, payload: Payload, outcome: Outcome) -> Count:
    uuid = payload.uuid or ""
    if isinstance(outcome, Failed | Cancelled):
        return Count(batch, uuid, "failed", f"{job.queue} {job.mark}")
    skipped = isinstance(outcome, Done) and outcome.result is SKIPPED
    return Count(batch, uuid, "skipped" if skipped else "done")
