"""`qd work --workers 0`: one worker in this very process, for breakpoints. No fork around the job, and no timeout.

A keeper runs beside it, so that the lease of the job at a breakpoint is renewed for as long as it takes.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from qd import config
from qd.connectors.manager import open_queue
from qd.keeper import loop as keeper
from qd.log import Log
from qd.master.plan import Hands, Seat
from qd.process import child, signals
from qd.process.exits import Exit
from qd.process.scoreboard import H, Scoreboard, State, W, now
from qd.process.talk import Ear
from qd.worker import boot, template
from qd.worker.loop import Worker

if TYPE_CHECKING:
    from qd.app import Qd
    from qd.config import Settings


def run_inline(settings: Settings, load: Callable[[dict[str, object] | None], Settings], token: str) -> int:
    """Until a signal, or what --once, --max-jobs and --max-time say."""
    app = template.imported(settings, lambda app: without_timeout(load(app.said)))
    if isinstance(app, Exit):
        return int(app)
    board, ear, log = Scoreboard(), Ear(), Log("worker", format=settings.work.log_format, level=settings.work.log_level)
    board.set_header(H.FORKED_AT, now())
    hands = Hands(board, ear.voice, token, os.getpid(), log)
    slot = board.slot(0)
    slot[W.PID], slot[W.GENERATION], slot[W.STATE] = os.getpid(), 1, State.STARTING
    line, pid = start_keeper(hands, app)
    queue = open_queue(app.settings, app.settings.work.connection, token=token, slot=0, title="qd:inline:worker")
    boot.log_job_records(log)
    try:
        code = Worker(app, app.settings, queue, replace(hands, master=os.getppid()), Seat(0, 1, False)).run()
    finally:
        line.close()
        os.waitpid(pid, 0)
    return 0 if code in (Exit.LIMIT, Exit.OK) else code


def without_timeout(settings: Settings) -> Settings:
    return replace(settings, work=replace(settings.work, timeout=0.0, workers=1))


def start_keeper(hands: Hands, app: Qd) -> tuple[socket.socket, int]:
    line, other = socket.socketpair()
    resolved = config.from_json(config.to_json(app.settings))

    def body() -> int:
        line.close()
        signals.deaf(signal.SIGTERM)
        return keeper.run(hands, other, resolved)

    pid = child.fork(body)
    other.close()
    return line, pid
