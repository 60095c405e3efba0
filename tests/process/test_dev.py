"""`qd dev` in a real terminal: what it starts, and that nothing of it is left, however it ends."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from qd.cli import dev
from qd.drivers import embedded
from tests.support.processes import QD
from tests.support.project import MakeProject, Project
from tests.support.waiting import eventually

JOBS = """
@app.job("greet")
def greet(name: str) -> None:
    print("to " + name, flush=True)

app.schedule(lambda: print("tick", flush=True), name="tick").every(1)
"""
TAKE = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGHUP, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """`qd dev ...` in a terminal of its own."""

    def __init__(self, shop: Project, *words: str, **env: str) -> None:
        self.ours, theirs = pty.openpty()
        self.shown = ""
        command = [sys.executable, "-c", TAKE, *QD, "dev", *words]
        more: dict[str, object] = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "start_new_session": True}
        self.process = subprocess.Popen(command, cwd=shop.root, env=shop.env(COLUMNS="200", **env), **more)  # type: ignore[call-overload]
        os.close(theirs)

    def text(self) -> str:
        with suppress(OSError):  # EIO: every process has closed it
            while self.ours >= 0 and select.select([self.ours], [], [], 0)[0]:
                if not (found := os.read(self.ours, 65536)):
                    break
                self.shown += found.decode(errors="replace").replace("\r\n", "\n")
        return self.shown

    def wait(self, pattern: str) -> re.Match[str]:
        def found() -> re.Match[str]:
            match = re.search(pattern, self.text())
            assert match, f"{pattern!r} not in:\n{self.shown[-3000:]}"
            return match

        return eventually(found, 60)

    def close(self) -> None:
        if self.ours >= 0:
            os.close(self.ours)
            self.ours = -1

    def ends(self) -> int:
        def ended() -> bool:
            self.text()  # else it waits for the terminal
            return self.process.poll() is not None

        eventually(ended, 60, what="qd dev ends")
        self.text()
        return int(self.process.returncode)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    """A project on the private server."""
    found = project(jobs=JOBS)
    found.url = "embedded:"
    found.config()
    found.allowed.add(".qd")
    return found


Start = Callable[..., Terminal]


@pytest.fixture
def start(shop: Project) -> Iterator[Start]:
    made: list[Terminal] = []

    def begin(*words: str, **env: str) -> Terminal:
        made.append(Terminal(shop, *words, **env))
        return made[-1]

    yield begin
    for terminal in made:
        terminal.close()
        if terminal.process.poll() is None:
            terminal.process.kill()
            terminal.process.wait()
    nothing_left(shop)


def nothing_left(shop: Project) -> None:
    def running() -> list[str]:
        found = []
        for each in psutil.process_iter(["pid", "status"]):
            with suppress(psutil.Error):
                if each.status() != psutil.STATUS_ZOMBIE and Path(each.cwd()).is_relative_to(shop.root):
                    found.append(f"{each.pid} {' '.join(each.cmdline())}")
        return found

    eventually(lambda: not running(), 40, what=f"no process left: {running()}")
    assert embedded.status(shop.root) is None


def begun(terminal: Terminal) -> str:
    """Wait until all of it runs. Returns the dashboard's address."""
    link = terminal.wait(r"dashboard +(http://\S+)")[1]
    terminal.wait("master.ready")
    return link


def page(link: str) -> str:
    with urllib.request.urlopen(link, timeout=20) as answer:
        assert answer.status == 200
        return str(answer.read().decode())


def test_one_ctrl_c_ends_worker_scheduler_dashboard_and_server(shop: Project, start: Start) -> None:
    dev = start("-w", "1")
    link = begun(dev)
    assert "Log in" in page(link)
    dev.wait(r"app +jobs:app")
    dev.wait(r"stop +Ctrl-C, also the embedded server")
    assert dev.shown.index("first job") < dev.shown.index("master.started")  # the first lines, then the log
    dev.wait(r"tick")
    assert shop.qd("dispatch", "greet", "name=ada").returncode == 0
    dev.wait(r"to ada")
    shop.jobs(JOBS.replace('"to "', '"new code for "'))
    dev.wait(r"master.reloaded workers=1")
    assert shop.qd("dispatch", "greet", "name=bob").returncode == 0
    dev.wait(r"new code for bob")
    os.write(dev.ours, b"\x03")
    assert dev.ends() == 0
    nothing_left(shop)


