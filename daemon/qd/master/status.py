"""What the master reports: deaths and states in the log, itself to `ps` and systemd, and its liveness file."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping

from qd.log import Log
from qd.master.children import Children, Death, Worker
from qd.master.state import State
from qd.options.kinds import count
from qd.process import liveness, proc
from qd.process.scoreboard import H, Role, SlotState, Verdict, W

NOUNS = {Role.WORKER: "job", Role.SCHEDULER: "run"}  # what a child runs
PLACES = {Role.WORKER: "queue", Role.SCHEDULER: "entry"}  # where it is from; in a scheduler the current entry
NO_STACK = "none (it was stopped, or had blocked every signal)"


def log_death(log: Log, death: Death, verdict: Verdict) -> None:
    worker, words = death.worker, verdict.words
    stopped_answering = verdict is Verdict.CRASH and worker.verdict is Verdict.CRASH
    reason = "stopped answering" if stopped_answering else verdict.words.killed_for
    fields = {
        "slot": worker.slot.number,
        "pid": worker.pid,
        "how": death.how,
        "reason": reason or ("out of memory?" if death.oom is None else None),
        "peak": f"{death.peak // 1_000_000}M",
        NOUNS[worker.role]: death.job or None,
        PLACES[worker.role]: death.queue or None,
        "took": death.took or None,
        "stack": NO_STACK if verdict in (Verdict.TIMEOUT, Verdict.CANCELLED) and not death.stack else None,
        "trace": death.stack or None,
    }
    log.line(words.level, words.event.format(child=worker.role.word), fields)


def dump(state: State) -> None:
    """USR1: log a line for each worker, and have each worker write its stacks."""
    log, children = state.log, state.children
    for worker in children.workers.values():
        slot = worker.slot
        doing = {NOUNS[worker.role]: slot.job, PLACES[worker.role]: slot.queue or None} if worker.busy else {}
        count = {"jobs": slot[W.DONE]} if worker.role is Role.WORKER else {"entries": slot[W.ENTRIES]}
        log.info(worker.event("state"), slot=slot.number, pid=worker.pid, state=state_of(worker), **count, **doing)
        worker.send(signal.SIGUSR1)
    log.info("master.state", workers=len(children.of(Role.WORKER)), wanted=state.wanted, paused=state.paused)


def state_of(worker: Worker) -> str:
    state = worker.slot[W.STATE]
    return SlotState(state).name.lower() if state in list(SlotState) else "?"


def counted(children: Children, only_schedule: bool) -> str:
    """`4 workers, 2 busy, scheduler`. only_schedule: this program has no workers."""
    workers, schedulers = children.of(Role.WORKER), children.of(Role.SCHEDULER)
    parts = [] if only_schedule else [f"{count(len(workers), 'worker')}, {sum(worker.busy for worker in workers)} busy"]
    if runs := sum(child.slot[W.RUNS] for child in schedulers):
        parts.append(f"scheduler with {count(runs, 'run')}")
    elif schedulers:
        parts.append("scheduler")
    return ", ".join(parts) or "no scheduler"


EVERY = 2.0  # seconds between two writes of the liveness file


class Status:
    """Shows the process title and systemd's status when they change, and READY once; feeds systemd's watchdog at each turn.
    Writes the liveness file in the master's own loop: if the loop hangs, the file gets old."""

    def __init__(self, state: State, title: Callable[[str], None], environ: Mapping[str, str]) -> None:
        self._state, self._title, self._environ = state, title, environ
        self._text, self.is_ready = "", False
        self._pool, self._start = state.plan.work.pool, proc.start_time(os.getpid())
        self._folder = os.getcwd()
        self._next_at, self._was_ready = 0.0, False
        self._complained = False

    def show(self) -> None:
        state, leads = self._state, self._state.plan.leads
        paused = state.paused or state.board.header(H.HELD)
        word = "stopping" if state.stopping else "paused" if paused else "down" if state.board.header(H.DOWN) else ""
        text = counted(state.children, only_schedule=not state.plan.work.workers) + (f", {word}" if word else "")
        if text != self._text:
            self._text = text
            self._title(text)
            state.notifier.status(text)
        state.notifier.watchdog()
        first, workers = state.children.serving(role=leads), len(state.children.of(Role.WORKER))
        enough = len(first) >= max(1, state.wants()[leads])
        if not self.is_ready and enough and all(child.ready for child in first):
            self.is_ready = True
            state.notifier.ready(text)
            state.log.info("master.ready", workers=workers)
        self._write_liveness(workers)

    def _write_liveness(self, workers: int) -> None:
        at, ready = time.monotonic(), self.is_ready
        if at < self._next_at and ready == self._was_ready:
            return
        self._next_at, self._was_ready = at + EVERY, ready
        silent = round(self._state.keeper.silent_for, 1)
        live = liveness.Live(os.getpid(), self._start, self._pool, workers, ready, silent, folder=self._folder)
        try:
            liveness.write(live, self._environ)
            self._complained = False
        except OSError as error:  # only health checks need the file
            if not self._complained:
                self._state.log.warning("liveness.write_failed", error=str(error), unseen="qd health --live")
            self._complained = True

    def remove_liveness(self) -> None:
        liveness.remove(self._pool, os.getpid(), self._environ)
