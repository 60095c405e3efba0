"""What the master says: of the dead, of the living, and of itself to `ps` and systemd.

The master's sign of life in a file, written from its own loop: when the loop hangs, the file grows old.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping

from qd.log import Log
from qd.master.children import Children, Death, Worker
from qd.process import liveness, proc, systemd
from qd.process.scoreboard import Role, SlotState, Verdict, W

NOUNS = {Role.WORKER: "job", Role.SCHEDULER: "run"}  # what a child may have in hand
PLACES = {Role.WORKER: "queue", Role.SCHEDULER: "entry"}  # where it is from; whose turn it was, in the scheduler itself
NO_STACK = "none (it was stopped, or had blocked every signal)"


def tell_death(log: Log, death: Death, verdict: Verdict) -> None:
    """One line, and under it the stack where the worker's fault handler took one."""
    worker, words = death.worker, verdict.words
    fields = {
        "slot": worker.slot.number,
        "pid": worker.pid,
        "how": death.how,
        "reason": reason_of(death, verdict),
        "peak": f"{death.peak // 1_000_000}M",
        NOUNS[worker.role]: death.job or None,
        PLACES[worker.role]: death.queue or None,
        "took": death.took or None,
        "stack": NO_STACK if verdict in (Verdict.TIMEOUT, Verdict.CANCELLED) and not death.stack else None,
        "trace": death.stack or None,
    }
    log.line(words.level, words.event.format(child=worker.role.word), fields)


def reason_of(death: Death, verdict: Verdict) -> str | None:
    if verdict is Verdict.CRASH and death.worker.verdict is Verdict.CRASH:
        return "stopped answering"
    return verdict.words.killed_for or ("out of memory?" if death.oom is None else None)


def dump(log: Log, children: Children, wanted: int, paused: bool) -> None:
    """USR1: a line for each worker, and each worker's own stacks."""
    for worker in children.workers.values():
        slot = worker.slot
        doing = {NOUNS[worker.role]: slot.job, PLACES[worker.role]: slot.queue or None} if worker.busy else {}
        count = {"jobs": slot[W.JOBS]} if worker.role is Role.WORKER else {"entries": slot[W.ENTRIES]}
        log.info(worker.event("state"), slot=slot.number, pid=worker.pid, state=state_of(worker), **count, **doing)
        worker.send(signal.SIGUSR1)
    log.info("master.state", workers=len(children.of(Role.WORKER)), wanted=wanted, paused=paused)


def state_of(worker: Worker) -> str:
    state = worker.slot[W.STATE]
    return SlotState(state).name.lower() if state in list(SlotState) else "?"


def counted(children: Children, only_schedule: bool) -> str:
    """`4 workers, 2 busy, scheduler`. only_schedule: no worker is to be here."""
    workers, schedulers = children.of(Role.WORKER), children.of(Role.SCHEDULER)
    said = [] if only_schedule else [f"{len(workers)} workers, {sum(worker.busy for worker in workers)} busy"]
    if runs := sum(child.slot[W.RUNS] for child in schedulers):
        said.append(f"scheduler with {runs} {'run' if runs == 1 else 'runs'}")
    elif schedulers:
        said.append("scheduler")
    return ", ".join(said) or "no scheduler"


class StatusDisplay:
    """Process title and systemd's status, set when they change; READY once, the watchdog at each look."""

    def __init__(self, title: Callable[[str], None], notifier: systemd.Notifier) -> None:
        self._title, self._notifier = title, notifier
        self._said, self.is_ready = "", False

    def show(self, counted: str, state: str) -> None:
        text = counted + (f", {state}" if state else "")
        if text != self._said:
            self._said = text
            self._title(text)
            self._notifier.status(text)
        self._notifier.watchdog()

    def ready(self, children: list[Worker], wanted: int) -> bool:
        """True once: the first round of workers has booted; where none is to work, the scheduler."""
        if self.is_ready or len(children) < wanted or not all(worker.ready for worker in children):
            return False
        self.is_ready = True
        self._notifier.ready(self._said)
        return True


EACH = 2.0  # seconds between two signs


class Liveness:
    def __init__(self, pool: str, log: Log, environ: Mapping[str, str]) -> None:
        self._pool, self._log, self._environ = pool, log, environ
        self._start = proc.start_time(os.getpid())
        self._next_at, self._was_ready = 0.0, False
        self._complained = False

    def tell(self, workers: int, ready: bool, keeper_silent: float) -> None:
        at = time.monotonic()
        if at < self._next_at and ready == self._was_ready:
            return
        self._next_at, self._was_ready = at + EACH, ready
        try:
            liveness.write(
                liveness.Live(os.getpid(), self._start, self._pool, workers, ready, round(keeper_silent, 1)),
                self._environ,
            )
            self._complained = False
        except OSError as error:  # a comfort for health checks: it harms nothing but them
            if not self._complained:
                self._log.warning("liveness.write_failed", error=str(error), unseen="qd health --live")
            self._complained = True

    def end(self) -> None:
        liveness.remove(self._pool, os.getpid(), self._environ)
