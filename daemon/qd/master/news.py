"""What the children tell their master, one act a kind of news. A job can write to this socket too: what is heard is believed
of who can know it, and only where it fits what the master knows."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Callable

from qd.master.code import Code
from qd.master.keeping import home_of, place_of
from qd.master.rolling import Reload
from qd.master.spawning import Spawner
from qd.master.state import State
from qd.process import child
from qd.process.exits import Exit
from qd.process.scoreboard import Why
from qd.process.talk import Heard, Message

TOLD = 10.0  # seconds between two lines about news that are refused
# What acts run into when fields are missing, of other types, of other sizes, or when no such process is.
UNFIT = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, OSError)


class Forged(ValueError):
    """Not from who could know it, or it does not fit."""


class Messages:
    def __init__(
        self,
        state: State,
        spawner: Spawner,
        reload: Reload,
        stop: Callable[[str, Exit], None],
        announce: Callable[[Message], None],
    ) -> None:
        """announce: is called with what the app's first import reported, to log the first line."""
        self.state, self.spawner, self.reload = state, spawner, reload
        self._stop, self._announce = stop, announce
        self._refused = 0
        self._told_at = -TOLD
        self._acts: dict[str, Callable[[Heard], bool | None]] = {
            "imported": self._on_imported,
            "born": self._on_born,
            "unborn": self._on_unborn,
            "ready": self._on_ready,
            "restart": self._on_restart,
            "lost": self._on_lost,
            "cancel": self._on_cancel,
            "changed": self._on_changed,
        }

    def hear(self) -> None:
        for heard in self.state.ear.read():
            kept, kind = False, heard.message.get("kind")
            act = self._acts.get(kind) if isinstance(kind, str) else None
            try:
                kept = act is not None and bool(act(heard))
            except UNFIT as error:
                self._refuse(heard, error)
            finally:
                if heard.fd is not None and not kept:
                    os.close(heard.fd)

    def _refuse(self, heard: Heard, error: Exception) -> None:
        self._refused += 1
        if time.monotonic() - self._told_at > TOLD:
            kind, count = heard.message["kind"], self._refused
            self.state.log.warning(
                "master.message_rejected", news=kind, error=repr(error), sender=heard.sender, count=count
            )
            self._refused, self._told_at = 0, time.monotonic()

    def _on_imported(self, heard: Heard) -> None:
        state, message = self.state, heard.message
        code = state.codes.by_number(message["code"])
        if code is None or code.imported:
            return
        self._of_code(heard, code)
        for read in (place_of, home_of):  # the keeper is looked after by them: refused here, or never
            read(message["settings"])
        code.settings, code.entries = message["settings"], int(message["entries"])
        if not (code.preload and message["preload"]):
            state.codes.without_template(code)
        for line in message["warnings"]:
            state.log.warning("app.imported", warning=line)
        if self.reload.imported(code):
            self._announce(message)

    def _of_code(self, heard: Heard, code: Code) -> None:
        """From its template, or from a worker that has imported it by itself."""
        worker = None if code.pid else self.state.children.by_pid(heard.sender or -1)
        knows = code.pid or (worker.pid if worker is not None and worker.code == code.number else 0)
        if heard.sender not in (None, knows):
            raise Forged("not from who imports the app")

    def _on_born(self, heard: Heard) -> None:
        """Said by a process that nobody knows, and that is gone by now: what it was given says that it is no other."""
        state, message, pid = self.state, heard.message, heard.message["pid"]
        if not isinstance(pid, int) or not 1 < pid < 1 << 31:
            raise Forged("no pid")
        worker = state.children.found(message["slot"], message["generation"])
        if worker is None and message["word"] in state.children.given_up:  # before it was born
            state.children.given_up.remove(message["word"])
            return child.kill_group(pid)
        if worker is None or worker.pid or message["word"] != worker.word:
            raise Forged("nobody was to be born there")
        self.spawner.born(worker)
        try:
            os.kill(pid, 0)
        except ProcessLookupError:  # it has died and was reaped as nobody's: it stood behind too much other news
            return state.children.forget(worker)
        state.children.born(worker.slot.number, worker.generation, pid)
        if worker.draining or state.stopping is not None:
            worker.send(signal.SIGTERM)

    def _on_unborn(self, heard: Heard) -> None:
        message = heard.message
        worker = self.state.children.found(message["slot"], message["generation"])
        if worker is not None and not worker.pid and worker.word == message["word"]:
            self.state.children.forget(worker)
            self.spawner.refused(worker.role, str(message["error"]))

    def _on_ready(self, heard: Heard) -> bool:
        """Whether the descriptor is kept."""
        state, fd = self.state, heard.fd
        worker = state.children.found(heard.message["slot"], heard.message["generation"])
        if worker is None:
            return False
        if worker.ready or heard.sender not in (None, worker.pid):
            raise Forged("not from a worker that boots")
        if fd is not None and not stat.S_ISREG(os.fstat(fd).st_mode):
            raise Forged("no file for stacks")
        worker.is_ready(fd)
        state.boots[worker.role].ready()
        if worker.draining or state.stopping is not None:
            worker.send(signal.SIGTERM)
        else:  # it may have been told the other word before it could hear
            worker.send(signal.SIGUSR2 if state.paused else signal.SIGCONT)
        return fd is not None

    def _on_restart(self, heard: Heard) -> None:
        state, message = self.state, heard.message
        self._of_keeper(heard)
        newest = state.codes.coming or state.codes.serving
        if message.get("rolling") and newest is not None and newest.forked_ns > message.get("at", 0):
            return  # this code is newer than the stamp: a new keeper has read it again
        if message.get("rolling"):
            self.reload.request("qd restart --rolling")
        elif state.stopping is None:
            self._stop("qd restart", Exit.OK)

    def _on_lost(self, heard: Heard) -> None:
        self._of_keeper(heard)
        worker = self.state.children.found(heard.message["slot"], heard.message["generation"])
        if worker is not None and worker.has_job:
            self.state.children.alarm(worker, Why.LEASE, heard.message["turn"])

    def _on_cancel(self, heard: Heard) -> None:
        self._of_keeper(heard)
        worker = self.state.children.found(heard.message["slot"], heard.message["generation"])
        if worker is not None:
            self.state.children.cancel(worker, heard.message["turn"])

    def _of_keeper(self, heard: Heard) -> None:
        if heard.sender not in (None, self.state.keeper.pid):
            raise Forged("not from the keeper")

    def _on_changed(self, heard: Heard) -> None:
        coming = self.state.codes.coming
        code = coming if coming is not None and coming.imported else self.state.codes.serving
        if code is not None and code.number == heard.message["code"]:
            self._of_code(heard, code)
            self.reload.request(f"changed: {heard.message['file']}")
