"""The scheduler's process, a child of the master: its boot, and the loop around Scheduler.turn().

    TERM: take no more ticks, let runs finish    USR2, CONT: pause, resume    CHLD: a run has ended    USR1: print stacks

The master watches its heartbeat, and kills it together with everything it has started.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import time
from collections.abc import Callable
from functools import partial

from setproctitle import setproctitle

from qd.app import Qd
from qd.config.settings import Settings
from qd.master.code import Assignment, ChildContext
from qd.process.channels import Ready
from qd.process.exit_codes import StopReason
from qd.process.scoreboard import H, SlotState, W, now
from qd.process.signals import Mailbox
from qd.scheduler.entry_job import SECONDS
from qd.scheduler.scheduler import Scheduler
from qd.worker import boot
from qd.worker.worker import ExitConditions

SIGNALS = (signal.SIGTERM, signal.SIGUSR2, signal.SIGCONT, signal.SIGCHLD)
BEFORE_KILL = 0.6  # seconds before the end of a stop at which the remaining runs are killed
POLL = 0.02  # seconds between two checks, for the keeper's first contact and at the end of a stop
FIRST_CONTACT = 5.0  # seconds to wait for the keeper's first contact; its server may be unreachable


def serve(
    app: Qd,
    context: ChildContext,
    assignment: Assignment,
    between_turns: Callable[[], None] | None = None,
) -> int:
    """Become the scheduler of this assignment and work until stopped. Returns the exit code."""
    context, stack_fd = boot.become_child(context, assignment)
    child = Child(app, app.settings, context, assignment, between_turns)
    os.register_at_fork(after_in_child=child.slot.detach)
    ready = Ready(slot=assignment.slot, generation=assignment.generation)
    return child.run(partial(context.sender.send, ready, stack_fd))


class Child:
    """The scheduler as a child process: passes signals to Scheduler, and its state to the scoreboard."""

    def __init__(
        self,
        app: Qd,
        settings: Settings,
        context: ChildContext,
        assignment: Assignment,
        between_turns: Callable[[], None] | None,
    ) -> None:
        self.entries, self.context, self.between_turns = app.schedule.here(settings.env), context, between_turns
        self.board, self.slot = context.board, context.board.slot(assignment.slot)
        self.mailbox = Mailbox()
        self.scheduler = Scheduler(
            app,
            settings,
            context.log,
            entries=self.entries,
            host=socket.gethostname(),
            owner=f"{context.token}/{assignment.slot}",
            force=settings.work.force,
        )
        self._signalled, self.force = assignment.paused, settings.work.force
        self.scheduler.beats(lambda seconds, *doing: self._beat(min(seconds, SECONDS), *doing))
        self.leaving = ExitConditions(settings.work, self.slot)
        self._opened = now()
        self._head = "qd: scheduler" + (f" [{settings.work.pool}]" if settings.work.pool else "")
        self._title = self._run = self._doing = ""

    def run(self, ready: Callable[[], None]) -> int:
        """Work until stopped and all runs have ended. `ready` is called once the signal handlers are installed."""
        self.mailbox.open(SIGNALS)
        self.leaving.open()
        self.slot[W.ENTRIES] = len(self.entries)
        self._beat()
        self._show()
        ready()
        try:
            why = StopReason.SIGNAL
            while not self._over:
                if not self.scheduler.runs.alive and (reason := self.leaving.reason(now(), 0)) is not None:
                    why = reason  # the master starts a replacement
                    self.scheduler.drain()
                wait = self._turn()
                self._show()
                if not self._over:
                    self.mailbox.peek(wait)
                self._after_wait()
            self.slot[W.STATE] = SlotState.IDLE  # an orderly exit
            return why.code
        finally:
            self.scheduler.close()
            self.mailbox.close()

    @property
    def _over(self) -> bool:
        return self.scheduler.drained and self.scheduler.idle

    def _turn(self) -> float:
        """Returns the seconds until the next turn."""
        self._read_signals()
        self.scheduler.paused = self._signalled or bool(self.board.header(H.HELD))
        self.scheduler.flags.down_here = bool(self.board.header(H.DOWN)) and not self.force
        keeper_unknown = not self.board.header(H.KEEPER_CONTACT) and (now() - self._opened) / 1e9 < FIRST_CONTACT
        if keeper_unknown and not self.scheduler.drained:  # it has not reported maintenance mode, or its absence
            return POLL
        wait = self.scheduler.turn()
        self._beat(doing="")
        if self.mailbox.repair() and self.board.header(H.STOP_AT):
            self.scheduler.drain()  # the app's code had replaced our handlers, so we may have missed SIGTERM
        return min(wait, self._before_the_end())

    def _before_the_end(self) -> float:
        """Seconds until the remaining runs are killed. This happens just before the master would kill them together with
        this process, so that they are reported and their leases freed."""
        at = self.board.header(H.STOP_AT)
        if not at or not self.scheduler.drained:
            return math.inf
        left = (at - now()) / 1e9 - BEFORE_KILL
        if left <= 0:
            self.scheduler.end()
        return max(POLL, left)

    def _read_signals(self) -> None:
        came = set(self.mailbox.read())
        if signal.SIGTERM in came and not self.scheduler.drained:
            self.scheduler.drain()
        if came >= {signal.SIGUSR2, signal.SIGCONT}:
            self._signalled = bool(self.board.header(H.PAUSED))  # the order of the two is unknown
        elif came & {signal.SIGUSR2, signal.SIGCONT}:
            self._signalled = signal.SIGUSR2 in came

    def _after_wait(self) -> None:
        if os.getppid() != self.context.master:  # for kernels that do not signal the master's death (macOS)
            os._exit(1)
        self._beat()
        if self.between_turns is not None:
            self.between_turns()

    def _beat(self, seconds: float = 0.0, doing: str | None = None) -> None:
        """A heartbeat; the next may take `seconds`. doing: the name of the current entry, or ""."""
        self.slot[W.BEAT] = now() + int(seconds * 1e9)
        if doing is not None and doing != self._doing:
            self._doing = doing
            self._describe()

    def _describe(self) -> None:
        """Note what the master reports if this process dies: the run and the current entry."""
        self.slot.describe(self._run.encode("utf-8", "replace"), self._doing.encode("utf-8", "replace"))

    # -- process title and status

    def _show(self) -> None:
        """The oldest run and how many there are, else the state."""
        running, paused, entries = self.scheduler.runs.running, self.scheduler.paused, len(self.entries)
        name, began = running[0] if running else ("", 0)
        changed = (len(running), began) != (self.slot[W.RUNS], self.slot[W.JOB_AT])
        self.slot[W.STATE] = SlotState.BUSY if running else SlotState.IDLE if paused else SlotState.WAITING
        if changed:
            self.slot[W.RUNS], self.slot[W.JOB_AT] = len(running), began
            self._run = name
            self._describe()
        text = self._title
        if not running:
            state = "paused" if paused else "down" if self.scheduler.flags.down_here else ""
            text = state or f"with {entries} {'entry' if entries == 1 else 'entries'}"
        elif changed:
            more = f" and {len(running) - 1} more" if running[1:] else ""
            since = time.localtime(time.time() - (now() - began) / 1e9)
            text = f"{name}{more} since {time.strftime('%H:%M:%S', since)}"
        if text != self._title:
            self._title = text
            setproctitle(f"{self._head} {text}")
