"""HUP, `qd restart --rolling`, --reload: replace the serving import by a new one, new workers before old.

For a moment the new scheduler runs next to the old one; each tick is taken by one of them.

begin -> a template imports -> go_on: spawn one, wait until it is ready, drain one, ... -> promoted
                            -> refused: it fails, hangs, or its workers do not boot; the old code continues
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping

from qd.errors import ConfigError
from qd.master.children import NO_PROCESS, NO_PROCESS_LONGEST, Backoff
from qd.master.code import PATIENCE, AppImport, MasterPlan, by_name, enter
from qd.master.keeper_process import place_of
from qd.master.own_code import OwnCode
from qd.master.spawn import Spawner
from qd.master.state import State
from qd.process.scoreboard import H, Role

REVIVE = (1.0, 60.0)  # seconds between two tries to replace a template that died, while the code is bad


class Reload:
    def __init__(
        self, state: State, spawner: Spawner, replan: Callable[[], MasterPlan], environ: Mapping[str, str]
    ) -> None:
        """replan: reads the configuration again, may raise ConfigError."""
        self.state, self.spawner, self._replan = state, spawner, replan
        self.codes, self.children, self.log = state.codes, state.children, state.log
        self._folder = by_name(environ)
        program = os.path.join(self._folder, sys.argv[0])  # current/.venv/bin/qd
        roots = (os.path.dirname(os.path.dirname(program)), self._folder)
        self.own = OwnCode(os.path.dirname(os.path.dirname(__file__)), roots)
        self._first: MasterPlan | None = None  # the first import, as long as the fork for it fails
        self._no_process = Backoff(NO_PROCESS, NO_PROCESS_LONGEST)
        self._revive = Backoff(*REVIVE)

    def request(self, why: str) -> None:
        """Read the configuration again and begin to replace the code. A bad configuration, or another qd on disk, changes
        nothing."""
        if self.state.stopping is not None:
            return
        if (change := self.own.change()) is not None:  # first: what follows may import modules of qd
            return self.log.error("master.reload_refused", **change)
        enter(self._folder)  # where `current` points now, before the configuration is read
        try:
            plan = self._replan()
        except (ConfigError, OSError) as error:  # OSError: the start folder does not exist any more
            self.log.error("master.reload_refused", reason=str(error))
            return
        self.log.info("master.reloading", why=why)
        self.state.notifier.reloading()
        self.begin(plan)

    def begin(self, plan: MasterPlan) -> None:
        """Import the code in the start folder. The first import serves at once."""
        if self.codes.coming is not None:
            self._undo()
        first, self._first = self.codes.serving is None, None
        code = self.codes.make(plan)
        if first:
            self.state.board.set_header(H.FORKED_AT, code.forked_ns)
        if first and not plan.preload:
            return self.spawner.spawn(code, plan.leads)
        try:
            self.spawner.forker.template(code)
        except OSError as error:
            if not first:
                return self.refuse(f"no process for its import: {error}")
            self.codes.coming, self._first = None, plan
            delay = self._no_process.step()
            self.log.error("template.fork_failed", error=str(error), retry_in=delay)

    def imported(self, code: AppImport) -> bool:
        """An import has succeeded. Returns True if it is the first one, which serves from now on."""
        code.imported, code.took = True, time.monotonic() - code.forked_at
        if self.codes.serving is not None:
            return False
        self.codes.patience = max(PATIENCE, 5 * code.took)
        self._promote()
        return True

    def settings(self) -> str | None:
        """The settings for the keeper: the coming code's, before its first worker takes a job."""
        coming, serving = self.codes.coming, self.codes.serving
        if coming is not None and coming.settings is not None and not self._waits(coming):
            return coming.settings
        return serving.settings if serving is not None else None

    def _waits(self, coming: AppImport) -> bool:
        """It uses another server, where no keeper would renew the leases of the old workers: they must leave first."""
        serving = self.codes.serving
        if serving is None or serving.settings is None or coming.settings is None:
            return False
        if place_of(serving.settings) == place_of(coming.settings):
            return False
        return any(w.code != coming.number for w in self.children.workers.values()) or self.children.unsettled()

    def go_on(self) -> None:
        """Take one step of the current change, if any; replace a template that died."""
        if self._first is not None and self.codes.coming is None and not self._no_process.waits:
            self.begin(self._first)
        if self.codes.hangs():
            self.refuse(f"its import takes longer than {self.codes.patience:.0f} s")
        if (slow := self.codes.slow(time.monotonic())) is not None:
            hint = f"the app is being imported or its servers checked; `kill -USR1 {slow.pid}` logs where it waits"
            self.log.warning("template.slow", pid=slow.pid, seconds=PATIENCE, hint=hint)
        self._replace_workers()
        self._revive_template()

    def _replace_workers(self) -> None:
        coming, serving = self.codes.coming, self.codes.serving
        if coming is None or serving is None or not coming.imported:
            return
        if self._waits(coming):
            return self._drain(serving)
        wants = {Role.WORKER: coming.plan.work.workers, Role.SCHEDULER: coming.plan.schedulers(coming.entries)}
        if not all(self._step(coming, serving, role, wanted) for role, wanted in wants.items()):
            return
        self._promote()
        self.log.info("master.reloaded", workers=len(self.children.serving()))
        self.state.notifier.ready("")
        self.state.plan, self.state.wanted = coming.plan, coming.plan.work.workers
        self._revive.count = 0
        self.log.tune(coming.plan.work.log_format, coming.plan.work.log_level)

    def _revive_template(self) -> None:
        """Replace a template that died, and its workers. While the code is bad, the delay grows."""
        code = self.codes.serving
        if code is None or not code.preload or code.pid or self.codes.coming is not None or self._revive.waits:
            return
        self._revive.step()
        self.request("the template died")

    def _step(self, coming: AppImport, serving: AppImport, role: Role, wanted: int) -> bool:
        """Take one step for the children of this role. True: all are replaced, and the next role may follow."""
        new, old = self.children.serving(coming.number, role), self.children.serving(serving.number, role)
        if any(not worker.ready and time.monotonic() - worker.asked_at > self.codes.patience for worker in new):
            self.refuse(f"its {role.word}s take longer than {self.codes.patience:.0f} s to boot")
        elif not all(worker.ready for worker in new):
            return False
        elif len(new) < wanted and len(new) + len(old) <= wanted:
            self.spawner.spawn(coming, role)
        elif old:
            for worker in old if len(new) >= wanted else old[:1]:
                worker.drain()
        else:
            return True
        return False

    def refuse(self, why: str) -> None:
        """Give up the coming code; the old one continues."""
        self.log.error("master.reload_refused", reason=f"the new code does not serve: {why}; the old code continues")
        self._undo()
        self.state.notifier.ready("")

    def _undo(self) -> None:
        if self.codes.coming is not None:
            self._drain(self.codes.coming)
        self.codes.give_up()

    def _drain(self, code: AppImport) -> None:
        for role in Role:
            for worker in self.children.serving(code.number, role):
                worker.drain()

    def _promote(self) -> None:
        self.codes.promote()
        assert self.codes.serving is not None
        self.state.board.set_header(H.FORKED_AT, self.codes.serving.forked_ns)
