"""Forking a child and its first steps; adopting grandchildren; ending a child with everything it started.

The child's branch never returns. Between fork and its own handlers all signals are blocked, so that none is lost and
none runs the parent's handler.
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
from collections.abc import Callable
from typing import NoReturn

from qd.process import proc, signals
from qd.process.exit_codes import Exit
from qd.redaction import redact

Body = Callable[[], int]
# What a fork fails with; also how the process between says it by its exit code.
NO_PROCESS = (errno.EAGAIN, errno.ENOMEM)


def fork(body: Body, *, own_group: bool = True, die_with_parent: bool = True) -> int:
    """Run `body` in a child and exit with what it returns. Returns the child's pid. Raises OSError (EAGAIN, ENOMEM).

    The child starts deaf to what a supervisor may send to a whole group (signals.deaf), until it opens a mailbox.
    """
    parent = os.getpid()
    old = signal.pthread_sigmask(signal.SIG_BLOCK, signals.ALL)
    try:
        pid = os.fork()
        if pid == 0:
            _run(body, parent if die_with_parent else None, own_group)
        if own_group:
            with contextlib.suppress(OSError):  # the child does it as well: whoever comes first
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
    """What Python makes of sys.exit(...): a text goes to stderr and is 1."""
    if leaving.code is None or isinstance(leaving.code, int):
        return leaving.code or 0
    print(leaving.code, file=sys.stderr)
    return 1


def leave(code: int) -> NoReturn:
    """Exit without the parent's atexit handlers and without flushing twice what the parent had buffered."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def die_with(parent: int) -> None:
    """The kernel kills this process when `parent` dies; if it died just before, leave now."""
    proc.set_pdeathsig(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(int(Exit.BUG))


def fork_for(adopter: int, body: Body, born: Callable[[int], None]) -> None:
    """Double fork: the grandchild runs `body` as a child of the subreaper `adopter`. `born` is told its pid before it
    can be adopted, in the process between; when that one is killed before it has told, the grandchild ends: nobody would
    know of it. PR_SET_PDEATHSIG is bound to the parent of the moment: set after adoption. Raises OSError when one of the
    two processes cannot be had.
    """

    def between() -> int:
        middle = os.getpid()
        told, tell = os.pipe()

        def adopted() -> int:
            os.close(tell)
            if not os.read(told, 1):
                return int(Exit.BUG)
            os.close(told)
            while os.getppid() == middle:
                time.sleep(0.0002)
            die_with(adopter)
            return body()

        try:
            born(fork(adopted, die_with_parent=False))
            os.write(tell, b"!")
        except OSError as error:
            return error.errno if error.errno in NO_PROCESS else int(Exit.BUG)
        return 0

    pid = fork(between, own_group=False)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) in NO_PROCESS:
        raise OSError(os.WEXITSTATUS(status), os.strerror(os.WEXITSTATUS(status)))


def kill_group(pid: int) -> None:
    """SIGKILL a child of ours, not reaped yet, and everything in its group."""
    for send in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(pid, signal.SIGKILL)


def ended() -> int | None:
    """The pid of a child that has ended and is still to be reaped, or None. It keeps its pid until `reap`."""
    try:
        info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return info.si_pid if info is not None else None


def reap(pid: int) -> tuple[int, int]:
    """Take a child that has ended, its group with it. Returns its wait status and its peak resident bytes."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # safe: the zombie still holds the number
    _, status, usage = os.wait4(pid, 0)
    return status, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
