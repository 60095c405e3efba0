"""Handles messages from child processes (process/channels.py), one method per kind.

A message is accepted only if it is well-formed and agrees with the master's own state, which may have changed meanwhile.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from qd.master.children import Worker
from qd.master.reload import Reload
from qd.master.spawn import Spawner
from qd.master.state import State
from qd.process import fork
from qd.process.channels import (
    AnyMessage,
    Born,
    Cancel,
    Changed,
    ChildMessage,
    Imported,
    Lost,
    Ready,
    Resize,
    Restart,
    Unborn,
)
from qd.process.exit_codes import Exit
from qd.process.scoreboard import Why


class Messages:
    def __init__(self, state: State, spawner: Spawner, reload: Reload, announce: Callable[[Imported], None]) -> None:
        """announce: called with the report of the app's first import, to log the first line."""
        self.state, self.spawner, self.reload = state, spawner, reload
        self._announce = announce

    def handle(self) -> None:
        for message, fd in self.state.receiver.read(self._reject):
            self._act(message, fd)

    def _reject(self, error: Exception) -> None:
        self.state.log.warning("master.message_rejected", error=str(error))

    def _act(self, message: AnyMessage, fd: int | None) -> None:
        """fd: the stack file of a child that is ready. Any other descriptor is closed."""
        state = self.state
        worker = state.children.found(message.slot, message.generation) if isinstance(message, ChildMessage) else None
        if fd is not None and not (worker is not None and isinstance(message, Ready)):
            os.close(fd)
        match message:
            case Imported():
                self._on_imported(message)
            case Ready() if worker is not None:
                self._on_ready(worker, fd)
            case Born():
                self._on_born(message, worker)
            case Unborn(error=error) if worker is not None:
                state.children.forget(worker)
                self.spawner.refused(worker.role, error)
            case Resize(workers=workers):
                state.resize(workers)
            case Restart():
                self._on_restart(message)
            case Lost(turn=turn) if worker is not None and worker.has_job:
                state.children.alarm(worker, Why.LEASE, turn)
            case Cancel(turn=turn) if worker is not None:
                state.children.cancel(worker, turn)
            case Changed():
                coming = state.codes.coming
                code = coming if coming is not None and coming.imported else state.codes.serving
                if code is not None and code.number == message.code:
                    self.reload.request(f"changed: {message.file}")

    def _on_imported(self, message: Imported) -> None:
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

    def _on_born(self, message: Born, worker: Worker | None) -> None:
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

    def _on_restart(self, message: Restart) -> None:
        state = self.state
        newest = state.codes.coming or state.codes.serving
        if message.rolling and newest is not None and newest.forked_ns > message.at:
            return  # a new keeper has read the stamp again, and this code is newer
        if message.rolling:
            self.reload.request("qd restart --rolling")
        elif state.stopping is None:
            state.begin_stop("qd restart", Exit.OK)
