"""Kills workers that do not keep their limits.

Watchdog    one job at a time: over its deadline, over the hard memory limit, still running after it was cancelled; and
            no heartbeat between two jobs (stopped, swapped out, stuck in a listener)
LaneWatch   several jobs: those that do not end, and those that block the event loop

request the stack -> 0.15 s -> SIGKILL with a verdict -> reports.py

A worker writes W.BEAT at each turn, ahead of time if a step may take longer. Only time during which the master itself was
running counts, so suspending the whole process tree does not mark workers as silent.

    over its deadline (or cancelled) by 0.4 s -> the worker drains, a new one starts -> its other jobs have ended, or
                                                 25 s are over -> killed; this job has timed out, the others go back
    one step of a task for 1 s                -> loop.blocked, with the stack
    that for 10 s, or its job is 0.4 s over its deadline -> killed at once: no other task can run

While a step blocks the loop, its time is not counted against the other jobs. The keeper reads in W.BLAME which job it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from qd.log import Log
from qd.master.children import Children, Worker
from qd.master.status import state_of
from qd.options.tables import WorkOptions
from qd.process import proc
from qd.process.scoreboard import L, LaneState, Role, SlotState, Verdict, W, now

GRACE = 0.4  # seconds a job may be over its deadline before it is killed
STACK = 0.15  # seconds before that, at which its stack is requested
AWAY = 2.0  # seconds between two checks after which the master itself was suspended
UNDYING = 5.0  # seconds after SIGKILL within which a process ends, unless it hangs in the kernel


class Watchdog:
    def __init__(self, children: Children, log: Log) -> None:
        self.children, self.log = children, log
        self._looked_at = now()

    def check(self, memory_hard: int, silence: float) -> None:
        """memory_hard: bytes, 0 none. silence: seconds without a heartbeat that a worker between two jobs is allowed."""
        self.look(self.children.workers.values())
        for worker in self.children.workers.values():
            if not worker.pid:
                continue
            if worker.verdict is not None:
                self._check_undying(worker)
            elif worker.has_job:
                self._check_job(worker, memory_hard)
            elif worker.ready:
                self._check_silence(worker, silence_of(worker) - silence)

    def look(self, workers: Iterable[Worker]) -> None:
        """Note since when each worker is silent."""
        at = now()
        away, self._looked_at = at - self._looked_at, at
        for worker in workers:
            beat = worker.slot[W.BEAT]
            if worker.has_job or not worker.ready or beat != worker.beat:
                worker.beat, worker.quiet_since = beat, at
            elif away > AWAY * 1e9:
                worker.quiet_since += away

    def _check_job(self, worker: Worker, memory_hard: int) -> None:
        """Even if the master notices late, because it was suspended itself, the worker has its time for the stack: a job
        that was suspended, too, may end meanwhile."""
        late, cancelled = since(worker.slot[W.DEADLINE]), since(worker.cancel_deadline)
        due = max(late, cancelled) > GRACE - STACK and stack_taken(worker)
        if due and cancelled > GRACE:
            self.children.kill(worker, Verdict.CANCELLED)
        elif due and late > GRACE:
            self.children.kill(worker, Verdict.TIMEOUT)
        elif memory_hard and (proc.rss_of(worker.pid) or 0) > memory_hard:
            self.children.kill(worker, Verdict.MEMORY)

    def _check_silence(self, worker: Worker, over: float) -> None:
        """A silent worker counts as crashed, whatever it was doing: it may have reserved a job without noting it."""
        if over <= 0:
            if worker.slot[W.SILENT]:  # it was only slow
                worker.slot[W.SILENT], worker.stack_at = 0, 0
            return
        worker.slot[W.SILENT] = 1
        if stack_taken(worker):
            slot, seconds = worker.slot.number, silence_of(worker)
            self.log.error(worker.event("silent"), slot=slot, pid=worker.pid, state=state_of(worker), seconds=seconds)
            self.children.kill(worker, Verdict.CRASH)

    def _check_undying(self, worker: Worker) -> None:
        """A process that SIGKILL does not end keeps its lease: its job must not run a second time."""
        if worker.slot[W.SILENT] != 2 and time.monotonic() - worker.killed_at > UNDYING:
            worker.slot[W.SILENT] = 2
            slot, hint = worker.slot.number, "it hangs in the kernel"
            self.log.error(worker.event("undying"), slot=slot, pid=worker.pid, hint=hint)

    def next(self) -> float | None:
        """Seconds until `check` has something to do, as far as known now."""
        ahead = [wait for wait in self._waits() if wait > 0]
        return min(ahead) + 0.005 if ahead else None

    def _waits(self) -> Iterator[float]:
        at = now()
        for worker in self.children.workers.values():
            for deadline in (worker.slot[W.DEADLINE], worker.cancel_deadline):
                if worker.has_job and deadline:
                    left = (deadline - at) / 1e9
                    yield from (left + GRACE - STACK, left + GRACE)
            if worker.stack_at:
                yield (worker.stack_at - at) / 1e9 + STACK


def stack_taken(worker: Worker) -> bool:
    """Request the worker's stack. True once it has had the time to write it."""
    worker.take_stack()
    return since(worker.stack_at) >= STACK


