"""The ended children: taken one by one, told, handed to the keeper, and what follows for the program.

child.ended -> template: refused, or looked after by spawning.py
            -> keeper: keeping.py starts another
            -> worker: Death -> told, its jobs are the keeper's; at boot or again and again: boots.py slows down
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from qd.master.code import Code
from qd.master.deaths import Death
from qd.master.telling import tell_death
from qd.process import child
from qd.process.exits import Exit, ending, told
from qd.process.scoreboard import Role, Verdict

if TYPE_CHECKING:
    from qd.master.loop import Master


class Reaping:
    def __init__(self, master: Master) -> None:
        self.master = master

    def reap(self) -> None:
        while (death := self.one()) is not None:
            if isinstance(death, Death):
                self._took_leave(death)

    def one(self) -> Death | int | None:
        """The next ended child: a worker's Death, or the pid of another; None when none has ended."""
        master, pid = self.master, child.ended()
        if pid is None:
            return None
        master.news.hear()  # its birth stands before its death
        code = master.codes.by_pid(pid)
        if code is not None:
            status, _ = child.reap(pid)
            self._template_died(code, status)
        elif master.codes.leaving.pop(pid, None) is not None:
            child.reap(pid)
        elif pid == master.keeping.pid:
            status, _ = child.reap(pid)
            expected = master.stopping is not None and master.stopping.keeper_told
            master.keeping.died(status, expected=expected, oom=master.children.oom.killed(status))
        else:
            return master.children.reap(pid) or pid
        return pid

    def _took_leave(self, death: Death) -> None:
        master, worker, slot = self.master, death.worker, death.worker.slot.number
        master.jobs += death.jobs
        if worker.role is Role.WORKER:
            master.handed_back += death.handed_back + (death.verdict is Verdict.HAND_BACK and bool(death.job))
            if death.is_crash and master.stopping is None:
                master.board.note_crash()
        if death.verdict is not None:
            tell_death(master.log, death, death.verdict)
            master.keeping.tell_dead(death)
        elif death.at_boot and not worker.draining and master.stopping is None:
            self._died_at_boot(death)
        else:
            master.log.debug(worker.event("left"), slot=slot, pid=worker.pid, how=told(death.status))
        if master.stopping is None and not worker.draining and not death.at_boot:
            self._judge_leave(death)

    def _died_at_boot(self, death: Death) -> None:
        master, worker = self.master, death.worker
        boots = master.boots[worker.role]
        delay = boots.died()
        master.log.error(worker.event("boot_failed"), how=death.how, deaths=boots.boot.count, retry_in=delay)
        coming = master.codes.coming
        if coming is not None and master.codes.serving is not None and worker.code == coming.number:
            master.rolling.refuse(f"its {worker.role.word}s do not boot")
        elif any(each.ever_ready for each in master.boots.values()):
            return  # the others go on
        elif (exit_code := boots.hopeless(death.exit_code)) is not None:
            master.stop(f"no {worker.role.word} could boot", exit_code, by_signal=True)

    def _judge_leave(self, death: Death) -> None:
        """A worker left that nobody asked to: with --once that is all, with --no-respawn it drains the rest (exit 1 after a
        crash or a kill, 12 for memory, else 0)."""
        master = self.master
        boots = master.boots[death.worker.role]
        if master.plan.once:
            master.stop("once", Exit.OK)
        elif not master.plan.respawn:
            leaves_with = Exit.MEMORY if death.exit_code == Exit.MEMORY else Exit.BUG if death.verdict else Exit.OK
            master.stop(f"no respawn: a {death.worker.role.word} left with {told(death.status)}", leaves_with)
        if death.jobs:
            boots.worked(death.worker)  # between two looks, it may be
        if master.stopping is None and death.fell_idle:
            delay = boots.fell(time.monotonic())
            if boots.fall.count > 1:
                event = death.worker.event("crash_loop")
                master.log.error(event, how=death.how, deaths=boots.fall.count, retry_in=delay)

    def _template_died(self, code: Code, status: int) -> None:
        master = self.master
        code.pid = 0
        exit_code = os.waitstatus_to_exitcode(status)
        if code is master.codes.coming and master.codes.serving is not None:
            master.rolling.refuse(f"its import ended with {told(status)}")
        elif master.stopping is None and not code.imported:
            known = exit_code in (Exit.IMPORT, Exit.CONFIG, Exit.USAGE)
            leaves_with = Exit(exit_code) if known else Exit.IMPORT
            what = "the look before the start" if leaves_with is Exit.CONFIG else "the app's import"
            master.stop(f"{what} ended with {told(status)}", leaves_with, by_signal=True)
        elif master.stopping is None:
            master.log.error("template.died", how=ending(status, oom=master.children.oom.killed(status)))
