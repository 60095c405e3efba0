"""How far a command has come: a bar where stderr is a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from qd.cli import context, output

EVERY = 5.0  # seconds between two lines


class Progress:
    """total: how many there are; None: that is not known before they have been looked at."""

    def __init__(self, what: str, total: int | None) -> None:
        self.what, self.total = what, total
        self.said_at = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty() and not context.given().json:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._bar.add_task(self.what, total=self.total)
            self._bar.start()
        return self

    def at(self, done: int) -> None:
        """So many are done."""
        if self._bar is not None:
            self._bar.update(0, completed=done)
        elif time.monotonic() - self.said_at >= EVERY:
            self.said_at = time.monotonic()
            output.note(f"{output.count(done, 'job')} {self.what} so far")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
