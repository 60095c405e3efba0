"""`qd work` in a real terminal: the window is closed, or a HUP arrives while it is open."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import pytest

from tests.support.processes import QD
from tests.support.project import Project
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("clean_redis")

# The first process of a session takes the terminal of its stdin, as a terminal emulator's child does.
TAKE = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGHUP, signal.SIG_DFL); "  # the tests themselves may run under nohup
)
NOHUP = "signal.signal(signal.SIGHUP, signal.SIG_IGN); "
EXEC = "os.execvp(sys.argv[1], sys.argv[1:])"


class Terminal:
    """A program in a terminal of its own. Its stderr is a file; stdin and stdout are the terminal."""

    def __init__(self, shop: Project, *words: str, first: str = "") -> None:
        self.ours, theirs = pty.openpty()
        self.log = shop.root / "log"
        shop.allowed.add("log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", TAKE + first + EXEC, *words],
                cwd=shop.root,
                env=shop.env(),
                stdin=theirs,
                stdout=theirs,
                stderr=log,
                start_new_session=True,
            )
        os.close(theirs)

    def wait(self, text: str) -> None:
        eventually(lambda: text in self.log.read_text(), 20, what=f"{text!r} in the log")

    def hang_up(self) -> None:
        """The window is closed."""
        os.close(self.ours)
        self.ours = -1

    def living(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def end(self) -> None:
        if self.ours >= 0:
            os.close(self.ours)
        for process in self.living():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


@pytest.fixture
def terminal(shop: Project) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def start(*words: str, first: str = "") -> Terminal:
        made.append(Terminal(shop, *words, first=first))
        made[-1].wait("master.ready")
        return made[-1]

    yield start
    for each in made:
        each.end()


@pytest.mark.leaves("qd:ticks")
@pytest.mark.parametrize("command", ["work", "schedule work"])
def test_a_closed_terminal_stops_it(terminal: Callable[..., Terminal], command: str, shop: Project) -> None:
    if command == "schedule work":
        path = shop.root / "jobs.py"
        path.write_text(path.read_text() + "\napp.schedule(quick.bind(1)).yearly()\n")
    window = terminal(*QD, *command.split(), *(["-w", "1"] if command == "work" else []))
    window.hang_up()
    assert window.process.wait(20) == 0
    eventually(lambda: not window.living(), what="the end of its processes")
    assert 'master.stopping reason="signal SIGHUP"' in window.log.read_text()
    assert "master.reloading" not in window.log.read_text()


def test_a_terminal_that_is_closed_with_its_shell_stops_it(terminal: Callable[..., Terminal]) -> None:
    """The shell gets the signal, its end sends another."""
    window = terminal("sh", "-c", '"$@"; true', "sh", *QD, "work", "-w", "1")
    window.hang_up()
    assert window.process.wait(20) == -signal.SIGHUP
    eventually(lambda: not window.living(), 20, what="the end of its processes")
    assert 'master.stopping reason="signal SIGHUP"' in window.log.read_text()
    assert "master.stopped" in window.log.read_text().splitlines()[-1]


def test_a_hup_by_hand_in_an_open_terminal_reloads(terminal: Callable[..., Terminal]) -> None:
    window = terminal(*QD, "work", "-w", "1")
    window.process.send_signal(signal.SIGHUP)
    window.wait("master.reloaded")
    window.hang_up()
    assert window.process.wait(20) == 0
    eventually(lambda: not window.living(), what="the end of its processes")


def test_under_nohup_it_outlives_its_terminal(terminal: Callable[..., Terminal]) -> None:
    window = terminal(*QD, "work", "-w", "1", first=NOHUP)
    window.hang_up()
    window.wait("master.reloaded")
    window.process.send_signal(signal.SIGTERM)
    assert window.process.wait(20) == 0
    eventually(lambda: not window.living(), what="the end of its processes")
