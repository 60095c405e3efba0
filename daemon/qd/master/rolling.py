"""HUP, `qd restart --rolling`, --reload: from the code that serves to the code that comes, new workers before old.

begin -> template (or first worker) imports -> look_after: spawn one, wait until it is ready, drain one, ... -> promoted
                                            -> refused: it fails, hangs, or its workers do not boot; the old goes on
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from qd.log import Log
from qd.master.children import Children, Worker
from qd.master.code import PATIENCE, Code, Codes, by_name, enter
from qd.master.forking import Forking
from qd.master.plan import Plan
from qd.process import systemd
from qd.process.scoreboard import H, Scoreboard


class Rolling:
    def __init__(
        self,
        codes: Codes,
        children: Children,
        board: Scoreboard,
        forking: Forking,
        notifier: systemd.Notifier,
        log: Log,
        environ: Mapping[str, str],
    ) -> None:
        self.codes, self.children, self.board, self.forking = codes, children, board, forking
        self.notifier, self.log = notifier, log
        self._folder = by_name(environ)

    def begin(self, plan: Plan, spawn: Callable[[Code], None]) -> None:
        """Import the code that stands in the start folder now. The first time it is the one to serve."""
        enter(self._folder)
        if self.codes.coming is not None:
            self._undo()
        first = self.codes.serving is None
        code = self.codes.make()
        if first:
            self.board.set_header(H.FORKED_AT, code.forked_ns)
        if plan.preload:
            try:
                self.forking.template(plan, code)
            except OSError as error:
                self.refuse(f"no process for its import: {error}")
        elif first:
            spawn(code)
        else:
            code.imported = True  # its first worker imports, and refuses or serves

    def imported(self, code: Code) -> bool:
        """An import has succeeded. True: it is the first one, and serves from now on."""
        code.imported, code.took = True, time.monotonic() - code.forked_at
        if self.codes.serving is not None:
            return False
        self.codes.patience = max(PATIENCE, 5 * code.took)
        self._promote()
        return True

    def look_after(self, wanted: int, spawn: Callable[[Code], None], drain: Callable[[Worker], None]) -> bool:
        """One step of the change. True: it is complete."""
        if self.codes.hangs():
            self.refuse(f"its import takes longer than {self.codes.patience:.0f} s")
        coming, serving = self.codes.coming, self.codes.serving
        if coming is None or serving is None or not coming.imported:
            return False
        new, old = self.children.serving(coming.number), self.children.serving(serving.number)
        if not all(worker.ready for worker in new):
            return False
        if len(new) < wanted and len(new) + len(old) <= wanted:
            spawn(coming)
        elif old:
            for worker in old if len(new) >= wanted else old[:1]:
                drain(worker)
        else:
            self._promote()
            self.log.info("master.reloaded", workers=len(new))
            self.notifier.ready("")
            return True
        return False

    def refuse(self, why: str) -> None:
        """The coming code does not serve; the old one goes on as if nothing had been."""
        self.log.error("master.reload_refused", reason=f"the new code does not serve: {why}; the old code goes on")
        self._undo()
        self.notifier.ready("")

    def _undo(self) -> None:
        if self.codes.coming is not None:
            for worker in self.children.serving(self.codes.coming.number):
                worker.drain()
        self.codes.give_up()

    def _promote(self) -> None:
        self.codes.promote()
        assert self.codes.serving is not None
        self.board.set_header(H.FORKED_AT, self.codes.serving.forked_ns)
