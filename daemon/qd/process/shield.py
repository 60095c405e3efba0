"""Code of ours that runs inside a job and must not be torn apart by an alarm: sending, settling.

An alarm that comes while a shield is held is raised when the last one is put down. Used by whoever talks to a server on
behalf of a job, and around forks; the worker's alarm says what to raise. Only the main thread is ever interrupted, so in
others it is air.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType


def in_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


class Shield:
    """`with shield:` around calls that must end as they began. Nests."""

    def __init__(self) -> None:
        self.depth = 0
        self.overdue: Callable[[], None] | None = None  # set by an alarm that found the shield up

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
        """User code inside of ours, a job that runs where it is sent: an alarm may end it."""
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
        """End a `with` where an exception would be swallowed. True: an alarm is overdue, and is to come again soon."""
        if in_main_thread():
            self.depth -= 1
        return self.depth == 0 and self.overdue is not None

    def ring(self) -> bool:
        """Raise what is overdue. False: nothing is."""
        if self.overdue is None:
            return False
        overdue, self.overdue = self.overdue, None
        overdue()
        return True


shield = Shield()
