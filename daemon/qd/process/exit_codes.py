"""Every exit code and every reason to stop, in one table. A leaf: it imports nothing.

Children say by their exit code why they left, so that the master need not be told in any other way.
"""

from __future__ import annotations

from enum import Enum, IntEnum

OVER_TIMEOUT = "over its timeout, "  # begins the words for how a worker ended whose job was


class Exit(IntEnum):
    """What `qd work` and its children exit with."""

    OK = 0  # asked to stop: a signal, `qd restart`, an empty queue, --once
    BUG = 1  # the whole program with --no-respawn, too: a worker crashed or was killed
    USAGE = 2
    IMPORT = 3  # the app does not import, or no worker could boot
    MEMORY = 12  # a child over --memory (Laravel's number); the whole program only with --no-respawn
    LIMIT = 14  # a child after --max-jobs or --max-time
    RAISED = 15  # a child that raised JobTimeout or a sister, or lost its descriptors: its clients may be left half-way
    RECYCLE = 16  # a child whose job raised an error of app.recycle_on
    UNAVAILABLE = 69  # other commands: the server is away
    CONFIG = 78


class StopReason(Enum):
    """Why a worker leaves, in the order in which it asks itself (Laravel 13, Worker.php, stopIfNecessary)."""

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


def is_orderly(code: int) -> bool:
    """Whether a child that left with this exit code did nothing wrong: the master replaces it at once."""
    return code in ORDERLY


def of_program(code: int) -> int:
    """What the whole program exits with after its only child, or the first that is not replaced, has left with `code`."""
    return int(Exit.OK) if is_orderly(code) and code != Exit.MEMORY else code


def ending(status: int, *, oom: bool | None = False, in_job: bool = False) -> str:
    """How a child ended, in words, with what is known beside its wait status. in_job: nobody expected it to leave then."""
    import os

    if oom:
        return f"{told(status)}, out of memory (the kernel)"
    if in_job and os.WIFEXITED(status):
        return f"left with exit code {os.WEXITSTATUS(status)} in the middle of a job (os._exit or sys.exit)"
    return told(status)


def signal_name(number: int) -> str:
    """`SIGKILL`; of one without a name (most real-time signals) `SIG40`."""
    import signal

    known = number in {s.value for s in signal.Signals}
    return signal.Signals(number).name if known else f"SIG{number}"


def told(status: int) -> str:
    """A wait status (as os.waitpid gives it) in words: `exit 12 (memory)`, `signal 9 (SIGKILL)`."""
    import os

    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)} ({signal_name(os.WTERMSIG(status))})"
    code = os.waitstatus_to_exitcode(status)
    named = code == Exit.IMPORT or (is_orderly(code) and code != Exit.OK)
    return f"exit {code}" + (f" ({Exit(code).name.lower()})" if named else "")
