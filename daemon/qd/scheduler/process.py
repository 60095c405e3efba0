"""The scheduler's process: its boot, and the loop that gives Scheduler its turns. A child of the master.

    TERM: no more ticks, what runs may finish    USR2, CONT: pause, resume    CHLD: a run has ended    USR1: stacks

The master watches it by its sign of life, and kills it with all that it has started.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from setproctitle import setproctitle

from qd.app import Qd
from qd.config.settings import Settings
from qd.master.code import Assignment, ChildContext
from qd.process.channels import Ready
from qd.process.exit_codes import StopReason
from qd.process.scoreboard import H, SlotState, W, now
from qd.process.signals import Mailbox
from qd.schedule.entry import Entry
from qd.scheduler.entry_job import SECONDS
from qd.scheduler.scheduler import Scheduler
from qd.worker import boot
from qd.worker.worker import ExitConditions

T = TypeVar("T")
HEARD = (signal.SIGTERM, signal.SIGUSR2, signal.SIGCONT, signal.SIGCHLD)
BEFORE_KILL = 0.6  # seconds before the end of a stop at which the runs that are left are ended
LOOK = 0.02  # seconds between two looks for the keeper's first word, and at the end of a stop
FIRST_WORD = 5.0  # seconds for which the keeper's first word is waited for; it may have no server


def serve(
    app: Qd,
    settings: Settings,
    context: ChildContext,
    assignment: Assignment,
    between: Callable[[], None] | None = None,
) -> int:
    """Become the scheduler in `assignment` and work until told to leave. Returns the exit code.

    between: called between two turns.
    """
    context, stack_fd = boot.settled(context, assignment)
    child = Child(app, settings, app.schedule.here(settings.env), context, assignment, between)
    os.register_at_fork(after_in_child=child.slot.part)
    ready = Ready(slot=assignment.slot, generation=assignment.generation)
    return child.run(partial(context.sender.send, ready, stack_fd))


class Child:
    """The scheduler in its assignment: what it hears goes to Scheduler, and what that does onto the board.

    entries: those that run here. between: called between two turns.
    """

    def __init__(
        self,
        app: Qd,
        settings: Settings,
        entries: Sequence[Entry],
        context: ChildContext,
        assignment: Assignment,
        between: Callable[[], None] | None,
    ) -> None:
        self.entries, self.context, self.between = entries, context, between
        self.board, self.slot = context.board, context.board.slot(assignment.slot)
        self.mailbox = Mailbox()
        self.scheduler = Scheduler(
            app,
            settings,
            context.log,
            entries=entries,
            host=socket.gethostname(),
            owner=f"{context.token}/{assignment.slot}",
            force=settings.work.force,
        )
        self.scheduler.paused, self.force = assignment.paused, settings.work.force
        self.scheduler.beats(lambda seconds, *doing: self._about(min(seconds, SECONDS), *doing))
        self.leaving = ExitConditions(settings.work, self.slot)
        self._opened = now()
        self._head = "qd: scheduler" + (f" [{settings.work.pool}]" if settings.work.pool else "")
        self._title = self._run = self._doing = ""

    def run(self, ready: Callable[[], None]) -> int:
        """Until it is told to leave and nothing runs any more. `ready` is called once it hears signals."""
        self.mailbox.open(HEARD)
        self.leaving.open()
        self.slot[W.ENTRIES] = len(self.entries)
        self._about()
        self._show()
        ready()
        try:
            why = StopReason.SIGNAL
            while not self._over:
                if not self.scheduler.runs.alive and (reason := self.leaving.reason(0)) is not None:
                    why = reason  # another takes its place
                    self.scheduler.drain()
                wait = self._turn()
                self._show()
                if not self._over:
                    self.mailbox.peek(wait)
                self._after_wait()
            self.slot[W.STATE] = SlotState.IDLE  # it leaves by itself
            return why.code
        finally:
            self.scheduler.close()
            self.mailbox.close()

    @property
    def _over(self) -> bool:
        return self.scheduler.drained and self.scheduler.idle

    def _turn(self) -> float:
        """Returns the seconds until the next one."""
        self._hear()
        self.scheduler.down = bool(self.board.header(H.DOWN)) and not self.force
        if self._knows_nothing() and not self.scheduler.drained:
            return LOOK
        wait = self.scheduler.turn()
        self._about(doing="")
        if self.mailbox.mend() and self.board.header(H.STOP_AT):
            self.scheduler.drain()  # what the app's own code did to our handlers may have cost us the word
        return min(wait, self._before_the_end())

    def _before_the_end(self) -> float:
        """Seconds until the runs that are left are ended: a moment before the master would kill them with us, so that they
        are told, and free their leases."""
        at = self.board.header(H.STOP_AT)
        if not at or not self.scheduler.drained:
            return math.inf
        left = (at - now()) / 1e9 - BEFORE_KILL
        if left <= 0:
            self.scheduler.end()
        return max(LOOK, left)

    def _knows_nothing(self) -> bool:
        """The keeper has not said yet whether this is maintenance."""
        return not self.board.header(H.KEEPER_CONTACT) and (now() - self._opened) / 1e9 < FIRST_WORD

    def _hear(self) -> None:
        came = set(self.mailbox.read())
        if signal.SIGTERM in came and not self.scheduler.drained:
            self.scheduler.drain()
        if came >= {signal.SIGUSR2, signal.SIGCONT}:
            self.scheduler.paused = bool(self.board.header(H.PAUSED))  # which came last nobody can tell
        elif came & {signal.SIGUSR2, signal.SIGCONT}:
            self.scheduler.paused = signal.SIGUSR2 in came

    def _after_wait(self) -> None:
        if os.getppid() != self.context.master:  # where the kernel does not tell (macOS)
            os._exit(1)
        self._about()
        if self.between is not None:
            self.between()

    def _about(self, seconds: float = 0.0, doing: str | None = None) -> None:
        """A sign of life for the master; the next one may take `seconds`. doing: the entry whose turn it is, "" nobody's."""
        self.slot[W.BEAT] = now() + int(seconds * 1e9)
        if doing is not None and doing != self._doing:
            self._doing = doing
            self._note()

    def _note(self) -> None:
        """What the master tells when this process dies: what ran, and whose turn it was."""
        self.slot.say(self._run.encode("utf-8", "replace"), self._doing.encode("utf-8", "replace"))

    # -- what people see

    def _show(self) -> None:
        running = self.scheduler.runs.running
        if len(running) != self.slot[W.RUNS] or (running and self.slot[W.JOB_AT] != running[0][1]):
            self._show_runs(running)
        state = "paused" if self.scheduler.paused else "down" if self.scheduler.down else ""
        self.slot[W.STATE] = (
            SlotState.BUSY if running else SlotState.IDLE if self.scheduler.paused else SlotState.WAITING
        )
        if not running:
            self._say(state or f"with {len(self.entries)} {'entry' if len(self.entries) == 1 else 'entries'}")

    def _show_runs(self, running: list[tuple[str, int]]) -> None:
        """The one that began first, with how many there are."""
        name, began = running[0] if running else ("", 0)
        since = time.time() - (now() - began) / 1e9 if running else 0
        self.slot[W.RUNS], self.slot[W.JOB_AT] = len(running), began
        self._run = name
        self._note()
        if running:
            more = f" and {len(running) - 1} more" if running[1:] else ""
            self._say(f"{name}{more} since {time.strftime('%H:%M:%S', time.localtime(since))}")

    def _say(self, text: str) -> None:
        if text != self._title:
            self._title = text
            setproctitle(f"{self._head} {text}")
