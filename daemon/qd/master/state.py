"""The state that the parts of the master share, and the clock of a stop. The parts read and change it.

Master ── State ──┬── plan, wanted, paused, stopping            what it must do
                  ├── codes, children, boots, keeper            what it has started
                  └── board, receiver, mailbox, log, notifier   how it communicates
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
from qd.process.scoreboard import Role, Scoreboard

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
        self.jobs = 0  # done by workers that have left
        self.handed_back = 0  # unfinished jobs that such workers returned to their queues

    def wants(self) -> dict[Role, int]:
        """How many children of each role must serve."""
        code = self.codes.serving
        schedulers = self.plan.schedulers(code.entries) if code is not None else 0
        return {Role.WORKER: self.wanted, Role.SCHEDULER: schedulers}

    @property
    def busy(self) -> int:
        """How many children run a job or a run of the schedule."""
        return sum(worker.busy for worker in self.children.workers.values())

    @property
    def running(self) -> int:
        """How many jobs are running; the runs of a scheduler count as one."""
        started, busy = (
            self.children.board.started,
            [worker.slot for worker in self.children.workers.values() if worker.busy],
        )
        return sum(len(started(slot)) or 1 for slot in busy)

    @property
    def jobs_done(self) -> int:
        """By all workers since the start."""
        return self.jobs + self.children.jobs_done
