"""How long a connection waits for its server, and how that is made shorter for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Patience:
    """connect_timeout: seconds until there is a connection; timeout: until an answer begins. Both are always finite."""

    connect_timeout: float
    timeout: float

    def patience(self, connect: float, answer: float) -> None:
        """Seconds for a connection and for each answer, from now on."""
        self.connect_timeout, self.timeout = connect, answer

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Calls inside wait `seconds` at most for a connection, and as long for an answer."""
        before = self.connect_timeout, self.timeout
        try:
            self.patience(seconds, seconds)
            yield
        finally:
            self.patience(*before)
