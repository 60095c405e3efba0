"""What children report, and how they end: one by one, with what follows for the program.

message -> accepted if it is well-formed and agrees with the master's own state, which may have changed meanwhile

child.ended -> template: the reload is refused, or reload.py starts another
            -> keeper: keeper_process.py starts another
            -> worker: Death -> log, report to the keeper; BootBackoff slows the next spawn after repeated deaths
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from qd.master.children import Death, Worker
from qd.master.code import AppImport
from qd.master.reload import Reload
from qd.master.spawn import Spawner
from qd.master.state import State
from qd.master.status import log_death
from qd.process import channels, fork
from qd.process.exit_codes import Exit, ending, of_program
from qd.process.scoreboard import H, Role, Verdict, Why


class Reports:
    def __init__(
        self, state: State, spawner: Spawner, reload: Reload, announce: Callable[[channels.Imported], None]
    ) -> None:
        """announce: called with the report of the app's first import, to log the first line."""
        self.state, self.spawner, self.reload, self._announce = state, spawner, reload, announce

    # -- messages (process/channels.py)

    def handle(self) -> None:
        log = self.state.log
        for message, fd in self.state.receiver.read(lambda e: log.warning("master.message_rejected", error=str(e))):
            self._act(message, fd)

    def _act(self, message: channels.AnyMessage, fd: int | None) -> None:
        """fd: the stack file of a child that is ready. Any other descriptor is closed."""
        state, worker = self.state, None
        if isinstance(message, channels.ChildMessage):
            worker = state.children.found(message.slot, message.generation)
        if fd is not None and not (worker is not None and isinstance(message, channels.Ready)):
            os.close(fd)
        match message:
            case channels.Imported():
                self._on_imported(message)
            case channels.ImportFailed(code=number, error=error):
                if (failed := state.codes.by_number(number)) is not None:
                    failed.error = error
            case channels.Ready() if worker is not None:
                self._on_ready(worker, fd)
            case channels.Born():
                self._on_born(message, worker)
            case channels.Unborn(error=error) if worker is not None:
                state.children.forget(worker)
                self.spawner.refused(worker.role, error)
            case channels.Resize(workers=workers):
                state.resize(workers)
            case channels.Restart():
                self._on_restart(message)
            case channels.Lost(turn=turn) if worker is not None and worker.has_job:
                state.children.alarm(worker, Why.LEASE, turn)
            case channels.Cancel(turn=turn) if worker is not None:
                state.children.cancel(worker, turn)
            case channels.Changed():
                coming = state.codes.coming
                code = coming if coming is not None and coming.imported else state.codes.serving
                if code is not None and code.number == message.code:
                    self.reload.request(f"changed: {message.file}")

    def _on_imported(self, message: channels.Imported) -> None:
        state = self.state
        code = state.codes.by_number(message.code)
        if code is None or code.imported:
            return
        code.settings, code.entries = message.settings, message.entries
        if not (code.preload and message.preload):
            state.codes.without_template(code)
        for line in message.warnings:
            state.log.warning("app.imported", warning=line)
        if self.reload.imported(code):
            self._announce(message)

    def _on_born(self, message: channels.Born, worker: Worker | None) -> None:
        state = self.state
        if worker is None:  # given up before it was born
            return fork.kill_group(message.pid)
        self.spawner.born(worker)
        state.children.born(worker, message.pid)
        if worker.draining or state.stopping is not None:
            worker.send(signal.SIGTERM)

    def _on_ready(self, worker: Worker, fd: int | None) -> None:
        state = self.state
        worker.is_ready(fd)
        state.boots[worker.role].ready()
        if worker.draining or state.stopping is not None:
            worker.send(signal.SIGTERM)
        else:  # the state may have changed before the worker handled signals
            worker.send(signal.SIGUSR2 if state.paused else signal.SIGCONT)
            if missing := state.boots[worker.role].missing:
                state.log.info(
                    worker.event("replaced"), slot=worker.slot.number, pid=worker.pid, replaces=missing.pop(0)
                )

    def _on_restart(self, message: channels.Restart) -> None:
        state = self.state
        newest = state.codes.coming or state.codes.serving
        if message.rolling and newest is not None and newest.forked_ns > message.at:
            return  # a new keeper has read the stamp again, and this code is newer
        if message.rolling:
            self.reload.request("qd restart --rolling")
        elif state.stopping is None:
            state.begin_stop(message.by, Exit.OK)

    # -- ends

    def reap(self) -> None:
        while (death := self.reap_one()) is not None:
            if isinstance(death, Death):
                self._worker_ended(death)

    def reap_one(self) -> Death | int | None:
        """The next ended child: a worker's Death, or the pid of another; None when none has ended."""
        state, pid = self.state, fork.ended()
        if pid is None:
            return None
        self.handle()  # the report of its birth must be handled before its death
        code = next((each for each in state.codes.both() if each.pid == pid), None)
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
        state.done += death.done
        if worker.role is Role.WORKER:
            state.handed_back += death.handed_back + (death.running if death.verdict is Verdict.HAND_BACK else 0)
            if death.is_crash and state.stopping is None:
                state.board.note_crash()
        if death.verdict is not None:
            log_death(state.log, death, death.verdict)
            state.keeper.report_death(death)
            if state.stopping is None and not worker.draining:
                state.boots[worker.role].missing.append(worker.pid)
        elif not worker.ready and not worker.draining and state.stopping is None:
            self._died_at_boot(death)
        else:
            state.log.debug(worker.event("left"), slot=slot, pid=worker.pid, how=ending(death.status))
        if state.stopping is None and not worker.draining and worker.ready:
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
            state.begin_stop(f"no {worker.role.word} could boot", exit_code, by_signal=True)

    def _judge_leave(self, death: Death) -> None:
        """A worker left without a request: with --once the program ends; with --no-respawn it drains the others (exit 1
        after a crash or a kill, 12 for memory, else 0)."""
        state = self.state
        boots = state.boots[death.worker.role]
        if state.plan.work.once:
            state.begin_stop("once", Exit.OK)
        elif state.plan.work.no_respawn:
            crashed = death.verdict is not None and death.exit_code != Exit.MEMORY
            how = f"a {death.worker.role.word} left with {ending(death.status)}"
            state.begin_stop(f"no respawn: {how}", Exit.BUG if crashed else Exit(of_program(death.exit_code)))
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
        known = exit_code in (Exit.IMPORT, Exit.CONFIG, Exit.USAGE)
        leaves_with = Exit(exit_code) if known else Exit.IMPORT
        if code is state.codes.coming and state.codes.serving is not None:
            danger = f"a restart by its supervisor would end with exit {leaves_with}"
            self.reload.refuse(f"its import ended with {ending(status)}", code.error, danger)
        elif state.stopping is None and not code.imported:
            what = "the check before the start" if leaves_with is Exit.CONFIG else "the app's import"
            state.begin_stop(f"{what} ended with {ending(status)}", leaves_with, by_signal=True)
        elif state.stopping is None:
            state.log.error("template.died", how=ending(status, oom=state.children.oom.killed(status)))
