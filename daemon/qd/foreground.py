"""`qd work --workers 0`: one worker in this process, for breakpoints. No fork around the job, and no timeout.

A keeper child renews the lease of the job for as long as it is at a breakpoint. Between two jobs this worker does what a
master would do: it reads the keeper's messages, replaces a dead keeper, and notices that the queues are empty.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from qd import config
from qd.drivers.base import Factory
from qd.drivers.connections import gaps_of, open_queue
from qd.keeper import keeper
from qd.log import Log
from qd.master.code import Assignment, ChildContext
from qd.master.master import Emptiness
from qd.master.state import AGAIN
from qd.process import fork, signals
from qd.process.channels import Imported, MessageReceiver, OrderPipe, Restart
from qd.process.exit_codes import Exit, StopReason, ending, of_program
from qd.process.scoreboard import H, Scoreboard, SlotState, W, Why, now
from qd.worker import boot, queues
from qd.worker.timeout import Alarm
from qd.worker.worker import Worker, note_sigterm

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.config.settings import Settings

T = TypeVar("T")
Load = Callable[[dict[str, object] | None], "Settings"]
Announce = Callable[[Log, "Settings", Imported], None]


def run_inline(settings: Settings, load: Load, token: str, announce: Announce) -> int:
    """Work until a signal, `qd restart`, or the end that --once, --stop-when-empty, --max-jobs or --max-time set. Returns
    the exit code."""
    work = settings.work
    log = Log("worker", format=work.log_format, level=work.log_level, jobs=work.log_jobs)
    board, receiver, began = Scoreboard(), MessageReceiver(), now()
    app = boot.imported(settings, lambda app: load(app._code_settings), log)
    if isinstance(app, Exit):
        return int(app)
    limits = dict[str, str](gaps_of(app.settings, app.settings.work.connection, app.connections.own).items())
    unserved, jobs = queues.unserved(app, app.settings), len(app._registry.names())
    announce(log, app.settings, Imported(0, jobs, 0, unserved, [], limits, settings="", preload=False, warnings=[]))
    board.set_header(H.FORKED_AT, began)
    context = ChildContext(board, receiver.sender, token, os.getpid(), log)
    slot = board.slot(0)
    slot[W.PID], slot[W.GENERATION], slot[W.STATE] = os.getpid(), 1, SlotState.STARTING
    boot.log_job_records(log)
    boot.print_by_line()
    keeper_child = KeeperChild(context, app.settings, app.connections.own)
    worker = ForegroundWorker(app, replace(context, master=os.getppid()), receiver, keeper_child)
    try:
        code = of_program(worker.run())
    finally:
        keeper_child.end()
    log.info("worker.stopped", jobs=slot[W.DONE], exit=code)
    return code


class Untimed(Alarm):
    """Never ends a job: only its user does."""

    def guard(self, body: Callable[[], T], seconds: float) -> T:
        return super().guard(body, 0.0)


class KeeperChild:
    """The keeper as a child of this process."""

    def __init__(self, context: ChildContext, settings: Settings, own: Mapping[str, Factory]) -> None:
        self.context, self.settings, self.own = context, config.from_json(config.to_json(settings)), own
        self._start()

    def _start(self) -> None:
        orders = OrderPipe()

        def body() -> int:
            orders.close()
            signals.deaf(signal.SIGTERM)
            return keeper.run(self.context, orders.child_end, self.settings, own=self.own)

        self._orders, self._started = orders, time.monotonic()
        self.pid = fork.fork(body)
        orders.child_end.close()

    def watch(self) -> None:
        """Replace a dead keeper: without a keeper no job is reserved."""
        if time.monotonic() - self._started < 1.0:
            return
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.context.log.error("keeper.died", how=ending(status))
            self._orders.close()
            self._start()

    def end(self) -> None:
        self._orders.dismiss()
        os.waitpid(self.pid, 0)


class ForegroundWorker(Worker):
    alarm_type = Untimed

    def __init__(self, app: Qd, context: ChildContext, receiver: MessageReceiver, keeper_child: KeeperChild) -> None:
        settings = app.settings
        name, own = settings.work.connection, app.connections.own
        queue = open_queue(settings, name, token=context.token, slot=0, title="qd:inline:worker", own=own)
        assignment = Assignment(0, 1, False)
        super().__init__(app, queue, context, assignment, between=self._read_messages)
        self.receiver, self.keeper_child, self.emptiness = receiver, keeper_child, Emptiness()
        self._stop_requested_at = 0.0

    def _open(self) -> None:
        super()._open()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """The first signal lets the current job finish; one that arrives AGAIN seconds later hands it back."""
        at = time.monotonic()
        if self.mailbox.fd < 0:
            return  # already leaving
        if not self._stop_requested_at:
            self._stop_requested_at = at
            note_sigterm(signal.SIGTERM)
            self.mailbox.post(signal.SIGTERM)
        elif at - self._stop_requested_at >= AGAIN:
            self.slot[W.WHY] = Why.INTERRUPT | (self.slot[W.TURN] & 0xFFFFFFFF) << 8
            os.kill(os.getpid(), signal.SIGALRM)

    def _reason_to_stop(self) -> StopReason | None:
        self._read_messages()
        return super()._reason_to_stop()

    def _read_messages(self) -> None:
        self.keeper_child.watch()
        for message, fd in self.receiver.read(self._reject):
            if fd is not None:
                os.close(fd)
            if isinstance(message, Restart):
                self._leave(message.by)

    def _reject(self, error: Exception) -> None:
        self.log.warning("master.message_rejected", error=str(error))

    def _wait(self) -> None:
        if not self._leave_when_empty():
            super()._wait()

    def _idle(self) -> None:
        """In maintenance mode no job may be reserved, so the queues count as empty."""
        super()._idle()
        if self.shut_queues.holds and not self.paused:
            self._leave_when_empty()

    def _leave_when_empty(self) -> bool:
        reason = self.emptiness.reason(True, self.jobs, self.work, held=bool(self.shut_queues.shut))
        if reason is not None:
            self._leave(reason)
        return reason is not None

    def _leave(self, reason: str) -> None:
        self.log.info("worker.stopping", reason=reason)
        self.stop_requested = True
