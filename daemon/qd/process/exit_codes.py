"""Every exit code and every reason to stop, in one table. It imports nothing else of qd.

The exit code of a child reports to the master why the child left.
"""

from __future__ import annotations

import os
from enum import Enum, IntEnum

OVER_TIMEOUT = "over its timeout, "  # prefix of the text for a worker that was killed because its job timed out


class Exit(IntEnum):
    OK = 0  # stopped on request: a signal, `qd restart`, an empty queue, --once
    BUG = 1  # the whole program with --no-respawn, too: a worker crashed or was killed
    USAGE = 2
    IMPORT = 3  # the app does not import, or no worker could boot
    MEMORY = 12  # a child over --memory (Laravel's number); the whole program only with --no-respawn
    LIMIT = 14  # a child after --max-jobs or --max-time
    RAISED = 15  # a child that raised an EndJob or lost its descriptors: its clients may be in an undefined state
    RECYCLE = 16  # a child whose job raised an error of app.recycle_on
    UNAVAILABLE = 69  # other commands: the server is unreachable
    CONFIG = 78


class StopReason(Enum):
    """Why a worker leaves, in the order in which it checks (Laravel 13, Worker.php, stopIfNecessary)."""

    SIGNAL = ("signal", Exit.OK)
    RAISED = ("raised", Exit.RAISED)
    RECYCLE = ("recycle", Exit.RECYCLE)
    MEMORY = ("memory", Exit.MEMORY)
    ONCE = ("once", Exit.OK)
    MAX_TIME = ("max-time", Exit.LIMIT)
    MAX_JOBS = ("max-jobs", Exit.LIMIT)

    @property
    def word(self) -> str:
        return self.value[0]

    @property
    def code(self) -> Exit:
        return self.value[1]


ORDERLY = frozenset(reason.code for reason in StopReason)
"""The expected exit codes: the master replaces such a child at once."""


def of_program(code: int) -> int:
    """The exit code of the whole program after its only child, or the first one not replaced, has left with `code`."""
    return int(Exit.OK) if code in ORDERLY and code != Exit.MEMORY else code


def signal_name(number: int) -> str:
    """`SIGKILL`; `SIG40` for a signal without a name (most real-time signals)."""
    import signal

    known = number in {s.value for s in signal.Signals}
    return signal.Signals(number).name if known else f"SIG{number}"


def ending(status: int, *, oom: bool | None = False, in_job: bool = False) -> str:
    """Describe a wait status of os.waitpid: `exit 12 (memory)`, `signal 9 (SIGKILL)`. oom: the kernel killed the process for
    lack of memory. in_job: it was running a job."""
    if oom:
        return f"{ending(status)}, out of memory (the kernel)"
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)} ({signal_name(os.WTERMSIG(status))})"
    code = os.WEXITSTATUS(status)
    if in_job:
        return f"left with exit code {code} in the middle of a job (os._exit or sys.exit)"
    named = code == Exit.IMPORT or (code in ORDERLY and code != Exit.OK)
    return f"exit {code}" + (f" ({Exit(code).name.lower()})" if named else "")
