"""Protects qd's own code that runs inside a job, such as a push, from being interrupted by an alarm.

An alarm that arrives inside `with shield:` is raised when the outermost block ends. Calls to a server on behalf of a job
use it, and forks; the worker's alarm decides what to raise. Signals interrupt the main thread only; in other threads the
shield does nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType


def in_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


class Shield:
    """`with shield:` around calls that must not be interrupted. Nests."""

    def __init__(self) -> None:
        self.depth = 0
        self.overdue: Callable[[], None] | None = None  # set by an alarm that arrived inside a block

    def __enter__(self) -> None:
        if in_main_thread():
            self.depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not in_main_thread():
            return
        self.depth -= 1
        if self.depth == 0:
            self.ring()

    @contextmanager
    def lowered(self) -> Iterator[None]:
        """For user code inside a block, such as a job that runs at its dispatch: an alarm may end it."""
        if not in_main_thread():
            yield
            return
        before, self.depth = self.depth, 0
        try:
            self.ring()
            yield
        finally:
            self.depth = before

    def put_down(self) -> bool:
        """End a block where an exception would be swallowed. True: an alarm is overdue and must be repeated soon."""
        if in_main_thread():
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
