"""What the parts of the master share. One object a program: the parts read it and change it, none of them holds another.

Master ── State ──┬── plan, wanted, paused, stopping     what is asked of it
                  ├── codes, children, boots, keeper     what it has started
                  └── board, ear, mailbox, log, notifier how it hears and speaks
"""

from __future__ import annotations

from qd.log import Log
from qd.master.boots import Boots
from qd.master.children import Children
from qd.master.code import Codes
from qd.master.keeping import Keeping
from qd.master.plan import Plan
from qd.master.stopping import Stopping
from qd.process import signals, systemd
from qd.process.scoreboard import Role, Scoreboard
from qd.process.talk import Ear


class State:
    def __init__(self, plan: Plan, log: Log, notifier: systemd.Notifier) -> None:
        self.plan, self.log, self.notifier = plan, log, notifier
        self.board = Scoreboard()
        self.children = Children(self.board)
        self.codes = Codes()
        self.ear = Ear()
        self.mailbox = signals.Mailbox()
        self.keeper = Keeping(self.board, log)
        self.boots = {role: Boots() for role in Role}
        self.wanted = plan.work.workers  # TTIN and TTOU change it
        self.paused = False
        self.stopping: Stopping | None = None
        self.started_at = 0.0  # monotonic; set by Master.run
        self.jobs = 0  # done by workers that have left
        self.handed_back = 0  # unfinished jobs that such workers returned to their queues

    def wants(self) -> dict[Role, int]:
        """How many children of each role must serve."""
        code = self.codes.serving
        return {
            Role.WORKER: self.wanted,
            Role.SCHEDULER: self.plan.schedulers(code.entries) if code is not None else 0,
        }

    @property
    def busy(self) -> int:
        """How many children have a job in hand, or a run of the schedule."""
        return sum(worker.busy for worker in self.children.workers.values())

    @property
    def jobs_done(self) -> int:
        """By all workers since the start."""
        return self.jobs + self.children.jobs_done
