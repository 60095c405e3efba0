"""What a keeper records in qd:events about its master: start, new code, crash loops, lost leases, stop.

Each is the difference between two words of the scoreboard: what happened, and what was recorded of it. So a new keeper
continues, and while the server is unreachable an event stays due.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from qd import __version__
from qd.errors import ServerRefused
from qd.keeper.control_connection import ControlConnection
from qd.log import Log
from qd.master.code import ChildContext
from qd.process.scoreboard import H
from qd.store.audit import Event

if TYPE_CHECKING:
    from qd.config.settings import Settings

AGAIN = 60.0  # seconds until the next try after a refusal


class MasterEvents:
    def __init__(self, settings: Settings, context: ChildContext, control: ControlConnection, log: Log) -> None:
        self.board, self.control, self.log = context.board, control, log
        self.root = settings.root
        self.master = {"pool": settings.work.pool or "default", "host": socket.gethostname()}
        self._not_before = 0.0
        self._refused = False  # and logged

    def record(self, *, stopped: bool = False) -> None:
        """Record what happened since the last call. A refusal is logged once. Raises ConnectionLost, ControlAway."""
        header = self.board.header
        happened = {
            H.RECORDED_FORK: header(H.FORKED_AT),
            H.RECORDED_LOOPS: header(H.CRASH_LOOPS),
            H.RECORDED_LOST: self.board.leases_lost(),
        }
        events = [self._event(word, value) for word, value in happened.items() if value != header(word)]
        if stopped:
            events.append(Event("master stopped", self.master))
        if not events or time.monotonic() < self._not_before:
            return
        try:
            self.control.record(*events)
        except ServerRefused as error:
            self._not_before = time.monotonic() + AGAIN
            if not self._refused:
                self.log.warning("events.refused", error=str(error), effect="`qd events` is incomplete")
            self._refused = True
            return
        self._refused = False
        for word, value in happened.items():
            self.board.set_header(word, value)

    def _event(self, word: int, value: int) -> Event:
        before = self.board.header(word)
        if word == H.RECORDED_FORK:
            code = {"version": __version__, "code": code_of(self.root)}
            return Event("new code" if before else "master started", self.master | code)
        return Event("crash loop" if word == H.RECORDED_LOOPS else "lease lost", self.master, times=value - before)


def code_of(root: Path) -> str:
    """Which code is there: the commit of a git checkout, else the folder, with a link such as `current` resolved."""
    folder = Path(os.path.realpath(root))
    try:
        head = (folder / ".git" / "HEAD").read_text().strip()
        return ((folder / ".git" / ref).read_text() if (ref := head.removeprefix("ref: ")) != head else head)[:12]
    except (OSError, ValueError):
        return str(folder)
