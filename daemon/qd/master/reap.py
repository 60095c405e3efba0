"""Reaps ended children one by one, logs them, and decides what follows for the program.

child.ended -> template: the reload is refused, or reload.py starts another
            -> keeper: keeper_process.py starts another
            -> worker: Death -> log, report to the keeper; BootBackoff slows the next spawn after repeated deaths
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from qd.master.children import Death
from qd.master.code import AppImport
from qd.master.reload import Reload
from qd.master.shutdown import begin
from qd.master.state import State
from qd.master.status import log_death
from qd.process import fork
from qd.process.exit_codes import Exit, ending, of_program
from qd.process.scoreboard import H, Role, Verdict


class Reaper:
    def __init__(self, state: State, handle_messages: Callable[[], None], reload: Reload) -> None:
        self.state, self._handle_messages, self.reload = state, handle_messages, reload

    def reap(self) -> None:
        while (death := self.one()) is not None:
            if isinstance(death, Death):
                self._worker_ended(death)

    def one(self) -> Death | int | None:
        """The next ended child: a worker's Death, or the pid of another; None when none has ended."""
        state, pid = self.state, fork.ended()
        if pid is None:
            return None
        self._handle_messages()  # the report of its birth must be handled before its death
        code = state.codes.by_pid(pid)
        if code is not None:
            status, _ = fork.reap(pid)
            self._template_died(code, status)
        elif pid in state.codes.leaving:
            state.codes.leaving.remove(pid)
            fork.reap(pid)
        elif pid == state.keeper.pid:
            status, _ = fork.reap(pid)
            expected = state.stopping is not None and state.stopping.keeper_dismissed
            state.keeper.died(status, expected=expected, oom=state.children.oom.killed(status))
        else:
            return state.children.reap(pid) or pid
        return pid

    def _worker_ended(self, death: Death) -> None:
        state, worker, slot = self.state, death.worker, death.worker.slot.number
        state.jobs += death.jobs
        if worker.role is Role.WORKER:
            state.handed_back += death.handed_back + (death.running if death.verdict is Verdict.HAND_BACK else 0)
            if death.is_crash and state.stopping is None:
                state.board.note_crash()
        if death.verdict is not None:
            log_death(state.log, death, death.verdict)
            state.keeper.report_death(death)
        elif death.at_boot and not worker.draining and state.stopping is None:
            self._died_at_boot(death)
        else:
            state.log.debug(worker.event("left"), slot=slot, pid=worker.pid, how=ending(death.status))
        if state.stopping is None and not worker.draining and not death.at_boot:
            self._judge_leave(death)

    def _died_at_boot(self, death: Death) -> None:
        state, worker = self.state, death.worker
        boots = state.boots[worker.role]
        delay = boots.boot.step()
        state.log.error(worker.event("boot_failed"), how=death.how, deaths=boots.boot.count, retry_in=delay)
        coming = state.codes.coming
        if coming is not None and state.codes.serving is not None and worker.code == coming.number:
            self.reload.refuse(f"its {worker.role.word}s do not boot")
        elif any(each.ever_ready for each in state.boots.values()):
            return  # the others continue
        elif (exit_code := boots.hopeless(death.exit_code)) is not None:
            begin(state, f"no {worker.role.word} could boot", exit_code, by_signal=True)

    def _judge_leave(self, death: Death) -> None:
        """A worker left without a request: with --once the program ends; with --no-respawn it drains the others (exit 1
        after a crash or a kill, 12 for memory, else 0)."""
        state = self.state
        boots = state.boots[death.worker.role]
        if state.plan.work.once:
            begin(state, "once", Exit.OK)
        elif state.plan.work.no_respawn:
            crashed = death.verdict is not None and death.exit_code != Exit.MEMORY
            how = f"a {death.worker.role.word} left with {ending(death.status)}"
            begin(state, f"no respawn: {how}", Exit.BUG if crashed else Exit(of_program(death.exit_code)))
        if death.jobs:
            boots.worked(death.worker)  # it may have come and gone between two turns
        if state.stopping is None and death.fell_idle:
            delay = boots.fell(time.monotonic())
            if boots.fall.count > 1:
                state.board.count(H.CRASH_LOOPS)
                event = death.worker.event("crash_loop")
                state.log.error(event, how=death.how, deaths=boots.fall.count, retry_in=delay)

    def _template_died(self, code: AppImport, status: int) -> None:
        state = self.state
        code.pid = 0
        exit_code = os.waitstatus_to_exitcode(status)
        if code is state.codes.coming and state.codes.serving is not None:
            self.reload.refuse(f"its import ended with {ending(status)}")
        elif state.stopping is None and not code.imported:
            known = exit_code in (Exit.IMPORT, Exit.CONFIG, Exit.USAGE)
            leaves_with = Exit(exit_code) if known else Exit.IMPORT
            what = "the check before the start" if leaves_with is Exit.CONFIG else "the app's import"
            begin(state, f"{what} ended with {ending(status)}", leaves_with, by_signal=True)
        elif state.stopping is None:
            state.log.error("template.died", how=ending(status, oom=state.children.oom.killed(status)))
