"""The steps of a stop, at each look: interrupt, hand back, let the keeper settle, leave. Its clock is stopping.py.

drained -> interrupts() -> ends_now() -> no worker left -> keeper leaves -> template ends -> lingered -> over
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from qd.master.stopping import Stopping
from qd.process.scoreboard import H, State, Verdict, W, Why

if TYPE_CHECKING:
    from qd.master.loop import Master

BIRTH = 1.0  # seconds after the request to stop in which a child that is just starting leaves by itself


class Ending:
    def __init__(self, master: Master) -> None:
        self.master = master

    def go_on(self, stopping: Stopping) -> None:
        master, children = self.master, self.master.children
        master.board.set_header(H.STOP_AT, stopping.deadline_ns)
        for worker in children.workers.values():
            if stopping.ends_now():
                children.kill(worker, Verdict.HAND_BACK)
            elif stopping.interrupts() and worker.has_job and not worker.interrupted:
                worker.interrupted = True
                children.alarm(worker, Why.INTERRUPT)
        if master.busy and stopping.extend_due():
            master.notifier.extend(10.0)
        if stopping.ends_now() or time.monotonic() - stopping.began > BIRTH:
            self._end_births()
        if not children.workers:
            self._last_steps(stopping)

    def _end_births(self) -> None:
        """End children that hang before they can have a job, as in a library's fork hook, where TERM does not reach them.
        The template goes first: with it whatever it is forking, and nothing is born afterwards."""
        master, children = self.master, self.master.children
        starting = [
            worker
            for worker in children.workers.values()
            if worker.slot[W.STATE] == State.STARTING and not worker.ready
        ]
        if starting:
            master.codes.end()
        for worker in starting:
            children.kill(worker, Verdict.HAND_BACK)
        children.never_born(time.monotonic() + 1e9)

    def _last_steps(self, stopping: Stopping) -> None:
        """The workers are gone: let the keeper move their jobs and leave, then the template, then linger."""
        master = self.master
        if not stopping.keeper_told:
            stopping.keeper_told = True
            master.keeping.leave()
            master.codes.end()
        if master.keeping.pid and not stopping.keeper_late():
            return
        master.keeping.kill()
        if time.monotonic() >= stopping.linger and not stopping.over:
            stopping.over = True
            jobs, back = master.jobs_done, master.handed_back
            master.log.info("master.stopped", jobs=jobs, handed_back=back, exit=int(stopping.code))
