"""Kills workers whose job is over its deadline, over the hard memory limit, or still runs after it was cancelled, and
workers that miss their heartbeat between two jobs (stopped, swapped out, stuck in a listener).

request the stack -> 0.15 s -> SIGKILL with a verdict -> reap.py

A worker writes W.BEAT at each turn, ahead of time if a step may take longer. Only time during which the master itself was
running counts, so suspending the whole process tree does not mark workers as silent.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from qd.log import Log
from qd.master.children import Children, Worker
from qd.master.status import state_of
from qd.process import proc
from qd.process.scoreboard import Verdict, W, now

GRACE = 0.4  # seconds a job may be over its deadline before it is killed
STACK = 0.15  # seconds before that, at which its stack is requested
UNDYING = 5.0  # seconds after SIGKILL within which a process ends, unless it hangs in the kernel


class Watchdog:
    def __init__(self, children: Children, log: Log) -> None:
        self.children, self.log = children, log
        self.silence = HeartbeatMonitor()

    def check(self, memory_hard: int, silence: float) -> None:
        """memory_hard: bytes, 0 none. silence: seconds without a heartbeat that a worker between two jobs is allowed."""
        self.silence.look(self.children.workers.values())
        for worker in self.children.workers.values():
            if not worker.pid:
                continue
            if worker.verdict is not None:
                self._check_undying(worker)
            elif worker.has_job:
                self._check_job(worker, memory_hard)
            elif worker.ready:
                self._check_silence(worker, self.silence.of(worker) - silence)

    def _check_job(self, worker: Worker, memory_hard: int) -> None:
        """Even if the master notices late, because it was suspended itself, the worker has its time for the stack: a job
        that was suspended, too, may end meanwhile."""
        late, cancelled = since(worker.deadline), since(worker.cancel_deadline)
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
            slot, seconds = worker.slot.number, self.silence.of(worker)
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
            for deadline in (worker.deadline, worker.cancel_deadline):
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


AWAY = 2.0  # seconds between two checks after which the master itself was suspended


class HeartbeatMonitor:
    def __init__(self) -> None:
        self._looked_at = now()

    def look(self, workers: Iterable[Worker]) -> None:
        """Note since when each worker is silent."""
        at = now()
        away = at - self._looked_at
        self._looked_at = at
        for worker in workers:
            beat = worker.slot[W.BEAT]
            if worker.has_job or not worker.ready or beat != worker.beat:
                worker.beat, worker.quiet_since = beat, at
            elif away > AWAY * 1e9:
                worker.quiet_since += away

    def of(self, worker: Worker) -> float:
        """Seconds since the worker's announced heartbeat was due; below 0 before that."""
        return (now() - max(worker.quiet_since, worker.beat)) / 1e9
