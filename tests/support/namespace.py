"""A pid namespace of its own with a /proc of its own: programs that are PID 1 there, and numbers given out as wanted."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

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


def inner(processes: Iterable[psutil.Process]) -> dict[int, psutil.Process]:
    """These processes by the numbers that they have inside, without those that have ended meanwhile."""
    found = {}
    for process in processes:
        with suppress(FileNotFoundError, ProcessLookupError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            found[next(int(line.split()[-1]) for line in status.splitlines() if line.startswith("NSpid:"))] = process
    return found


# clone3(2) with the number that its child is to have; nothing else of the namespace changes. Prints the number, or -errno.
SLEEPER = """
import ctypes, os, sys
number = ctypes.c_int(int(sys.argv[1]))
arguments = (ctypes.c_uint64 * 10)(0, 0, 0, 0, 17, 0, 0, 0, ctypes.addressof(number), 1)
libc = ctypes.CDLL(None, use_errno=True)
pid = libc.syscall(435, arguments, ctypes.sizeof(arguments))
if pid == 0:
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.execvp("sleep", ["sleep", "1000"])
print(pid if pid > 0 else -ctypes.get_errno())
"""


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
        answer = int(self._run(sys.executable, "-c", SLEEPER, str(number)))
        assert answer in (number, -errno.EEXIST), os.strerror(-answer)
        return answer == number

    def dead(self) -> list[int]:
        names = [self._run("sh", "-c", f"cat /proc/{number}/comm || true") for number in self.numbers]
        return [number for number, name in zip(self.numbers, names, strict=True) if "sleep" not in name]

    def _run(self, *words: str) -> str:
        done = subprocess.run([*self.words, *words], capture_output=True, text=True, check=True, timeout=20)
        return done.stdout
