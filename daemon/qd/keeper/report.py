"""What a keeper tells of its master in the hash qd:masters, once a second: read by `qd status`, `qd health`, other keepers.

after each beat: saw(the server's clock, queues that wait) -> since when     with the next one: text()
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence

from qd import __version__
from qd.config.settings import Settings
from qd.master.code import ChildContext
from qd.process import proc
from qd.process.scoreboard import ALIVE, H, Role, Slot, SlotState, W, now

RECENT = 60.0  # seconds for which a crash is told
STOOD_STILL = 5.0  # seconds between two reports after which it was the keeper that stood still


class Report:
    """Moments are told by the server's clock, as far as the last beat has shown it."""

    def __init__(self, settings: Settings, context: ChildContext) -> None:
        self.settings, self.context, self.board = settings, context, context.board
        # Of the server's clock to the monotonic one, seconds; None before the first answer.
        self._offset: float | None = None
        self._turns = self._looked()
        self._stuck: dict[str, float] = {}
        self._unscheduled: float | None = None  # the server's clock: since when a scheduler is missing
        self._told_at = self._awake_since = now()
        self.laravel_down = ""  # which of Laravel's notes of maintenance holds this host

    def saw(self, redis_now: float, waiting: Sequence[str]) -> None:
        """waiting: queues with ready jobs that nobody holds back, and of which nobody has one in hand at this moment."""
        self._offset = redis_now - now() / 1e9
        taken = self._taken()
        # What was taken since the last look was not stuck, though this look falls between two jobs.
        missing = bool(self.board.header(H.SCHEDULER)) and not self._of(Role.SCHEDULER)
        self._unscheduled = (self._unscheduled or redis_now) if missing else None
        self._stuck = {q: redis_now if q in taken else self._stuck.get(q, redis_now) for q in waiting}

    def _taken(self) -> set[str]:
        """The queues of which a worker has taken a job since the last look."""
        before, self._turns = self._turns, self._looked()
        moved = [slot for slot in self.board if slot[W.TURN] and before.get(slot.number) != self._turns[slot.number]]
        if moved:
            self.board.set_header(H.TOOK_AT, now())
        return {slot.queue for slot in moved}

    def _looked(self) -> dict[int, tuple[int, int]]:
        """Slot -> its generation and the turn of its last job."""
        return {slot.number: (slot[W.GENERATION], slot[W.TURN]) for slot in self.board}

    def text(self, booted_at: float) -> str:
        work, header = self.settings.work, self.board.header
        took, since = header(H.TOOK_AT), now() - int(RECENT * 1e9)
        known = self._offset is not None
        report = {
            "token": self.context.token,
            "host": socket.gethostname(),
            "pid": self.context.master,
            "start": proc.start_time(self.context.master),
            "boot": proc.boot_id(),
            "ns": proc.pid_namespace(),
            "root": os.geteuid() == 0 and not proc.in_container(),
            "pool": work.pool,
            "connection": work.connection,
            "queues": [] if work.only_schedule else list(work.queues),
            "version": __version__,
            "booted_at": round(booted_at, 3),
            "state": self._state(),
            "laravel_down": self.laravel_down,
            "leases_lost": self.board.leases_lost(),
            "master_silent": self._master_silent(),
            "keeper_restarts": header(H.KEEPER_DEATHS),
            "crashes": [self._unix(moment) for moment in self.board.crashes() if moment > since and known],
            "silent": [slot.number for slot in self.board if slot[W.SILENT] and slot[W.STATE] in ALIVE],
            "stuck": {queue: round(moment, 3) for queue, moment in self._stuck.items()},
            "took_at": self._unix(took) if took and known else None,
            "workers": [self._told(slot) for slot in self._of(Role.WORKER)],
            "schedulers": [self._told_of_scheduler(slot) for slot in self._of(Role.SCHEDULER)],
            "unscheduled": self._unscheduled,
        }
        return json.dumps(report)

    def _of(self, role: Role) -> list[Slot]:
        """Without those that are still to be born: their pid is 0, and who kills that kills his own group."""
        return [slot for slot in self.board if slot[W.STATE] in ALIVE and slot[W.PID] and slot[W.ROLE] == role]

    def _state(self) -> str:
        words = {H.STOP_AT: "stopping", H.DOWN: "down", H.PAUSED: "paused"}
        return next((word for header, word in words.items() if self.board.header(header)), "running")

    def _master_silent(self) -> float:
        """Seconds since its last turn, while this keeper was about itself. 0: it takes its turns, or has not begun."""
        at, turned = now(), self.board.header(H.MASTER_AT)
        if at - self._told_at > STOOD_STILL * 1e9:  # all of it was stopped: nobody is blamed for that
            self._awake_since = at
        self._told_at = at
        return round(max(0.0, (at - max(turned, self._awake_since)) / 1e9), 1) if turned else 0.0

    def _unix(self, moment: int) -> float:
        return round(moment / 1e9 + (self._offset or 0.0), 3)

    def _told(self, slot: Slot) -> dict[str, object]:
        busy = slot[W.STATE] == SlotState.BUSY
        return {
            "slot": slot.number,
            "pid": slot[W.PID],
            "start": slot[W.START] or None,
            "state": SlotState(slot[W.STATE]).name.lower(),
            "job": slot.job if busy else None,
            "queue": slot.queue if busy else None,
            "since": self._since(slot) if busy else None,
            "done": slot[W.JOBS],
            "grown": slot[W.GROWN],
        }

    def _told_of_scheduler(self, slot: Slot) -> dict[str, object]:
        """run: what runs now, the first of `runs` to begin."""
        runs = slot[W.RUNS]
        return {
            "slot": slot.number,
            "pid": slot[W.PID],
            "start": slot[W.START] or None,
            "state": SlotState(slot[W.STATE]).name.lower(),
            "entries": slot[W.ENTRIES],
            "runs": runs,
            "run": slot.job if runs else None,
            "since": self._since(slot) if runs else None,
        }

    def _since(self, slot: Slot) -> float | None:
        """When what it runs began. None: the server's clock is not known yet."""
        return self._unix(slot[W.JOB_AT]) if slot[W.JOB_AT] and self._offset is not None else None
