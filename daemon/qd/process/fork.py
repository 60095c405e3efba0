"""Fork a child, let a process adopt a grandchild, kill a child with its process group and with what its jobs left running.

The child's branch never returns. All signals are blocked until the child has its own handlers. No signal is lost, and
none runs the parent's handler.

What a job left running is killed before the job may run again. A job's subprocess has QD_OWNER in its initial environment,
whatever its process group or session:

    <master token>/<slot>                                  of a job
    <master token>/run-<pid of its scheduler>-<number>     of a run of the schedule

A copy that a job forked without exec does not have it, but is usually in the worker's group, which is killed with the
worker. `alive` is called repeatedly during a search, so that the caller can write its heartbeat.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource  # noqa: F401 - os.wait4 imports it at its first call, when there may be no descriptor left
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from qd.process import proc, signals
from qd.process.exit_codes import Exit
from qd.redaction import redact

Body = Callable[[], int]
KILLING = 2.0  # limit for all kills of one job
AGAIN = 0.002  # seconds between two searches
TICKS = os.sysconf("SC_CLK_TCK")
NO_PROCESS = (errno.EAGAIN, errno.ENOMEM)  # errors of a failed fork; the intermediate process exits with them


def fork(body: Body, *, own_group: bool = True, die_with_parent: bool = True) -> int:
    """Run `body` in a child, which exits with its result. Returns the child's pid. Raises OSError (EAGAIN, ENOMEM).

    Until it opens a mailbox, the child ignores the signals a supervisor may send to the whole group (signals.deaf). What was
    printed is flushed first: the child has a copy of the buffer, and would write it again.
    """
    parent = os.getpid()
    flush_output()
    old = signal.pthread_sigmask(signal.SIG_BLOCK, signals.ALL)
    try:
        pid = os.fork()
        if pid == 0:
            _run(body, parent if die_with_parent else None, own_group)
        if own_group:
            with contextlib.suppress(OSError):  # the child calls it, too: the first call takes effect
                os.setpgid(pid, pid)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


def _run(body: Body, parent: int | None, own_group: bool) -> NoReturn:
    code = int(Exit.BUG)
    try:
        signals.deaf()
        if own_group:
            os.setpgid(0, 0)
        if parent is not None:
            die_with(parent)
        code = body()
    except SystemExit as leaving:
        code = code_of(leaving)
    except BaseException:
        sys.stderr.write(redact(traceback.format_exc()))
    finally:
        leave(code)


def code_of(leaving: SystemExit) -> int:
    """The exit code for sys.exit(...), as Python has it: a text is printed to stderr and the code is 1."""
    if leaving.code is None or isinstance(leaving.code, int):
        return leaving.code or 0
    print(leaving.code, file=sys.stderr)
    return 1


def leave(code: int) -> NoReturn:
    """Exit without running the parent's atexit handlers."""
    flush_output()
    os._exit(code)


def flush_output() -> None:
    """Flush what was printed. Either stream may be None, closed, or a pipe without a reader."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent` dies. If it has died already, exit now."""
    proc.set_pdeathsig(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(int(Exit.BUG))


def fork_for(adopter: int, body: Body, born: Callable[[int], None]) -> None:
    """Fork twice: the grandchild runs `body` as a child of the subreaper `adopter`.

    The intermediate process calls `born` with the grandchild's pid before the adoption. If the intermediate process is
    killed before that, the grandchild exits, because its pid is unknown. PR_SET_PDEATHSIG applies to the parent at the
    time of the call, so it is set after the adoption.

    Raises:
        OSError: One of the two forks failed.
    """

    def intermediate() -> int:
        middle = os.getpid()
        read_end, write_end = os.pipe()

        def adopted() -> int:
            os.close(write_end)
            if not os.read(read_end, 1):
                return int(Exit.BUG)
            os.close(read_end)
            while os.getppid() == middle:
                time.sleep(0.0002)
            die_with(adopter)
            return body()

        try:
            born(fork(adopted, die_with_parent=False))
            os.write(write_end, b"!")
        except OSError as error:
            return error.errno if error.errno in NO_PROCESS else int(Exit.BUG)
        return 0

    pid = fork(intermediate, own_group=False)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) in NO_PROCESS:
        raise OSError(os.WEXITSTATUS(status), os.strerror(os.WEXITSTATUS(status)))


def kill_group(pid: int) -> None:
    """SIGKILL a child that is not reaped yet, and its process group."""
    for send in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(pid, signal.SIGKILL)


def ended() -> int | None:
    """The pid of a child that has ended and is not reaped yet, or None. The pid stays reserved until `reap`."""
    try:
        info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return info.si_pid if info is not None else None


def reap(pid: int) -> tuple[int, int]:
    """Reap an ended child and kill its process group. Returns its wait status and its peak resident bytes."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # safe: the zombie still holds the number
    _, status, usage = os.wait4(pid, 0)
    return status, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def kill_left_by_job(owner: str, began: int, alive: Callable[[], None]) -> int:
    """SIGKILL the processes that the last job of `owner` ("<token>/<slot>") started after `began` (monotonic ns), but not
    those of earlier jobs, except in the same clock tick (10 ms). Returns their number."""
    wanted, since = owner.encode(), ticks_of(began)
    return kill_all(lambda: owned(lambda found: found == wanted, alive, since))


def kill_left_by_runs(token: str, scheduler: int, alive: Callable[[], None]) -> int:
    """The same for all runs of the dead scheduler with this pid: "<token>/run-<its pid>-<number>"."""
    wanted = f"{token}/run-{scheduler}-".encode()
    return kill_all(lambda: owned(lambda found: found.startswith(wanted), alive))


def kill_left_by_masters(tokens: list[str], alive: Callable[[], None]) -> int:
    """The same for all jobs of these masters."""
    wanted = {token.encode() for token in tokens}
    return kill_all(lambda: owned(lambda found: found.partition(b"/")[0] in wanted, alive)) if tokens else 0


def kill_all(found: Callable[[], Iterator[int]]) -> int:
    """Search and kill until nothing is found: a killed process may have started another."""
    ended, until = set[int](), time.monotonic() + KILLING
    while pids := list(found()):
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        ended.update(pids)
        if time.monotonic() > until:
            break
        time.sleep(AGAIN)
    return len(ended)


def owned(wanted: Callable[[bytes], bool], alive: Callable[[], None], since: int = 0) -> Iterator[int]:
    """The pids whose QD_OWNER is wanted, started at that clock tick after boot or later."""
    for count, folder in enumerate(Path("/proc").glob("[0-9]*")):
        if count % 64 == 0:
            alive()
        pid = int(folder.name)
        if since and (proc.start_time(pid) or 0) < since:
            continue
        with contextlib.suppress(OSError):
            _, found, rest = (b"\0" + (folder / "environ").read_bytes()).partition(b"\0QD_OWNER=")
            if found and wanted(rest.partition(b"\0")[0]):
                yield pid


def ticks_of(moment: int) -> int:
    """Convert a monotonic moment (ns) to the kernel's start times: clock ticks since the boot, suspended time included."""
    boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns() if hasattr(time, "CLOCK_BOOTTIME") else 0
    return (moment + boot) * TICKS // 1_000_000_000
