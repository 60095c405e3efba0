"""Base classes of the test servers: each has a process, a folder and a port, which are gone at the end, even if pytest is
killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import psutil

from tests.support.servers.redis import die_with_parent, free_port
from tests.support.waiting import eventually


class Started:
    def start(self) -> Self:
        raise NotImplementedError

    def stop(self) -> None:
        """Also called after an incomplete start."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()


HALTED = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)


class Running(Started):
    """The constructor creates a folder; start() starts the server. Subclasses define the command, preparation and check."""

    name = ""
    user: str | None = None  # user of a server that refuses to run as root
    ending = signal.SIGTERM

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="qd-test-"))
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        if self.user:
            shutil.chown(self.folder, self.user)

    # -- for subclasses

    def command(self) -> list[str]:
        raise NotImplementedError

    def prepare(self) -> None:
        """Called before the first start."""

    def answers(self) -> bool:
        """Whether it serves. Any exception means not yet."""
        raise NotImplementedError

    @property
    def env(self) -> dict[str, str]:
        return {}

    # -- for tests

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def start(self) -> Self:
        """Start or restart in the same folder and on the same port, and wait until it serves."""
        if not self.port:
            self.port = free_port()
            self.prepare()
        self._begin()
        eventually(self._serves, 120, what=f"{self.name} that answers")
        return self

    def kill(self) -> None:
        """SIGKILL it and its children, and wait."""
        if self.process is None:
            return
        family = self._family() if self.process.poll() is None else []
        for each in family:
            try:
                each.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait(10)
        self.process = None
        eventually(lambda: not any(map(alive, family)), 20, what=f"the end of all of {self.name}")

    def end(self) -> None:
        """Stop it as a supervisor does, and wait. Its folder stays."""
        if self.process is None:
            return
        self.process.send_signal(self.ending)
        try:
            self.process.wait(10)
            self.process = None
        except subprocess.TimeoutExpired:
            self.kill()

    def restart(self) -> None:
        """Stop and start it, in the same folder and on the same port."""
        self.end()
        self.start()

    def stop(self) -> None:
        """Kill it, even if it is suspended or busy, and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend the server during the `with` block."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def _family(self) -> list[psutil.Process]:
        """Suspend it, so that it forks no more processes, and return it and its children."""
        assert self.process is not None
        first = psutil.Process(self.process.pid)
        with suppress(psutil.NoSuchProcess):
            first.suspend()
            eventually(lambda: first.status() in HALTED, 20, what=f"{self.name} that is suspended")
        return [first, *first.children(recursive=True)]

    def _begin(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **self.env},
                user=self.user,
                process_group=0,
                preexec_fn=die_with_parent,
            )

    def _serves(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.name} ended with {self.process.returncode}: {self.log}")
        try:
            return self.answers()
        except Exception:  # not listening yet, or recovering
            return False


def alive(process: psutil.Process) -> bool:
    """Whether the process lives. A zombie does not: it has released everything."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def as_root(other: str) -> str | None:
    """The user for a server that refuses to run as root; None if the tests do not run as root."""
    return other if os.geteuid() == 0 else None
