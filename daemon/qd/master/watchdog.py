"""What is over its time is ended: a job over its deadline or the hard memory ceiling, one that was cancelled and goes on, a
worker that stopped answering.

stack taken -> 0.15 s -> SIGKILL with a verdict -> reaping.py

Workers between two jobs that give no sign of life: stopped, swapped out, stuck in a listener.

A worker says W.BEAT at each turn, and ahead of time how long a step may take. What counts is how long the master has seen
the same word while it was awake itself: after a stop of the whole tree nobody is blamed.
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
STACK = 0.15  # seconds before that, at which its stack is taken
UNDYING = 5.0  # seconds after SIGKILL in which a process ends, unless the kernel itself hangs in it


class Watchdog:
    def __init__(self, children: Children, log: Log) -> None:
        self.children, self.log = children, log
        self.silence = HeartbeatMonitor()

    def end(self, memory_hard: int, silence: float) -> None:
        """memory_hard: bytes, 0 none. silence: seconds a worker between two jobs may give no sign."""
        self.silence.look(self.children.workers.values())
        for worker in self.children.workers.values():
            if not worker.pid:
                continue
            if worker.verdict is not None:
                self._tell_undying(worker)
            elif worker.has_job:
                self._judge_job(worker, memory_hard)
            elif worker.ready:
                self._judge_silence(worker, self.silence.of(worker) - silence)

    def _judge_job(self, worker: Worker, memory_hard: int) -> None:
        """One that this process sees late, since it stood still itself, has its time for the stack all the same: what stood
        still with it may end by itself meanwhile."""
        late, cancelled = since(worker.deadline), since(worker.cancel_deadline)
        told = max(late, cancelled) > GRACE - STACK and has_told(worker)
        if told and cancelled > GRACE:
            self.children.kill(worker, Verdict.CANCELLED)
        elif told and late > GRACE:
            self.children.kill(worker, Verdict.TIMEOUT)
        elif memory_hard and (proc.rss_of(worker.pid) or 0) > memory_hard:
            self.children.kill(worker, Verdict.MEMORY)

    def _judge_silence(self, worker: Worker, over: float) -> None:
        """A crash, whatever it was doing: it may hold a job that it had not noted yet."""
        if over <= 0:
            if worker.slot[W.SILENT]:  # it was slow, and is there again
                worker.slot[W.SILENT], worker.stack_at = 0, 0
            return
        worker.slot[W.SILENT] = 1
        if not has_told(worker):
            return
        self.log.error(
            worker.event("silent"),
            slot=worker.slot.number,
            pid=worker.pid,
            state=state_of(worker),
            seconds=self.silence.of(worker),
        )
        self.children.kill(worker, Verdict.CRASH)

    def _tell_undying(self, worker: Worker) -> None:
        """What SIGKILL does not end keeps its lease: nobody may run its job a second time."""
        if worker.slot[W.SILENT] != 2 and time.monotonic() - worker.killed_at > UNDYING:
            worker.slot[W.SILENT] = 2
            self.log.error(
                worker.event("undying"), slot=worker.slot.number, pid=worker.pid, hint="the kernel hangs in it"
            )

    def next(self) -> float | None:
        """Seconds until `end` has something to do, as far as it is known now."""
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


def has_told(worker: Worker) -> bool:
    """Whether it was asked for its stack, and has had the time to write it."""
    worker.take_stack()
    return since(worker.stack_at) >= STACK


def since(deadline: int) -> float:
    """Seconds; below 0: it is ahead, or there is none."""
    return (now() - deadline) / 1e9 if deadline else -1.0


AWAY = 2.0  # seconds between two looks after which it was the master that stood still


class HeartbeatMonitor:
    def __init__(self) -> None:
        self._looked_at = now()

    def look(self, workers: Iterable[Worker]) -> None:
        """Remember since when each is silent."""
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
        """Seconds for which a worker has been silent longer than it had announced; below 0 while it has not."""
        return (now() - max(worker.quiet_since, worker.beat)) / 1e9
