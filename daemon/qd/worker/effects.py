"""What an outcome does to others, worked out from what its job is tied to. ending.py hands it to the answer."""

from __future__ import annotations

from qd.bus.results import value_of_error, value_of_result
from qd.connectors.base import Connector, Reserved
from qd.connectors.effects import Effect
from qd.connectors.ends import ends, put_back
from qd.connectors.keyspace.effects import left_by
from qd.errors import ConfigError, ServerRefused
from qd.payload import Payload
from qd.unit import Ending, ending_of
from qd.worker.outcome import Back, Cancelled, Failed, Lost, Outcome
from qd.worker.settle import words_of


def effects_of(job: Reserved, payload: Payload, outcome: Outcome, most: int = 0) -> tuple[Effect, ...]:
    """() for a job that is tied to nothing. One that comes back keeps its lock. most: bytes of a result that is kept, 0:
    any."""
    ties = payload.qd
    if ties is None or isinstance(outcome, Lost):
        return ()
    if isinstance(outcome, Back):
        return put_back(payload, outcome.delay)
    kept = ties.result is not None
    if isinstance(outcome, Failed | Cancelled):
        place = f"{job.queue} {job.mark}" if isinstance(outcome, Failed) else ""
        return tuple(
            ends(payload, "failed", place, value_of_error(outcome.error, words_of(outcome.error)) if kept else b"")
        )
    value = value_of_result(outcome.result, most) if kept else b""
    return tuple(ends(payload, "skipped" if outcome.skipped else "done", value=value))


def was_killed(job: Reserved, payload: Payload) -> bool:
    """Whether a worker died or lost its lease with this job in hand. The middleware of that attempt freed nothing."""
    return payload.crashes > 0 or (b'"rsv":' in job.before and ending_of(job.before) is not Ending.ANSWERED)


def places_of(queue: Connector, job: Reserved, payload: Payload, holder: str = "") -> tuple[Effect, ...]:
    """What frees the places that an earlier attempt left. One call of the server, so only after was_killed. holder: as in
    left_by."""
    try:
        return left_by(*queue.kept, payload.uuid or payload.id or job.mark, holder)
    except (ConfigError, ServerRefused):  # this connection keeps no places, or this is no record of ours
        return ()
