"""The state that the parts of the master share, and the steps of a stop. The parts read and change it.

Master ── State ──┬── plan, wanted, paused, stopping            what it must do
                  ├── codes, children, boots, keeper            what it has started
                  └── board, receiver, mailbox, log, notifier   how it communicates

begin_stop -> drained -> interrupts() -> ends_now() -> no worker left -> keeper leaves -> template ends -> lingered -> over
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from qd.log import Log
from qd.master.children import BootBackoff, Children
from qd.master.code import AppImports, MasterPlan
from qd.master.keeper_process import KeeperProcess
from qd.process import signals, systemd
from qd.process.channels import MessageReceiver, Waker
from qd.process.exit_codes import Exit
from qd.process.scoreboard import H, Role, Scoreboard, Verdict, W, Why

MAX_WORKERS = 200  # of the 256 slots; the rest are for workers that boot while others leave
BIRTH = 1.0  # seconds after the request to stop within which a child that is just starting exits without a kill
AGAIN = 1.0  # seconds: a second signal within this time counts as the same; stopasgroup and Ctrl-C deliver twice
HURRY = 1.5  # seconds a job has after the second signal
KEEPER = 2.5  # seconds the keeper has to move the jobs of dead workers
EXTEND = 2.0  # seconds between two requests to systemd for more time


@dataclass(slots=True)
class StopClock:
    code: Exit
    timeout: float  # seconds, 0: no limit
    linger: float  # monotonic moment before which the program does not exit, unless a signal stops it
    signalled: bool  # requested by a signal
    began: float = field(init=False)
    keeper_dismissed: bool = False
    over: bool = False
    _deadline: float = 0.0
    _hurried: bool = False
    _keeper_dismissed_at: float = 0.0
    _extended_at: float = 0.0

    def __post_init__(self) -> None:
        self.began = time.monotonic()
        self._deadline = self.began + self.timeout if self.timeout else 0.0

    def again(self) -> bool:
        """Handle a further signal. True: it means "at once". The first one after a stop without a signal only ends the
        lingering."""
        now = time.monotonic()
        self.linger = 0.0
        if not self.signalled:
            self.signalled, self.began = True, now
            return False
        if now - self.began < AGAIN or self._hurried:
            return False
        self._hurried = True
        self._deadline = min(self._deadline or now + HURRY, now + HURRY)
        return True

    @property
    def deadline_ns(self) -> int:
        return int(self._deadline * 1e9)

    def interrupts(self) -> bool:
        """Running jobs must be interrupted now: min(5 s, a fifth) before the end, or at once in a hurry."""
        margin = min(5.0, self.timeout / 5)
        return self._hurried or (self._deadline > 0 and time.monotonic() >= self._deadline - margin)

    def ends_now(self) -> bool:
        return self._deadline > 0 and time.monotonic() >= self._deadline

    def keeper_late(self) -> bool:
        now = time.monotonic()
        self._keeper_dismissed_at = self._keeper_dismissed_at or now
        return now - self._keeper_dismissed_at > KEEPER

    def extend_due(self) -> bool:
        now = time.monotonic()
        if now - self._extended_at < EXTEND:
            return False
        self._extended_at = now
        return True


class State:
    def __init__(self, plan: MasterPlan, log: Log, notifier: systemd.Notifier) -> None:
        self.plan, self.log, self.notifier = plan, log, notifier
        self.board = Scoreboard(plan.work.lanes)
        self.children = Children(self.board)
        self.codes = AppImports()
        self.receiver = MessageReceiver()
        self.waker = Waker()
        self.mailbox = signals.Mailbox()
        self.keeper = KeeperProcess(self.board, log)
        self.boots = {role: BootBackoff() for role in Role}
        self.wanted = plan.work.workers  # TTIN and TTOU change it
        self.paused = False
        self.stopping: StopClock | None = None
        self.started_at = 0.0  # monotonic; set by Master.run
        self.jobs = self.done = 0  # of workers that have left: how many they have run, and how many of these are done
        self.handed_back = 0  # unfinished jobs that such workers returned to their queues

    def wants(self) -> dict[Role, int]:
        """How many children of each role must serve."""
        code = self.codes.serving
        schedulers = self.plan.schedulers(code.entries) if code is not None else 0
        return {Role.WORKER: self.wanted, Role.SCHEDULER: schedulers}

    @property
    def jobs_run(self) -> int:
        """By all workers since the start."""
        return self.jobs + sum(worker.slot[W.JOBS] for worker in self.children.of(Role.WORKER))

    @property
    def jobs_done(self) -> int:
        return self.done + sum(worker.slot[W.DONE] for worker in self.children.of(Role.WORKER))

    def resize(self, workers: int) -> None:
        self.wanted = min(max(1, workers), MAX_WORKERS) if self.plan.work.workers else 0
        self.log.info("master.resized", workers=self.wanted)

    # -- the steps of a stop

    def begin_stop(self, reason: str, code: Exit, *, by_signal: bool = False) -> None:
        """Begin to stop: drain the workers, hand back jobs still running at the deadline, let the keeper settle, leave.

        Args:
            reason: Goes into the log line `master.stopping`.
            code: What the program exits with.
            by_signal: Leave as soon as everything is settled, without waiting for `min_uptime`.
        """
        work, busy = self.plan.work, [worker for worker in self.children.workers.values() if worker.busy]
        # The runs of a scheduler count as one.
        running = sum(len(self.board.started(worker.slot)) or 1 for worker in busy)
        fate = "handed back" if any(worker.has_job for worker in busy) else "ended"
        hint = f"work still running then is {fate}; a second signal ends it now"
        linger = 0.0 if by_signal else self.started_at + work.min_uptime
        self.stopping = StopClock(code, work.stop_timeout, linger, by_signal)
        if code is Exit.OK and not by_signal:  # --stop-when-empty may be done before all workers are ready
            self.notifier.ready("")
        self.notifier.stopping()
        if self.codes.coming is not None and not self.codes.coming.imported:
            self.codes.give_up()
        # Set before any child is signaled: a child that drains reads how long it has.
        self.board.set_header(H.STOP_AT, self.stopping.deadline_ns)
        for worker in self.children.workers.values():
            worker.drain()
        # Logged after the signals: once this line is written, no worker takes another job.
        deadline = work.stop_timeout or None
        fields = {"running": running, "deadline": deadline, "hint": hint if running and deadline else None}
        self.log.info("master.stopping", reason=reason, **fields)

    def go_on_stopping(self, clock: StopClock) -> None:
        self.board.set_header(H.STOP_AT, clock.deadline_ns)
        for worker in self.children.workers.values():
            if clock.ends_now():
                self.children.kill(worker, Verdict.HAND_BACK)
            elif clock.interrupts() and worker.has_job and not worker.interrupted:
                worker.interrupted = True
                self.children.alarm(worker, Why.INTERRUPT)
        if any(worker.busy for worker in self.children.workers.values()) and clock.extend_due():
            self.notifier.extend(10.0)
        if clock.ends_now() or time.monotonic() - clock.began > BIRTH:
            self._end_births()
        if not self.children.workers:
            self._last_steps(clock)

    def _end_births(self) -> None:
        """Kill children that hang before they can have a job, for instance in a library's fork hook, where TERM has no
        effect. The template is killed first, with any child it is forking, so that no more are born."""
        starting = [worker for worker in self.children.workers.values() if worker.is_starting]
        if starting:
            self.codes.end()
        for worker in starting:
            self.children.kill(worker, Verdict.HAND_BACK)
        self.children.forget_unborn(time.monotonic() + 1e9)

    def _last_steps(self, clock: StopClock) -> None:
        """All workers have ended: let the keeper move their jobs and leave, then end the template, then linger."""
        if not clock.keeper_dismissed:
            clock.keeper_dismissed = True
            self.keeper.leave()
            self.codes.end()
        if self.keeper.pid and not clock.keeper_late():
            return
        self.keeper.kill()
        if time.monotonic() >= clock.linger and not clock.over:
            clock.over = True
            self.log.info("master.stopped", jobs=self.jobs_done, handed_back=self.handed_back, exit=int(clock.code))
