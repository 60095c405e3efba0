"""The real supervisord, in the foreground, with a socket in a temporary folder."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from tests.support.clock import eventually
from tests.support.peers import missing
from tests.support.procs import Procs

HEAD = """
[supervisord]
nodaemon=true
user={user}
logfile={folder}/supervisord.log
loglevel=info
pidfile={folder}/supervisord.pid
[unix_http_server]
file={folder}/s
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix://{folder}/s

"""


class Supervisord:
    """`program` is the text of a program file; names below are of supervisord: `qd` is the program."""

    def __init__(self, program: str, env: Mapping[str, str]) -> None:
        self.bin = Path(sys.executable).parent
        if not (self.bin / "supervisord").exists():
            missing("supervisord (the package `supervisor`)")
        self.folder = Path(tempfile.mkdtemp(prefix="qd-sv-"))  # short: a socket path has 107 bytes
        self.conf = self.folder / "supervisord.conf"
        self.conf.write_text(HEAD.format(folder=self.folder, user=getpass.getuser()) + program)
        self.env = dict(env)
        self.procs: Procs | None = None

    def __enter__(self) -> Supervisord:
        command = [str(self.bin / "supervisord"), "-n", "-c", str(self.conf)]
        self.procs = Procs(command, cwd=self.folder, env=self.env)
        eventually(lambda: self.ctl("pid").stdout.strip() == str(self.pid), 20, what="a supervisord that answers")
        return self

    def __exit__(self, *_: object) -> None:
        """Asks qd to stop and ends supervisord by force: it looks for dead children once a second only."""
        assert self.procs is not None
        procs = self.procs
        if procs.process.poll() is None:
            procs.kill()
            for pid in self.starts()[-1:]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        with suppress(AssertionError):
            eventually(lambda: not procs.session(), 20)
        left = procs.sweep()
        shutil.rmtree(self.folder, ignore_errors=True)
        assert not left, f"supervisord left {left}"

    @property
    def pid(self) -> int:
        assert self.procs is not None
        return self.procs.pid

    @property
    def log(self) -> str:
        """supervisord's own log: spawned, entered RUNNING, exited, gave up, ..."""
        path = self.folder / "supervisord.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def ctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.bin / "supervisorctl"), "-c", str(self.conf), *arguments]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60, check=False)

    def begin(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A supervisorctl that is not waited for."""
        return subprocess.Popen([str(self.bin / "supervisorctl"), "-c", str(self.conf), *arguments], env=self.env)

    def starts(self) -> list[int]:
        """The pids of the program so far, as supervisord logged them."""
        return [int(pid) for pid in re.findall(r"spawned: 'qd' with pid (\d+)", self.log)]

    def started(self, count: int = 1, seconds: float = 20.0) -> psutil.Process:
        """The program's `count`-th process, waited for, once supervisord calls it RUNNING."""
        running = "success: qd entered RUNNING"
        eventually(lambda: len(self.starts()) >= count, seconds, what=f"start {count} of qd")
        eventually(lambda: self.log.count(running) >= count, seconds, what=f"{count} times {running!r}\n{self.log}")
        return psutil.Process(self.starts()[count - 1])

    def troubles(self) -> list[str]:
        """Lines of supervisord's log that an operator would be woken for."""
        return [line for line in self.log.splitlines() if re.search(r"FATAL|BACKOFF|gave up|ERROR|SIGKILL", line)]
