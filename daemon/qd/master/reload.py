"""HUP, `qd restart --rolling`, --reload: replace the serving import by a new one, new workers before old.

For a moment the new scheduler runs next to the old one; each tick is taken by one of them.

begin -> a template imports -> go_on: spawn one, wait until it is ready, drain one, ... -> promoted
                            -> refused: it fails, hangs, or its workers do not boot; the old code continues

OwnCode knows whether the qd on disk is still the one that this master runs. A template is forked from the master, which has
the modules of its own release in memory; whatever it imports later comes from disk. After an upgrade of qd that would mix
two releases, so a reload is refused until a restart. The files are read and compared, never imported, and their times do not
count: a checkout that went to another commit and back is the same qd. Two folders count: the one that Python imports from,
and the one that a new start would import from. They differ if qd was started as current/.venv/bin/qd, which pip has tied to
releases/1, and `current` points to releases/2.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from qd.errors import ConfigError
from qd.log import cut
from qd.master.children import NO_PROCESS, NO_PROCESS_LONGEST, Backoff
from qd.master.code import PATIENCE, AppImport, MasterPlan
from qd.master.keeper_process import place_of
from qd.master.spawn import Spawner
from qd.master.state import State
from qd.process.scoreboard import H, Role
from qd.redaction import redact

FAILS = "a restart by its supervisor may fail too"
LONGEST = 300  # characters of a reason in the report
REVIVE = (1.0, 60.0)  # seconds between two tries to replace a template that died, while the code is bad


class Reload:
    def __init__(self, state: State, spawner: Spawner, replan: Callable[[], MasterPlan]) -> None:
        """replan: reads the configuration again, may raise ConfigError."""
        self.state, self.spawner, self._replan = state, spawner, replan
        self.codes, self.children, self.log = state.codes, state.children, state.log
        self._folder = by_name(os.environ)
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
            self._note(str(change["reason"]), "`qd restart` without --rolling starts the new one")
            return self.log.error("master.reload_refused", **change)
        with contextlib.suppress(OSError):  # the import will report what is missing
            os.chdir(self._folder)  # by its name: a `current` link may point to a new release now
        try:
            plan = self._replan()
        except (ConfigError, OSError) as error:  # OSError: the start folder does not exist any more
            self._note(str(error), f"fix it and restart again: {FAILS}")
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
        self.codes.count += 1
        code = self.codes.coming = AppImport(self.codes.count, plan, plan.preload)
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
        work = coming.plan.work
        self.log.tune(work.log_format, work.log_level, work.log_jobs)

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

    def refuse(self, why: str, error: str = "", danger: str = FAILS) -> None:
        """Continue with the old code. error: of the import. danger: what a start with the new code would do."""
        self._note(error or why, f"fix it and restart again: {danger}")
        self.log.error("master.reload_refused", reason=f"the new code does not serve: {why}; the old code continues")
        self._undo()
        self.state.notifier.ready("")

    def _note(self, reason: str, way: str) -> None:
        """For the keeper's report and event. The way is what follows the last semicolon."""
        self.state.board.note_refusal(f"{cut(' '.join(redact(reason).split()), LONGEST)}; {way}")

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
        self.state.board.set_header(H.REFUSED_AT, 0)
        self.state.board.set_header(H.FORKED_AT, self.codes.serving.forked_ns)


def by_name(environ: Mapping[str, str]) -> str:
    """The start folder by the name its starter used: $PWD if that is the same folder, so that a `current` link stays a
    link. (If the starter sets no PWD, pass --config with such a path.)"""
    name = environ.get("PWD", "")
    try:
        return name if os.path.samefile(name, ".") else os.getcwd()
    except OSError:
        return os.getcwd()


VERSION = re.compile(rb'^__version__ = "([^"]+)"', re.MULTILINE)
CODE = (".py", ".lua")


class Release(NamedTuple):
    """version: "" if there is no qd in the folder."""

    version: str
    digest: str


def release_in(folder: str) -> Release:
    """Read the qd of this folder: 330 small files, 10 ms. One that disappears meanwhile counts as changed."""
    digest, version = blake2b(digest_size=4), ""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(name for name in names if name.endswith(CODE) and not name.startswith(".")):
            path = os.path.join(place, name)
            try:
                with open(path, "rb") as file:
                    text = file.read()
            except OSError:
                text = b""
            digest.update(b"%s %d\n%s" % (os.fsencode(path.removeprefix(folder + os.sep)), len(text), text))
            if place == folder and name == "__init__.py" and (found := VERSION.search(text)):
                version = found[1].decode()
    return Release(version, digest.hexdigest())


class OwnCode:
    def __init__(self, folder: str, roots: Sequence[str]) -> None:
        """folder: of the qd that runs. roots: folders by the names that the starter used, with `current` in them."""
        self.folder, self._roots = os.path.abspath(folder), roots

    def remember(self) -> None:
        """Note what runs, before anything on disk changes."""
        self._real, self._started = os.path.realpath(self.folder), release_in(self.folder)
        within = (root for root in self._roots if self._real.startswith(os.path.realpath(root) + os.sep))
        root = next(within, "")
        self.named = root + self._real.removeprefix(os.path.realpath(root)) if root else self.folder

    def change(self) -> dict[str, str | None] | None:
        """The fields of a log line if qd has changed, or None. `running` is where the code in memory came from, if that is
        not the place that has changed."""
        for folder in dict.fromkeys((self.named, self.folder)):
            was, now = self._started, release_in(folder)
            if now == was:
                continue
            same, real = now.version == was.version, self._real
            old, new = (f"{it.version} ({it.digest})" if same else it.version for it in (was, now))
            reason = f"qd changed from {old} to {new}" if new else f"qd {old} was removed"
            running = None
            if os.path.realpath(folder) != real:
                running = f"{real}, {'still there' if os.path.isdir(real) else 'deleted'}"
            return {"reason": reason, "hint": "qd restart", "path": folder, "running": running}
        return None
