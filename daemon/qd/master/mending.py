"""What a job has written over the memory that all processes share is put right, from what the master knows by itself.

A slot whose fixed words are not what the master wrote says nothing that can be believed: its worker is left alone until it
writes there again at its next step, and its lease is renewed meanwhile.
"""

from __future__ import annotations

from qd.log import Log
from qd.master.children import Children, Worker
from qd.process import vitals
from qd.process.scoreboard import ALIVE, H, Scoreboard, Slot, State, W


class Mending:
    def __init__(self, board: Scoreboard, children: Children, log: Log) -> None:
        self.board, self.children, self.log = board, children, log

    def look(self, *, paused: bool, stopping: bool, forked_at: int | None) -> list[int]:
        """Before anything here is believed. forked_at: None when no code serves yet. Returns the slots put right: a keeper
        that has moved the jobs of one in this very moment is to be told of it again."""
        numbers = {slot.number for slot in self.board} | {*self.children.workers, *self.children.dead}
        mended = [number for number in numbers if self._mend(self.board.slot(number))]
        self.board.set_header(H.PAUSED, int(paused))
        if not stopping:
            self.board.set_header(H.STOP_AT, 0)
        if forked_at is not None:
            self.board.set_header(H.FORKED_AT, forked_at)
        if mended:
            hint = "a job writes over memory that is not its own (through ctypes or a broken extension)"
            self.log.error("board.mended", slots=len(mended), hint=hint)
        return mended

    def _mend(self, slot: Slot) -> bool:
        worker = self.children.workers.get(slot.number)
        if worker is not None:
            return self._living(worker)
        if slot.number in self.children.dead and slot[W.STATE] != State.SETTLED:
            return self.children.dead[slot.number].stand(slot)
        settled = self.children.dead.pop(slot.number, None) is not None
        mended = not settled and slot[W.STATE] != State.FREE
        slot.clear()
        return mended

    def _living(self, worker: Worker) -> bool:
        slot = worker.slot
        wrote = (worker.pid, worker.generation, worker.role)
        if (slot[W.PID], slot[W.GENERATION], slot[W.ROLE]) == wrote and slot[W.STATE] in ALIVE:
            return False
        slot[W.PID], slot[W.GENERATION], slot[W.ROLE] = wrote
        slot[W.START] = (vitals.start_time(worker.pid) or 0) if worker.pid else 0
        slot[W.STATE] = State.BUSY if worker.ready else State.STARTING
        slot[W.DEADLINE] = slot[W.WHY] = slot[W.SILENT] = 0
        return True
