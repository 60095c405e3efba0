"""What a server has been told to do, and nobody has waited for yet (wire.py)."""

from __future__ import annotations

from typing import Any

from qd.errors import ConnectionLost, QdError


class Owed:
    """The replies to so many commands that were written. They are read when somebody asks for them, or before another
    command is sent; a connection that is given up before that takes them along."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.replies: list[Any] | None = None
        self.error: QdError = ConnectionLost("the connection was closed before the reply was read")

    def __call__(self) -> list[Any]:
        if self.replies is None:
            raise self.error
        return self.replies
