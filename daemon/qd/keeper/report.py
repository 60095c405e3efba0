"""The report of a master in the hash qd:masters, written once a second; `qd status`, `qd health` and other keepers read it.

After each beat: update(the server's clock, queues with ready jobs). With the next beat: text().
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
from qd.process.scoreboard import ALIVE, H, L, Lane, Role, Slot, SlotState, W, now, turns_of

RECENT = 60.0  # seconds for which a crash is reported
LONGEST = 10  # jobs of a worker that are reported by name
SUSPENDED = 5.0  # seconds between two reports after which the keeper itself was suspended


class Report:
    """Reported times are of the server's clock, as known from the last beat."""

    def __init__(self, settings: Settings, context: ChildContext) -> None:
        self.settings, self.context, self.board = settings, context, context.board
        # Of the server's clock to the monotonic one, seconds; None before the first answer.
        self._offset: float | None = None
        self._turns = self._current_turns()
        self._stuck: dict[str, float] = {}
        self._unscheduled: float | None = None  # the server's clock: since when a scheduler is missing
        self._reported_at = self._awake_since = now()
        self.laravel_down = ""  # the key or file of Laravel's maintenance mode in force on this host

    def update(self, server_now: float, waiting: Sequence[str]) -> None:
        """waiting: queues that are not paused, with ready jobs, and of which no worker runs a job now."""
        self._offset = server_now - now() / 1e9
        missing = bool(self.board.header(H.SCHEDULER)) and not self._of(Role.SCHEDULER)
        self._unscheduled = (self._unscheduled or server_now) if missing else None
        # A queue from which a job was taken since the last beat is not stuck, even if this beat falls between two jobs.
        taken = self._taken()
        self._stuck = {q: server_now if q in taken else self._stuck.get(q, server_now) for q in waiting}

    def _taken(self) -> set[str]:
        """The queues from which a worker has taken a job since the last beat."""
        before, self._turns = self._turns, self._current_turns()
        moved = [slot for slot in self.board if slot[W.TURN] and before.get(slot.number) != self._turns[slot.number]]
        if moved:
            self.board.set_header(H.TOOK_AT, now())
        return {slot.queue for slot in moved}

    def _current_turns(self) -> dict[int, tuple[int, int]]:
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
            "wanted": header(H.WANTED),
            "configured": work.workers,
            "silent": [slot.number for slot in self.board if slot[W.SILENT] and slot[W.STATE] in ALIVE],
            "stuck": {queue: round(moment, 3) for queue, moment in self._stuck.items()},
            "took_at": self._unix(took) if took and known else None,
            "workers": [self._worker(slot) for slot in self._of(Role.WORKER)],
            "schedulers": [self._scheduler(slot) for slot in self._of(Role.SCHEDULER)],
            "unscheduled": self._unscheduled,
        }
        return json.dumps(report)

    def _of(self, role: Role) -> list[Slot]:
        """Without children that are not born yet: their pid is 0, and a kill of pid 0 would hit the caller's own group."""
        return [slot for slot in self.board if slot[W.STATE] in ALIVE and slot[W.PID] and slot[W.ROLE] == role]

    def _state(self) -> str:
        words = {H.STOP_AT: "stopping", H.DOWN: "down", H.PAUSED: "paused", H.HELD: "paused"}
        return next((word for header, word in words.items() if self.board.header(header)), "running")

    def _master_silent(self) -> float:
        """Seconds since the master's last turn, without time in which this keeper was suspended. 0: it has not begun."""
        at, turned = now(), self.board.header(H.MASTER_AT)
        if at - self._reported_at > SUSPENDED * 1e9:  # the whole program was suspended
            self._awake_since = at
        self._reported_at = at
        return round(max(0.0, (at - max(turned, self._awake_since)) / 1e9), 1) if turned else 0.0

    def _unix(self, moment: int) -> float:
        return round(moment / 1e9 + (self._offset or 0.0), 3)

    def _child(self, slot: Slot) -> dict[str, object]:
        state = SlotState(slot[W.STATE]).name.lower()
        return {"slot": slot.number, "pid": slot[W.PID], "start": slot[W.START] or None, "state": state}

    def _worker(self, slot: Slot) -> dict[str, object]:
        """Of several jobs: the LONGEST that have been running for the longest time, and the number of all."""
        busy = slot[W.STATE] == SlotState.BUSY
        several = bool(slot[W.SEVERAL]) and busy
        lanes = sorted(self.board.started(slot), key=lambda lane: lane[L.JOB_AT]) if several else []
        jobs = [self._job(lane, lane[L.JOB_AT], lane[L.DEADLINE]) for lane in lanes[:LONGEST]]
        none = dict[str, object].fromkeys(("job", "queue", "since", "timeout"))
        return self._child(slot) | {
            **(jobs[0] if jobs else self._job(slot, slot[W.JOB_AT], slot[W.DEADLINE]) if busy else none),
            "running": len(lanes) or int(busy),
            "longest": jobs,
            "held": 0 if several else self._held(slot),
            "done": slot[W.JOBS],
            "grown": slot[W.GROWN],
        }

    def _job(self, place: Slot | Lane, began: int, deadline: int) -> dict[str, object]:
        timeout = round((deadline - began) / 1e9, 1) if deadline > began > 0 else None
        return {"job": place.job, "queue": place.queue, "since": self._since(began), "timeout": timeout}

    def _held(self, slot: Slot) -> int:
        """Jobs that it has fetched and not started."""
        turns = turns_of(slot[W.BATCH]) if slot[W.HELD_AT] else range(0)
        return 0 if slot[W.RECALL] == slot[W.BATCH] else sum(turn > slot[W.STARTED] for turn in turns)

    def _scheduler(self, slot: Slot) -> dict[str, object]:
        """run: the first of the current `runs` to begin."""
        runs = slot[W.RUNS]
        return self._child(slot) | {
            "entries": slot[W.ENTRIES],
            "runs": runs,
            "run": slot.job if runs else None,
            "since": self._since(slot[W.JOB_AT]) if runs else None,
        }

    def _since(self, moment: int) -> float | None:
        """When a job or run began. None: the server's clock is not known yet."""
        return self._unix(moment) if moment and self._offset is not None else None
