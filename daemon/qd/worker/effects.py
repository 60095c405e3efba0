"""What an outcome does to others, worked out from what its job is tied to. ending.py hands it to the answer."""

from __future__ import annotations

from qd.bus.ends import ends
from qd.connectors.base import Reserved
from qd.connectors.effects import Effect
from qd.payload import Payload
from qd.ties import SKIPPED
from qd.worker.outcome import Back, Cancelled, Failed, Lost, Outcome


def effects_of(job: Reserved, payload: Payload, outcome: Outcome) -> tuple[Effect, ...]:
    """() for a job that is tied to nothing, and for one that comes back."""
    ties = payload.qd
    if ties is None or isinstance(outcome, Back | Lost):
        return ()
    if isinstance(outcome, Failed | Cancelled):
        return tuple(ends(payload, "failed", f"{job.queue} {job.mark}" if isinstance(outcome, Failed) else ""))
    return tuple(ends(payload, "skipped" if outcome.result is SKIPPED else "done"))
