"""How long a connection waits for its server, and whom it tells that it makes progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Patience:
    """connect_timeout: seconds until there is a connection; timeout: until an answer begins. Both are always finite.

    about: called when the server has answered, with 0, and before a step that may take longer than `timeout`, with its
    seconds.
    """

    connect_timeout: float
    timeout: float
    about: Callable[[float], None] | None = None

    def patience(self, connect: float, answer: float) -> None:
        """Seconds for a connection and for each answer, from now on."""
        self.connect_timeout, self.timeout = connect, answer

    def on_progress(self, call: Callable[[float], None]) -> None:
        """Report progress to `call` from now on."""
        self.about = call

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Calls inside wait `seconds` at most for a connection, and as long for an answer."""
        before = self.connect_timeout, self.timeout
        try:
            self.patience(seconds, seconds)
            yield
        finally:
            self.patience(*before)
