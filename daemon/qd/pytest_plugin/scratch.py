"""A server and a worker for the length of a test. Neither outlives the process that started it, however that ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from qd.embedded.home import Address
from qd.embedded.places import server_binary
from qd.embedded.server import ask
from qd.errors import QdError

# Ends the program when its own stdin is closed, which the kernel does for whoever started it and was killed; then takes
# the folder away that is the first word, where that is one.
HELD = """
folder=$1; shift
exec 3<&0
"$@" 3<&- </dev/null & child=$!
{ read -r _; kill "$child"; } <&3 >/dev/null 2>&1 & reader=$!
exec 3<&-
wait "$child"; code=$?
kill "$reader" 2>/dev/null
[ -z "$folder" ] || rm -rf "$folder"
exit "$code"
"""
NOT_INHERITED = ("QD_OWNER", "NOTIFY_SOCKET", "WATCHDOG_", "INVOCATION_ID", "SUPERVISOR_", "SYSTEMD_EXEC_PID")
LOOK_AGAIN = 0.02
START_WAIT = 20.0  # seconds
STOP_WAIT = 40.0  # seconds: qd work ends by itself what is over its --stop-timeout of 25
DATABASES = 64


class Held:
    """A program that runs until it ends, `stop()` is called, or this process is gone. log takes its stderr, output its
    stdout; folder goes with it."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        log: Path,
        output: Path,
        cwd: Path,
        env: Mapping[str, str],
        folder: Path | None = None,
    ) -> None:
        with log.open("ab") as errors, output.open("ab") as out:
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", HELD, "sh", str(folder or ""), *arguments],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=errors,
                cwd=cwd,
                env=dict(env),
                start_new_session=True,  # Ctrl-C is for pytest
            )

    def running(self) -> bool:
        return self.process.poll() is None

    def wait(self, seconds: float) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired."""
        code = self.process.wait(seconds)
        self._close()
        return code

    def stop(self, seconds: float = STOP_WAIT) -> int:
        """Ask it to stop (SIGTERM), wait, and give its exit code."""
        self._close()
        return self.process.wait(seconds)

    def _close(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()


class Server:
    """A Valkey or Redis of its own, on no port, in a folder below /tmp that goes with it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="qd-scratch-"))
        self.socket = self.folder / "s"
        self._held: Held | None = None

    def url(self, database: int = 0) -> str:
        return f"unix://{self.socket}?db={database}"

    def start(self) -> Server:
        """Start it and wait until it answers. Raises ConfigError: there is none to start. QdError: it ends."""
        log = self.folder / "log"
        command = [str(server_binary()), "--dir", str(self.folder), "--port", "0", "--unixsocket", str(self.socket)]
        command += ["--unixsocketperm", "700", "--save", "", "--appendonly", "no", "--databases", str(DATABASES)]
        self._held = Held(command, log=log, output=log, cwd=self.folder, env=clean(os.environ), folder=self.folder)
        deadline = time.monotonic() + START_WAIT
        while self._ask("PING") != b"+PONG\r\n":
            if not self._held.running() or time.monotonic() > deadline:
                last = log.read_text(errors="replace").strip().rpartition("\n")[2]
                raise QdError(f"the scratch server does not start: {last or 'it says nothing'}")
            time.sleep(LOOK_AGAIN)
        return self

    def empty(self) -> None:
        self._ask("FLUSHALL")

    def stop(self) -> None:
        if self._held is not None:
            self._held.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _ask(self, command: str) -> bytes | None:
        return ask(Address(self.socket), command)


def clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Without what is meant for this process, by whoever supervises it or the worker that it runs in."""
    return {name: value for name, value in environ.items() if not name.startswith(NOT_INHERITED)}
