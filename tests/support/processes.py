"""Programs started by tests, with their output and child processes; control groups and pid namespaces for them."""

from __future__ import annotations

import errno
import os
import re
import signal
import signal as signals
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil

from tests.support import warm
from tests.support.programs import missing, program
from tests.support.waiting import eventually

QD = (sys.executable, "-m", "qd")
STDERR = 2


class Lines:
    """Lines read from a pipe by a thread, which also writes them to descriptor 2 for pytest to show (sys.stderr may belong
    to a command that the test runs in this process)."""

    def __init__(self, pipe: IO[bytes], label: str) -> None:
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read, args=(pipe, label), daemon=True)
        self._thread.start()

    def _read(self, pipe: IO[bytes], label: str) -> None:
        for raw in pipe:
            line = raw.decode("utf-8", "backslashreplace").rstrip("\n")
            self.lines.append(line)
            os.write(STDERR, f"{label} {line}\n".encode(errors="replace"))
        pipe.close()

    def ended(self, seconds: float) -> bool:
        """Whether every writer has closed the pipe."""
        self._thread.join(seconds)
        return not self._thread.is_alive()


class Procs:
    """A started program and its whole session: all processes that it forks are found by the session id."""

    def __init__(self, arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], fresh: bool = False) -> None:
        self.process = warm.Popen(
            [*arguments],
            fresh=fresh,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pipesize=1
            << 20,  # qd drops lines that are not read; a large pipe prevents this when this process gets no CPU
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.pid = self.process.pid
        self._out = Lines(self.process.stdout, "|")
        self._err = Lines(self.process.stderr, "!")

    @property
    def lines(self) -> list[str]:
        """stderr so far: the log, without the warning about running as root."""
        return [line for line in self.all_lines if " master.is_root " not in line and '"master.is_root"' not in line]

    @property
    def all_lines(self) -> list[str]:
        return self._err.lines

    @property
    def output(self) -> list[str]:
        """stdout so far: the output of jobs."""
        return self._out.lines

    def matches(self, pattern: str, start: int = 0) -> list[re.Match[str]]:
        """Log lines from number `start` on that match the regular expression."""
        return [m for line in self.lines[start:] if (m := re.search(pattern, line))]

    def wait_line(self, pattern: str, seconds: float = 20.0, *, count: int = 1, start: int = 0) -> re.Match[str]:
        """Wait for the `count`-th log line with `pattern`. Fails with the log if it does not come or qd ended."""

        def found() -> re.Match[str] | None:
            hits = self.matches(pattern, start)
            if len(hits) < count and self.process.poll() is not None and self._err.ended(5):
                hits = self.matches(pattern, start)
                if len(hits) < count:
                    raise RuntimeError(
                        f"ended with {self.process.returncode} without a line {pattern!r}\n{self.tail()}"
                    )
            return hits[count - 1] if len(hits) >= count else None

        try:
            match = eventually(found, seconds, what=f"line {pattern!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tail()}") from None
        assert match is not None
        return match

    def tail(self, count: int = 40) -> str:
        return "\n".join(self.lines[-count:])

    def signal(self, number: signals.Signals) -> None:
        self.process.send_signal(number)

    def session(self) -> list[psutil.Process]:
        """Every living process of this session, the started one first. Zombies do not count."""
        found = []
        for process in self._ours():
            try:
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return sorted(found, key=lambda p: p.pid != self.pid)

    def children(self, title: str = "") -> list[psutil.Process]:
        """Living descendants of the master in its session whose process title contains `title`, nearer ones first (pids do
        not show age)."""
        ours, family = {process: parent(process) for process in self._ours()}, [self.pid]
        while more := [process.pid for process, of in ours.items() if of in family and process.pid not in family]:
            family += more
        found = [process for process in ours if process.pid in family[1:] and title in titled(process)]
        return sorted(found, key=lambda process: family.index(process.pid))

    def _ours(self) -> Iterator[psutil.Process]:
        """The processes of the session. Called many times per second, so it inspects no other process of the machine. Once
        the program has ended and its pid is in use again, the session id may belong to another session."""
        if self.process.returncode is not None and psutil.pid_exists(self.pid):
            return
        for pid in psutil.pids():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getsid(pid) == self.pid:
                    yield psutil.Process(pid)

    def child(self, title: str, seconds: float = 20.0) -> psutil.Process:
        """Wait for a child with this title."""
        return eventually(lambda: self.children(title), seconds, what=f"a child titled {title!r}")[0]

    def wait(self, seconds: float = 20.0) -> int:
        """Wait until the program has ended and all its lines are read. Returns the exit code."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds:g} s\n{self.tail()}") from None
        self._out.ended(5)
        self._err.ended(5)
        return code

    def stop(self, number: signals.Signals = signals.SIGTERM, *, code: int = 0, seconds: float = 20.0) -> None:
        """Send a signal, and assert that the program ends cleanly."""
        self.signal(number)
        self.ends_clean(code=code, seconds=seconds)

    def ends_clean(self, *, code: int = 0, seconds: float = 20.0, orphans: float = 10.0) -> None:
        """Assert that the program ends with this exit code, and that no process of its session is left `orphans` seconds
        later."""
        got = self.wait(seconds)
        assert got == code, f"exit code {got}, expected {code}\n{self.tail()}"
        eventually(
            lambda: not self.session(), orphans, what=f"no process left of {[titled(p) for p in self.session()]}"
        )

    def kill(self) -> None:
        """SIGKILL the master, as a machine's OOM killer would, and reap it."""
        self.process.kill()
        self.process.wait(20)

    def sweep(self) -> list[str]:
        """Kill the remaining processes of the session by pid. Returns their titles."""
        titles = [titled(process) for process in self.session()]
        eventually(self._swept, 20, what="a dead session")
        self.process.wait(20)
        return titles

    def _swept(self) -> bool:
        """Called repeatedly: a killed process may have just forked another one."""
        left = self.session()
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        return not left


def parent(process: psutil.Process) -> int:
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return 0


def titled(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()).rstrip("\0 ") or process.name()
    except psutil.Error:
        return ""


def waiting(work: Procs, count: int = 1, seconds: float = 20.0) -> list[psutil.Process]:
    """Wait until this many workers of `qd work` are idle, and return them."""

    def found() -> list[psutil.Process] | None:
        there = work.children("waiting on")
        return there if len(there) == count else None

    return eventually(found, seconds, what="idle workers")


CGROUPS = Path("/sys/fs/cgroup")


class ControlGroup:
    """A control group of the kernel for one test, with real limits, v1 or v2."""

    def __init__(self, folder: Path, v2: bool) -> None:
        self.folder, self.v2 = folder, v2

    def limit(self, v1: str, v2: str, value: int | str) -> None:
        (self.folder / (v2 if self.v2 else v1)).write_text(str(value))

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()

    @property
    def pids(self) -> list[int]:
        return [int(line) for line in self.read("cgroup.procs").split()]

    @property
    def words(self) -> list[str]:
        """Prefix for a command that should run in the group."""
        return ["sh", "-c", f'echo $$ >{self.folder}/cgroup.procs && exec "$@"', "sh"]

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Move this process into the group for a while. Processes that it starts stay there."""
        home = self._home()
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            (home / "cgroup.procs").write_text(str(os.getpid()))

    def gone(self) -> bool:
        """Remove the group and the processes that a failed test left in it. Returns whether it is gone."""
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(OSError):  # busy: a process is still ending
            self.folder.rmdir()
        return not self.folder.exists()

    def _home(self) -> Path:
        """The current group of this process."""
        controller = "" if self.v2 else self.folder.relative_to(CGROUPS).parts[0]
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == controller:
                return CGROUPS / controller / path.lstrip("/")
        raise AssertionError(f"in no group of {controller!r}")


@contextmanager
def control_group(controller: str, name: str) -> Iterator[ControlGroup]:
    """A new group of `memory` or `pids`. Skips the test if it cannot be created: not root, or in a container."""
    v1 = (CGROUPS / controller / "cgroup.procs").exists()
    folder = CGROUPS / controller / name if v1 else CGROUPS / name
    try:
        if not v1:
            (CGROUPS / "cgroup.subtree_control").write_text(f"+{controller}")
        folder.mkdir()
    except OSError as error:
        missing(f"the right to make a group of {controller}: {error}")
    found = ControlGroup(folder, not v1)
    try:
        yield found
    finally:
        eventually(found.gone, 20, what="an empty group")


UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
REAPER = "import os, time\nwhile True:\n    try: os.wait()\n    except ChildProcessError: time.sleep(0.005)\n"


def new_namespace() -> list[str]:
    """Prefix for a command that becomes PID 1 of a new namespace. Skips the test if that is not allowed."""
    program("nsenter")
    done = os.geteuid() == 0 and subprocess.run([program(UNSHARE[0]), *UNSHARE[1:], "true"], check=False)
    if not done or done.returncode != 0:
        missing("root with the right to unshare namespaces")
    return UNSHARE


def namespace_init(procs: Procs) -> int:
    """PID 1 of the namespace that `procs` created, as its pid outside."""
    children = Path(f"/proc/{procs.pid}/task/{procs.pid}/children")
    pid: int = eventually(lambda: [int(word) for word in children.read_text().split()], what="a PID 1")[0]
    return pid


def by_inner_pid(processes: Iterable[psutil.Process]) -> dict[int, psutil.Process]:
    """These processes by their pids inside the namespace, without those that have ended."""
    found = {}
    for process in processes:
        with suppress(FileNotFoundError, ProcessLookupError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            found[next(int(line.split()[-1]) for line in status.splitlines() if line.startswith("NSpid:"))] = process
    return found


# clone3(2) with a chosen pid for the child; nothing else in the namespace changes. Prints the pid, or -errno.
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
    """Unrelated processes with pids that qd's processes had. inside: PID 1 of the namespace, as its pid outside."""

    def __init__(self, inside: int) -> None:
        self.words = [
            "nsenter",
            "-t",
            str(inside),
            "-p",
            "-m",
            "--wd",
        ]  # prefix for a command that runs in the namespace
        self.numbers: list[int] = []

    def take(self, number: int) -> None:
        """Start one with this pid, as soon as it is free."""
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
