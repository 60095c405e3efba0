"""A pid namespace of its own with a /proc of its own: programs that are PID 1 there, and numbers given out as wanted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.clock import eventually
from tests.support.peers import missing, program
from tests.support.procs import Procs

UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
REAPER = "import os, time\nwhile True:\n    try: os.wait()\n    except ChildProcessError: time.sleep(0.005)\n"


def required() -> list[str]:
    """The words before a command that is to be PID 1 of a new namespace; `missing` where that is not allowed."""
    program("nsenter")
    done = os.geteuid() == 0 and subprocess.run([program(UNSHARE[0]), *UNSHARE[1:], "true"], check=False)
    if not done or done.returncode != 0:
        missing("root with the right to unshare namespaces")
    return UNSHARE


def first(procs: Procs) -> int:
    """PID 1 of the namespace that `procs` has made, numbered as out here."""
    children = Path(f"/proc/{procs.pid}/task/{procs.pid}/children")
    pid: int = eventually(lambda: [int(word) for word in children.read_text().split()], what="a PID 1")[0]
    return pid


def inner(pid: int) -> int:
    """The number that a process has inside."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:")))


class Bystanders:
    """Processes that have nothing to do with qd, with numbers that its processes had. inside: PID 1, as out here."""

    def __init__(self, inside: int) -> None:
        self.words = ["nsenter", "-t", str(inside), "-p", "-m", "--wd"]  # before a command that is to run in there
        self.numbers: list[int] = []

    def take(self, number: int) -> None:
        """Start one with this number, as soon as it is free."""
        eventually(lambda: self._started(number), 20, what=f"a bystander with the number {number}")
        self.numbers.append(number)

    def _started(self, number: int) -> bool:
        script = f"echo {number - 1} >/proc/sys/kernel/ns_last_pid; sleep 1000 >/dev/null 2>&1 & echo $!"
        got = int(self._run(script))
        if got != number:
            self._run(f"kill -9 {got}")
        return got == number

    def dead(self) -> list[int]:
        return [number for number in self.numbers if "sleep" not in self._run(f"cat /proc/{number}/comm || true")]

    def _run(self, script: str) -> str:
        done = subprocess.run([*self.words, "sh", "-c", script], capture_output=True, text=True, check=True, timeout=10)
        return done.stdout
