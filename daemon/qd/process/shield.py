"""Protects qd's own code that runs inside a job, such as a push, from being interrupted by an alarm.

An alarm that arrives inside `with shield:` is raised when the outermost block ends. Calls to a server on behalf of a job
use it, and forks; the worker's alarm decides what to raise. Signals interrupt the main thread only. Another thread is
protected if it runs a job of a worker with several: its alarm is in `threads`. In the rest the shield does nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


def in_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


class ThreadAlarm(Protocol):
    """The alarm of a job that runs in a thread."""

    def shielded(self) -> None:
        """A block begins."""

    def unshielded(self, *, rings: bool = True) -> None:
        """A block ends; if it was the outermost one and `rings`, raise what is overdue."""

    def depth_set(self, depth: int) -> int:
        """Returns the depth before."""


threads: dict[int, ThreadAlarm] = {}
"""The alarms of the threads that run user code now, by the thread's number."""


class Shield:
    """`with shield:` around calls that must not be interrupted. Nests."""

    def __init__(self) -> None:
        self.depth = 0
        self.overdue: Callable[[], None] | None = None  # set by an alarm that arrived inside a block

    def __enter__(self) -> None:
        if in_main_thread():
            self.depth += 1
        elif (alarm := threads.get(threading.get_ident())) is not None:
            alarm.shielded()

    def __exit__(self, *error: object) -> None:
        if not in_main_thread():
            if (alarm := threads.get(threading.get_ident())) is not None:
                alarm.unshielded()
            return
        self.depth -= 1
        if self.depth == 0:
            self.ring()

    @contextmanager
    def lowered(self) -> Iterator[None]:
        """For user code inside a block, such as a job that runs at its dispatch: an alarm may end it."""
        if not in_main_thread():
            alarm = threads.get(threading.get_ident())
            outside = alarm.depth_set(0) if alarm is not None else 0
            try:
                yield
            finally:
                if alarm is not None:
                    alarm.depth_set(outside)
            return
        before, self.depth = self.depth, 0
        try:
            self.ring()
            yield
        finally:
            self.depth = before

    def put_down(self) -> bool:
        """End a block where an exception would be swallowed. True: an alarm is overdue and must be repeated soon."""
        if not in_main_thread():
            if (alarm := threads.get(threading.get_ident())) is not None:
                alarm.unshielded(rings=False)
            return False
        self.depth -= 1
        return self.depth == 0 and self.overdue is not None

    def ring(self) -> bool:
        """Raise the overdue alarm. False if there is none."""
        if self.overdue is None:
            return False
        overdue, self.overdue = self.overdue, None
        overdue()
        return True


shield = Shield()
