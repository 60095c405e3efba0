"""The end of an attempt: its outcome is answered, told and counted. The loop hands it what came of the job.

done -> acked with the next turn, at once where others are tied to it
back -> released    failed -> buried    cancelled -> acked at once    lost -> told
"""

from __future__ import annotations

from collections.abc import Sequence

from qd import events
from qd.connectors.base import Reserved
from qd.connectors.effects import Effect
from qd.process.scoreboard import Slot, State, W
from qd.unit import split_mark
from qd.worker.answering import Answering
from qd.worker.attempt import Attempts
from qd.worker.effects import effects_of, places_of, was_killed
from qd.worker.outcome import Back, Cancelled, Done, Failed, Lost, Missing, Outcome
from qd.worker.saving import Held
from qd.worker.settle import Settler

UNTOUCHED = Back(0.0, "reserved, and not begun", spends=False, head=True)


class Ending:
    def __init__(self, settler: Settler, answering: Answering, attempts: Attempts, slot: Slot) -> None:
        self.settler, self.answering, self.attempts, self.slot = settler, answering, attempts, slot
        self.most = attempts.app.settings.max_payload

    def settle(self, held: Held, outcome: Outcome, took: float) -> None:
        job, settler, payload = held.job, self.settler, self.attempts.payload
        effects = () if payload is None or payload.qd is None else effects_of(job, payload, outcome, self.most)
        ends = isinstance(outcome, Done | Failed | Cancelled)
        if payload is not None and (self.attempts.unfreed or (ends and was_killed(job, payload))):
            holder = "" if ends else job.mark
            effects += self.answering.fetch(lambda: places_of(settler.queue, job, payload, holder))
        if isinstance(outcome, Done):
            self.answering.done = job
            if isinstance(outcome, Missing):
                settler.tell_missing(job, outcome.why)
            elif settler.log.informs:
                settler.tell_done(job, took)
            if held.unsure or effects:
                self._ack(held, effects)
        elif isinstance(outcome, Back):
            self.slot[W.HANDED_BACK] += int(outcome.head)
            kept = self.answering.surely(held, lambda job: settler.give_back(job, outcome, held.unsaved, effects))
            settler.tell_back(job, outcome)
            self._unless_lost(job, kept)
        elif isinstance(outcome, Failed):
            kept = self.answering.surely(held, lambda job: settler.bury(job, outcome, held.unsaved, effects))
            settler.tell_failed(job, outcome)
            if self._unless_lost(job, kept):
                settler.copy()
        elif isinstance(outcome, Cancelled):
            kept = self.answering.surely(held, lambda job: settler.queue.ack(job, effects))
            settler.tell_cancelled(job)
            self._unless_lost(job, kept)
        elif isinstance(outcome, Lost):
            self.answering.surely(held, settler.queue.ack)  # nothing is there to ack, but our name is still on it
            self._lost(job, heard=True)

    def flush(self) -> None:
        """Send the ack that waits for a next turn, and give back what a broken turn has reserved."""
        self.answering.untake(self._untouched)
        if (done := self.answering.done) is not None:
            self._ack(Held(done))

    def lost_before(self, done: Reserved, reserved: Reserved | None) -> Reserved | None:
        """The turn that reserved a job found that the lease of the one before was gone. Returns what is in hand."""
        if reserved is not None and self._is_heard:
            self.answering.surely(Held(reserved), self._untouched)  # it is not to suffer for what listeners do
            reserved = None
        self._lost(done)
        return reserved

    def _untouched(self, job: Reserved) -> bool:
        return self.settler.give_back(job, UNTOUCHED, None)

    def _ack(self, held: Held, effects: Sequence[Effect] = ()) -> None:
        self.answering.done = None
        self._unless_lost(held.job, self.answering.surely(held, lambda job: self.settler.queue.ack(job, effects)))

    def _unless_lost(self, job: Reserved, kept: bool | None) -> bool:
        """kept: what the answer was answered with."""
        if kept is False:
            self._lost(job)
        return kept is not False

    def _lost(self, job: Reserved, *, heard: bool = False) -> None:
        """The lease is gone: somebody else has the job, or has done it. heard: listeners know."""
        self.settler.tell_lost(job)
        if self.slot[W.LOST_TURN] != split_mark(job.mark).turn:
            self.slot[W.LOST] += 1
        if not heard and self._is_heard:
            before, self.slot[W.STATE] = self.slot[W.STATE], State.BUSY  # listeners have a time limit, too
            self.attempts.hear_lost(job)
            self.slot[W.STATE] = before

    @property
    def _is_heard(self) -> bool:
        return self.attempts.app._listeners.has(events.LeaseLost)
