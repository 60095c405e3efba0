"""The Redis of one benchmark run, on loopback and a free port, nothing on disk, and a client for it.

The client is separate from qd's, so that qd is not measured through its own code.
"""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import hiredis


class Client:
    """One connection that sends a command and waits for the reply. Raises error replies."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.reader = hiredis.Reader()

    def call(self, *words: str | int) -> Any:
        self.socket.sendall(hiredis.pack_command(words))  # type: ignore[arg-type]  # takes any tuple of words
        return self.reply()

    def reply(self) -> Any:
        while (answer := self.reader.gets()) is False:
            self.reader.feed(self.socket.recv(1 << 16))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def info(self, section: str) -> dict[str, str]:
        lines = self.call("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def close(self) -> None:
        self.socket.close()


class Command(NamedTuple):
    """One line of MONITOR. `client` is None for what a script called."""

    at: float
    client: str | None
    name: str


class Monitor:
    """Records all commands of the server until `stop()` returns them. It slows the server: never use it with a timing."""

    def __init__(self, port: int) -> None:
        self.ours = Client(port)
        self.ours.call("MONITOR")
        self.ask = Client(port)

    def stop(self) -> list[Command]:
        self.ask.call("ECHO", "end of watch")
        end = list(self._until(b"end of watch"))
        self.ours.close()
        self.ask.close()
        return end

    def _until(self, mark: bytes) -> Iterator[Command]:
        while mark not in (line := self.ours.reply()):
            at, _, origin, name = line.decode(errors="replace").split(" ", 4)[:4]
            client = origin.rstrip("]")
            yield Command(float(at), None if client == "lua" else client, name.strip('"').lower())


class Server:
    """`with Server(folder) as server:` a running redis-server, `server.port`, `server.client`."""

    def __init__(self, folder: Path, *options: str) -> None:
        """options: more of redis-server's."""
        self.folder, self.options = folder, options

    def __enter__(self) -> "Server":
        binary = shutil.which("redis-server")
        if binary is None:
            sys.exit("no redis-server on PATH: install Redis 6.2 or newer (Debian: apt install redis-server)")
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        options = ["--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no"]
        quiet = ["--dir", str(self.folder), "--logfile", "redis.log"]
        self.process = subprocess.Popen([binary, *options, *quiet, *self.options])
        self.client = self._connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.process.terminate()
        self.process.wait(10)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def version(self) -> str:
        return self.client.info("server")["redis_version"]

    def cpu(self) -> float:
        """Seconds of CPU time that the server has used."""
        used = self.client.info("cpu")
        return float(used["used_cpu_user_main_thread"]) + float(used["used_cpu_sys_main_thread"])

    def round_trip(self, count: int) -> float:
        """Microseconds from a PING's send to its reply on one connection, the median of `count`."""
        taken = []
        for _ in range(count):
            began = time.perf_counter_ns()
            self.client.call("PING")
            taken.append((time.perf_counter_ns() - began) / 1e3)
        return median(taken)

    def names(self) -> dict[int, str]:
        """Local port -> the connection's name (CLIENT SETNAME), if it has one."""
        rows = self.client.call("CLIENT", "LIST").decode().splitlines()
        facts = [dict(word.split("=", 1) for word in row.split(" ") if "=" in word) for row in rows]
        return {int(fact["addr"].rsplit(":", 1)[1]): fact["name"] for fact in facts if fact["name"]}

    def _connect(self) -> Client:
        for _ in range(200):
            try:
                return Client(self.port)
            except ConnectionRefusedError:
                time.sleep(0.02)
        sys.exit(f"redis-server does not answer on 127.0.0.1:{self.port} after 4 s")
