"""Runs one peer at a time: its worker processes, its producer, and the named pipe to which its jobs report."""

import fcntl
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import tree
from lineup import VENV, Argv, Peer, Setup

from server import Server

PATIENCE = 120.0


class Stamp(NamedTuple):
    """The line that a job writes: its label, its `at` argument, and its start by three clocks (ns)."""

    label: str
    at: int
    started: int
    wall: int
    cpu: int


class Stage:
    """Folder, server and pipe of a run. One peer at a time uses it; `clear()` between them."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder = folder
        self.server = server
        self.fifo = folder / "stamps"
        os.mkfifo(self.fifo)
        self.pipe = os.open(
            self.fifo, os.O_RDWR | os.O_NONBLOCK
        )  # both ends: neither the driver nor a job waits in open()
        fcntl.fcntl(self.pipe, fcntl.F_SETPIPE_SZ, 1 << 20)  # a thousand jobs report at once
        self.unread = b""
        self.processes: list[subprocess.Popen[bytes]] = []

    def clear(self) -> None:
        """Empty Redis, and discard unread lines of a sample that failed."""
        self.server.client.call("FLUSHALL")
        while select.select([self.pipe], [], [], 0)[0]:
            os.read(self.pipe, 1 << 16)
        self.unread = b""

    def environment(self, peer: Peer, setup: Setup | None = None) -> dict[str, str]:
        url = self.server.url
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("QD_", "RQ_", "CELERY_"))}
        ours = {"QD_REDIS_URL": url, "RQ_REDIS_URL": url, "BENCH_REDIS_URL": url}
        ours |= {"BENCH_FIFO": str(self.fifo), "BENCH_TMP": str(self.folder), "BENCH_NODE": str(VENV / "bullmq")}
        ours |= {"PYTHONPATH": os.pathsep.join(map(str, peer.path))}
        return inherited | ours | dict(setup.env if setup else {})

    def stamps(self, count: int, patience: float = PATIENCE) -> Iterator[Stamp]:
        """The next `count` lines that jobs write.

        Raises TimeoutError if no line arrives within `patience` seconds, RuntimeError if the workers have exited.
        """
        for _ in range(count):
            deadline = time.monotonic() + patience
            while b"\n" not in self.unread:
                gone = all(process.poll() is not None for process in self.processes)
                if select.select([self.pipe], [], [], 0 if gone else 1)[0]:
                    self.unread += os.read(self.pipe, 1 << 16)
                elif gone:
                    raise RuntimeError("the workers exited before their jobs reported: see the log")
                elif time.monotonic() > deadline:
                    raise TimeoutError(f"no job reported within {patience:g} s")
            line, self.unread = self.unread.split(b"\n", 1)
            label, *numbers = line.decode().split()
            yield Stamp(label, *map(int, numbers))

    @contextmanager
    def workers(self, peer: Peer, name: str) -> "Iterator[Workers]":
        """Run the processes of this setup; end them and all their descendants afterwards."""
        setup = peer.setups[name]
        with open(self.folder / f"{peer.name}.log", "ab") as log:
            self.processes = [self._start(peer, setup, argv, log.fileno()) for argv in setup.argvs]
        running = Workers(self.processes)
        try:
            yield running
        finally:
            if peer.killed:
                running.kill()
            running.end()

    def _start(self, peer: Peer, setup: Setup, argv: Argv, log: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv,
            cwd=self.folder,
            env=self.environment(peer, setup),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    @contextmanager
    def producer(self, peer: Peer) -> "Iterator[Producer]":
        """The peer's producer, ready for commands."""
        with subprocess.Popen(
            peer.producer,
            cwd=self.folder,
            env=self.environment(peer),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            yield Producer(process)


class Workers:
    """The worker processes of one sample."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self.processes = processes

    def family(self) -> list[psutil.Process]:
        return tree.family(process.pid for process in self.processes)

    def wait(self, seconds: float = 30.0) -> None:
        """Wait until they have exited with code 0."""
        for process in self.processes:
            code = process.wait(seconds)
            if code != 0:
                raise RuntimeError(f"{process.args!r} exited with {code}, not 0: see its log")

    def kill(self) -> None:
        """KILL the whole tree at once."""
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def end(self) -> None:
        """Send TERM, wait ten seconds, then KILL what is left of the tree."""
        family = self.family()
        for process in self.processes:
            process.terminate()
        _, left = psutil.wait_procs(family, timeout=10)
        for survivor in left:
            survivor.kill()
        for process in self.processes:
            process.wait(5)


class Producer:
    """Sends commands and reads the replies; see peers/common.py."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def ask(self, do: str, **words: object) -> float:
        """The reply: seconds, a size, or 0 if there is none."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **words}).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the producer {self.process.args!r} exited at {do!r}")
        return float(json.loads(line) or 0)

    def emptied(self, patience: float = 30.0) -> None:
        """Wait until the queue is empty and no job runs."""
        deadline = time.monotonic() + patience
        while left := self.ask("size"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{left:g} jobs are still in the queue after {patience:g} s")
            time.sleep(0.05)
