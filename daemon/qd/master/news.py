"""What the children tell their master, one act a kind of news. A job can write to this socket too: nothing is believed
that does not fit what the master knows."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from qd.process import child
from qd.process.exits import Exit
from qd.process.scoreboard import Why
from qd.process.talk import Message

if TYPE_CHECKING:
    from qd.master.loop import Master


class News:
    def __init__(self, master: Master) -> None:
        self.master = master

    def hear(self) -> None:
        for message, fd in self.master.ear.read():
            act = getattr(self, f"_on_{message.get('kind')}", None)
            if act is None:
                continue
            try:
                act(message, fd)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                self.master.log.warning("master.news_refused", news=message.get("kind"), error=repr(error))

    def _on_imported(self, message: Message, fd: int | None) -> None:
        master = self.master
        code = master.codes.by_number(message["code"])
        if code is None or code.imported:
            return
        code.settings = message["settings"]
        if not (code.preload and message["preload"]):
            master.codes.without_template(code)
        for line in message["warnings"]:
            master.log.warning("app.imported", warning=line)
        if master.rolling.imported(code):
            master.announce(message)

    def _on_born(self, message: Message, fd: int | None) -> None:
        master = self.master
        master.children.born(message["slot"], message["generation"], message["pid"])
        worker = master.children.found(message["slot"], message["generation"])
        if worker is None:  # given up before it was born
            child.kill_group(message["pid"])
            return
        master.spawning.born(worker)
        if worker.draining or master.stopping is not None:
            worker.send(signal.SIGTERM)

    def _on_unborn(self, message: Message, fd: int | None) -> None:
        worker = self.master.children.found(message["slot"], message["generation"])
        if worker is not None and not worker.pid:
            self.master.children.forget(worker)
            self.master.spawning.refused(message["error"])

    def _on_ready(self, message: Message, fd: int | None) -> None:
        master = self.master
        worker = master.children.found(message["slot"], message["generation"])
        if worker is None:
            if fd is not None:
                os.close(fd)
            return
        worker.is_ready(fd)
        master.boots.ready()
        if worker.draining or master.stopping is not None:
            worker.send(signal.SIGTERM)
        else:  # it may have been told the other word before it could hear
            worker.send(signal.SIGUSR2 if master.paused else signal.SIGCONT)

    def _on_restart(self, message: Message, fd: int | None) -> None:
        master = self.master
        newest = master.codes.coming or master.codes.serving
        if message.get("rolling") and newest is not None and newest.forked_ns > message.get("at", 0):
            return  # this code is newer than the stamp: a new keeper has read it again
        if message.get("rolling"):
            master.reload("qd restart --rolling")
        elif master.stopping is None:
            master.stop("qd restart", Exit.OK)

    def _on_lost(self, message: Message, fd: int | None) -> None:
        worker = self.master.children.found(message["slot"], message["generation"])
        if worker is not None and worker.busy:
            self.master.children.alarm(worker, Why.LEASE, message["turn"])

    def _on_changed(self, message: Message, fd: int | None) -> None:
        coming = self.master.codes.coming
        code = coming if coming is not None and coming.imported else self.master.codes.serving
        if code is not None and code.number == message["code"]:
            self.master.reload(f"changed: {message['file']}")