@pytest.mark.parametrize("how", ["hangup", "kill", "terminate"])
def test_nothing_is_left_when_it_is_killed_or_its_terminal_closed(shop: Project, start: Start, how: str) -> None:
    dev = start("-w", "1")
    begun(dev)
    if how == "hangup":
        dev.close()
    else:
        dev.process.send_signal(signal.SIGKILL if how == "kill" else signal.SIGTERM)
    assert dev.ends() == (-signal.SIGKILL if how == "kill" else 0)
    nothing_left(shop)
    if how == "kill":  # a killed master cannot remove its file, nor the new one that it was writing; the next one does
        next((shop.run / "qd").glob("*.live")).unlink()
        for unfinished in (shop.run / "qd").glob("*.new"):
            unfinished.unlink()


def test_a_restart_starts_the_worker_again_and_its_own_end_does_not(shop: Project, start: Start) -> None:
    dev = start("-w", "1")
    begun(dev)
    eventually(lambda: json.loads(shop.qd("status", "--json").stdout)["masters"], 20, what="the report of the master")
    done = shop.qd("restart", "--wait", "60", "--json")
    assert done.returncode == 0, done.stdout
    dev.wait("`qd work` ended for `qd restart`; starting it again")
    assert shop.qd("dispatch", "greet", "name=ada").returncode == 0
    dev.wait(r"to ada")
    (master,) = json.loads(done.stdout)["masters"]
    os.kill(master["new_pid"], signal.SIGTERM)
    assert dev.ends() == 0
    assert dev.shown.count("starting it again") == 1


def test_without_a_url_it_uses_the_private_server_and_says_how_to_reach_it(shop: Project, start: Start) -> None:
    (shop.root / "qd.toml").write_text('[qd]\napp = "jobs:app"\n')
    dev = start("-w", "1")
    begun(dev)
    dev.wait("first job +QD_REDIS_URL=embedded: qd dispatch")
    assert shop.qd("dispatch", "greet", "name=eve", QD_REDIS_URL="embedded:").returncode == 0
    dev.wait(r"to eve")
    os.write(dev.ours, b"\x03")
    assert dev.ends() == 0


def test_a_server_that_ran_before_is_not_stopped(shop: Project, start: Start) -> None:
    embedded.resolve("embedded:", shop.root)
    try:
        dev = start("-w", "1")
        begun(dev)
        assert "also the embedded server" not in dev.shown
        os.write(dev.ours, b"\x03")
        assert dev.ends() == 0
        assert embedded.status(shop.root) is not None
    finally:
        embedded.stop(shop.root)


def test_the_dashboard_takes_another_port_if_its_own_is_taken(shop: Project, start: Start) -> None:
    held = None
    with suppress(OSError):  # or another program has it
        held = socket.create_server(("127.0.0.1", 8640))
    dev = start("-w", "1")
    dev.wait(r"dashboard +http://127.0.0.1:(?!8640)\d+/login\S+ \(port 8640 is taken\)")
    if held:
        held.close()
    begun(dev)
    os.write(dev.ours, b"\x03")
    assert dev.ends() == 0


def test_it_goes_on_without_the_extra_of_the_dashboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev, "find_spec", lambda name: None if name == "uvicorn" else object())
    text = dev.dashboard({}, ())
    assert text == "not started, uvicorn is not installed: pip install 'starlette>=0.40' 'uvicorn>=0.30' 'jinja2>=3.1'"


def test_an_app_that_does_not_import_ends_it_with_the_workers_code(shop: Project, start: Start) -> None:
    shop.jobs("app = 1 / 0")
    dev = start("-w", "1")
    assert dev.ends() == 3
    assert "ZeroDivisionError" in dev.shown
    assert "`qd work` ended with exit code 3" in dev.shown


def test_without_an_app_it_names_the_ways(project: MakeProject) -> None:
    shop = project()
    (shop.root / "qd.toml").write_text("")
    done = shop.qd("dev")
    assert (done.returncode, done.stdout) == (78, "")
    assert "no app is named: run `qd init`" in done.stderr


def test_an_option_that_work_does_not_have_is_refused_before_anything_starts(shop: Project) -> None:
    done = shop.qd("dev", "--listen", "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "qd work: no such option '--listen'" in done.stderr
