"""What the keeper writes about its master.

Report         in the hash qd:masters, once a second; `qd status`, `qd health` and other keepers read it. After each beat:
               update(the server's clock, queues with ready jobs). With the next beat: text()
MasterEvents   in qd:events: start, new code or its refusal, dead workers, crash loops, lost leases, stop. Each is the
               difference between two words of the scoreboard: what happened, and what was recorded of it. So a new keeper
               continues, and while the server is unreachable an event stays due
Statistics     what the workers of this host have counted: every 10 s, with one call to the control connection. The call has
               a number. If its reply is lost, the same differences are written again under the same number, by the next
               keeper too, and the server ignores a number that it has (process/counters.py: Ledger). A refusal is logged
               once; nothing is lost meanwhile
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from qd import __version__
from qd.config.settings import Settings
from qd.drivers.base import KeeperConnector
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import MISTYPED, Arg, script
from qd.errors import ServerRefused
from qd.keeper.servers import ControlConnection
from qd.log import Log
from qd.master.code import ChildContext
from qd.process import proc
from qd.process.counters import OTHER as OTHER_ROW
from qd.process.counters import Ledger, names_of
from qd.process.scoreboard import ALIVE, H, L, Lane, Role, Slot, SlotState, W, now, turns_of
from qd.store.audit import Event
from qd.store.statistics import KEPT_HOURS, KEPT_MINUTES, MOST, OTHER, Depth, text_of_depth, text_of_numbers

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
            **self._refusal(),
        }
        return json.dumps(report)

    def _refusal(self) -> dict[str, object]:
        at = self.board.header(H.REFUSED_AT)
        return {"refused": self.board.refusal() if at else "", "refused_at": self._since(at)}

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
            "done": slot[W.DONE],
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
        """When something began. None: not at all, or the server's clock is not known yet."""
        return self._unix(moment) if moment and self._offset is not None else None


AGAIN = 60.0  # seconds until the next try after a refusal


class MasterEvents:
    def __init__(self, settings: Settings, context: ChildContext, control: ControlConnection, log: Log) -> None:
        self.board, self.control, self.log = context.board, control, log
        self.root = settings.root
        self.master = {"pool": settings.work.pool or "default", "host": socket.gethostname()}
        self._not_before = 0.0
        self._refused = False  # and logged

    def record(self, *, stopped: bool = False) -> None:
        """Record what happened since the last call. A refusal is logged once. Raises ConnectionLost, ControlAway."""
        header = self.board.header
        happened = {
            H.RECORDED_REFUSALS: header(H.REFUSALS),
            H.RECORDED_FORK: header(H.FORKED_AT),
            H.RECORDED_CRASHES: header(H.CRASHES),
            H.RECORDED_LOOPS: header(H.CRASH_LOOPS),
            H.RECORDED_LOST: self.board.leases_lost(),
        }
        events = [self._event(word, value) for word, value in happened.items() if value != header(word)]
        if stopped:
            events.append(Event("master stopped", self.master))
        if not events or time.monotonic() < self._not_before:
            return
        try:
            self.control.record(*events)
        except ServerRefused as error:
            self._not_before = time.monotonic() + AGAIN
            if not self._refused:
                self.log.warning("events.refused", error=str(error), effect="`qd events` is incomplete")
            self._refused = True
            return
        self._refused = False
        for word, value in happened.items():
            self.board.set_header(word, value)

    def _event(self, word: int, value: int) -> Event:
        before = self.board.header(word)
        if word == H.RECORDED_FORK:
            code = {"version": __version__, "code": code_of(self.root)}
            return Event("new code" if before else "master started", self.master | code)
        if word == H.RECORDED_REFUSALS:
            return Event("refused new code", self.master, self.board.refusal(), times=value - before)
        what = {H.RECORDED_CRASHES: "worker died", H.RECORDED_LOOPS: "crash loop"}.get(word, "lease lost")
        return Event(what, self.master, times=value - before)


def code_of(root: Path) -> str:
    """Which code is there: the commit of a git checkout, else the folder, with a link such as `current` resolved."""
    folder = Path(os.path.realpath(root))
    git = folder / ".git"
    try:
        commit = (git / "HEAD").read_text().strip()
        if commit.startswith("ref: "):
            ref = commit.removeprefix("ref: ")
            if (git / ref).exists():
                commit = (git / ref).read_text()
            else:  # after `git gc`
                packed = (git / "packed-refs").read_text().splitlines()
                commit = next((line for line in packed if line.endswith(f" {ref}")), "")
        return commit[:12] or str(folder)
    except (OSError, ValueError):
        return str(folder)


EVERY = 10.0  # seconds between two writes
BUDGET = 0.2  # seconds for the depths of queues; the next write begins with those that are missing
QUEUES = 300  # whose depths this master writes


class Statistics:
    def __init__(
        self, queue: KeeperConnector, queues: Sequence[str], control: ControlConnection, context: ChildContext, log: Log
    ) -> None:
        self.queue, self.control, self.token, self.log = queue, control, context.token, log
        self.counters, self.ledger = context.board.counters, Ledger(context.board.counters)
        self.alive = context.board.keeper_is_alive
        self._queues = deque(queues[:QUEUES])
        self._due = 0.0  # at once: rates begin with the first sizes
        self._refused = False

    def write(self, server_now: float, *, leaving: bool = False) -> None:
        """server_now: the clock of the control connection's server. Raises ConnectionLost."""
        at = time.monotonic()
        if at < self._due and not leaving:
            return
        self._due = at + EVERY
        try:
            depths = [] if leaving else self._depths(at + BUDGET, server_now)
            number, added = self.ledger.open(self.counters.totals())
            if leaving and not added:
                return
            pairs = [word for text, words in added.items() for word in (self._field(text), text_of_numbers(words))]
            ms = [1000 * KEPT_HOURS, 1000 * KEPT_HOURS, 1000 * KEPT_MINUTES]
            args: list[Arg] = [self.token, number, MOST, *ms, OTHER, len(added), *pairs, *depths]
            names = [keys.STATS_NUMBERS, keys.STATS_TOTAL, keys.stats_hour(int(server_now // 3600))]
            minute = int(server_now // 60)
            names += [keys.stats_minute(minute), keys.stats_depths(minute), keys.stats_depths(minute - 1)]
            self.control.step(script("stats"), names, *args)
            self.ledger.confirm()
        except ServerRefused as error:
            if not self._refused:
                self._refused = True
                effect = "no statistics are written; jobs continue, and their counts are added later"
                self.log.warning("statistics.refused", error=str(error), effect=effect)
            return
        if self._refused:
            self._refused = False
            self.log.info("statistics.written_again")

    def _depths(self, until: float, server_now: float) -> list[str]:
        found, connection = list[str](), self.queue.settings.name
        for _ in range(len(self._queues)):
            if time.monotonic() > until:
                break
            queue = self._queues[0]
            self._queues.rotate(-1)
            self.alive()
            try:
                sizes = self.queue.sizes(queue)
            except ServerRefused as error:
                if MISTYPED not in str(error):
                    raise
                continue  # the beat reports it
            depth = Depth(sizes.ready, sizes.delayed, sizes.reserved, sizes.failed, sizes.oldest_age, server_now)
            found += [f"{connection}{keys.OF}{queue}", text_of_depth(depth)]
        return found

    def _field(self, text: bytes) -> str:
        return OTHER if text == OTHER_ROW else keys.OF.join((self.queue.settings.name, *names_of(text)))
