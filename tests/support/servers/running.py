"""What the servers of the tests have in common: a process, a folder and a port of their own; gone at the end, also when
pytest is killed."""

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
        """Also where it has started half-way only."""
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
    """Constructor makes a folder; start() starts. A subclass says what to run, how it is made ready and when it serves."""

    name = ""
    user: str | None = None  # whom it runs as, when the tests run as root and it refuses to
    ending = signal.SIGTERM

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="qd-test-"))
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        if self.user:
            shutil.chown(self.folder, self.user)

    # -- what a subclass says

    def command(self) -> list[str]:
        raise NotImplementedError

    def prepare(self) -> None:
        """Before the first start."""

    def answers(self) -> bool:
        """Whether it serves. What it raises means: not yet."""
        raise NotImplementedError

    @property
    def env(self) -> dict[str, str]:
        return {}

    # -- what a test does

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def start(self) -> Self:
        """Start, or start again in the same folder and on the same port, and wait until it serves."""
        if not self.port:
            self.port = free_port()
            self.prepare()
        self._begin()
        eventually(self._serves, 120, what=f"{self.name} that answers")
        return self

    def kill(self) -> None:
        """As in a power cut: SIGKILL to it and to what it has forked, and wait."""
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
        """As a supervisor ends it, and wait. What it keeps, it keeps."""
        if self.process is None:
            return
        self.process.send_signal(self.ending)
        try:
            self.process.wait(10)
            self.process = None
        except subprocess.TimeoutExpired:
            self.kill()

    def restart(self) -> None:
        """Ended and started again, in the same folder and on the same port."""
        self.end()
        self.start()

    def stop(self) -> None:
        """End it, also when it is stopped or busy, and take its folder away."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Inside, it answers nobody."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def _family(self) -> list[psutil.Process]:
        """It and what it has forked. It stands still from then on: one that it forks meanwhile would be left."""
        assert self.process is not None
        first = psutil.Process(self.process.pid)
        with suppress(psutil.NoSuchProcess):
            first.suspend()
            eventually(lambda: first.status() in HALTED, 20, what=f"{self.name} that stands still")
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
        except Exception:  # not there yet, or recovering
            return False


def alive(process: psutil.Process) -> bool:
    """A zombie is not: it has let go of everything."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def as_root(other: str) -> str | None:
    """The user to run a server as that refuses root, None where the tests do not run as root."""
    return other if os.geteuid() == 0 else None