def since(deadline: int) -> float:
    """Seconds since the moment; below 0 if it is ahead or there is none."""
    return (now() - deadline) / 1e9 if deadline else -1.0


def silence_of(worker: Worker) -> float:
    """Seconds since the worker's announced heartbeat was due; below 0 before that."""
    return (now() - max(worker.quiet_since, worker.beat)) / 1e9


EACH = 0.25  # seconds between two looks at a busy worker
SLOW = 1.0  # seconds of one step after which it is logged
BLOCKED = 10.0  # seconds of one step after which the worker is killed
OTHERS = 25.0  # seconds that the other jobs have, at most
STUCK = 2.0  # seconds without a heartbeat: a late job keeps the interpreter's lock, and no other job can run
LOGGED = 60.0  # seconds between two log lines about one job


class Late(NamedTuple):
    """A job that has not ended in time. by: seconds."""

    turn: int
    lane: int
    by: float
    verdict: Verdict


class LaneWatch:
    def __init__(self, children: Children, log: Log) -> None:
        self.children, self.log = children, log
        self.next: float | None = None  # seconds until `check` has something to do
        self._logged = dict[str, int]()  # name of a job -> moment

    def check(self, work: WorkOptions) -> None:
        self.next = None
        for worker in self.children.of(Role.WORKER):
            if not worker.slot[W.SEVERAL]:
                continue
            if worker.slot[W.LEAVES] and not work.no_respawn:
                worker.draining = True
            if worker.pid and worker.verdict is None and worker.slot[W.STATE] == SlotState.BUSY:
                self._wait(EACH)
                self._check(worker, min(work.stop_timeout or OTHERS, OTHERS))

    def _wait(self, seconds: float) -> None:
        if seconds > 0:
            self.next = min(self.next or seconds, seconds)

    def _check(self, worker: Worker, others: float) -> None:
        blocked, turn = self._blocked(worker)
        worker.due, worker.slot[W.BLAME] = None, 0
        running, late = self._late(worker, blocked, turn)
        for job in late:
            if job.turn == turn:  # no other task can run
                if blocked >= STACK and self._stack(worker):
                    self._kill(worker, job)
                return
        if blocked > BLOCKED and self._stack(worker):
            self._kill(worker, Late(turn, self._lane(worker, turn), blocked, Verdict.TIMEOUT))
        elif blocked > SLOW:
            self._log_blocked(worker, turn, blocked)
        if not late:
            return
        for job in late:
            self._log_overdue(worker, job)
        if not worker.late_at:
            worker.late_at = now()
            worker.drain()
        at = now()
        over = (at - worker.late_at) / 1e9 > others
        stuck = (at - max(worker.late_at, worker.slot[W.BEAT])) / 1e9 > STUCK
        if over or stuck or running <= len(late):
            worker.due = late[0].verdict  # its fault handler may crash while other threads run
            worker.slot[W.BLAME] = late[0].turn
            if self._stack(worker):
                self._kill(worker, late[0])

    def _blocked(self, worker: Worker) -> tuple[float, int]:
        """For how many seconds one step has been running, and of which turn; 0.0, 0 if none blocks the loop."""
        step = worker.slot[W.STEP], worker.slot[W.STEPS]
        if step != worker.step:
            worker.step, worker.step_at, worker.step_logged = step, now(), False
            if worker.late_at == 0:
                worker.stack_at = 0
        seconds = (now() - worker.step_at) / 1e9
        return (seconds, step[0]) if step[0] else (0.0, 0)

    def _late(self, worker: Worker, blocked: float, turn: int) -> tuple[int, list[Late]]:
        """How many jobs are running, and those that should have ended."""
        board, slot, at = self.children.board, worker.slot, now()
        words = (L.STATE, L.DEADLINE, L.OVER, L.THREAD)
        states, deadlines, over, threads = (board.lane_words(slot, word) for word in words)
        running, late = 0, list[Late]()
        for number, state in enumerate(states, 1):
            if state & 3 != LaneState.STARTED:
                continue
            running += 1
            its, deadline = state >> 2, deadlines[number - 1]
            if over[number - 1] == its:
                running -= not deadline
            cancelled = worker.lane_cancels.get(its & 0xFFFFFFFF, 0) if over[number - 1] != its else 0
            for moment, verdict in ((deadline, Verdict.TIMEOUT), (cancelled, Verdict.CANCELLED)):
                if not moment:
                    continue
                # A task waits while the step of another runs, which began up to EACH before it was first seen.
                waited = blocked + EACH if turn and its != turn and not threads[number - 1] else 0.0
                by = (at - moment) / 1e9 - waited
                if by > GRACE:
                    late.append(Late(its, number, by, verdict))
                    break
                self._wait(GRACE - by + 0.005)
        return running, late

    def _stack(self, worker: Worker) -> bool:
        self._wait(0.05)
        return stack_taken(worker)

    def _lane(self, worker: Worker, turn: int) -> int:
        states = self.children.board.lane_words(worker.slot, L.STATE)
        return next((number for number, state in enumerate(states, 1) if state >> 2 == turn), 0)

    def _log_overdue(self, worker: Worker, job: Late) -> None:
        if job.turn in worker.overdue:
            return
        worker.overdue.add(job.turn)
        lane, slot = self.children.board.lane(worker.slot.number, job.lane), worker.slot.number
        hint = "it has not ended when it should have: its worker takes no more jobs, and is killed if it does not end"
        self.log.error("job.overdue", slot=slot, pid=worker.pid, job=lane.job, queue=lane.queue, hint=hint)

    def _log_blocked(self, worker: Worker, turn: int, seconds: float) -> None:
        if worker.step_logged or not self._stack(worker):
            return
        worker.step_logged = True
        number = self._lane(worker, turn)
        name = self.children.board.lane(worker.slot.number, number).job if number else ""
        if now() - self._logged.get(name, -(2**62)) < LOGGED * 1e9:
            return
        if len(self._logged) > 1000:  # names come from payloads
            self._logged.clear()
        self._logged[name] = now()
        hint = "no other async job goes on meanwhile: await it, or use asyncio.to_thread"
        stack = self.children.stack(worker) or None
        fields = {"slot": worker.slot.number, "pid": worker.pid, "job": name or None, "seconds": seconds, "hint": hint}
        self.log.line("warning", "loop.blocked", {**fields, "trace": stack})

    def _kill(self, worker: Worker, late: Late) -> None:
        worker.slot[W.BLAME] = late.turn
        self.children.kill(worker, late.verdict)
