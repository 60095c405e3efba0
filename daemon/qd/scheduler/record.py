"""What a run tells its scheduler: a page of memory that both see, so that no closed descriptor loses it.

The run writes, the scheduler reads. What the function's own code may have scribbled over it is never a reason to fall: it
counts as not told.
"""

from __future__ import annotations

import mmap
import struct
import time
from enum import IntEnum

import msgspec

SIZE = 1 << 16  # bytes; used as far as it is written
HEAD = struct.Struct("<qqq")  # stage, monotonic ns at which it began, bytes of the outcome behind


class Stage(IntEnum):
    BEFORE = 0  # the event Starting, opening the output, `before`
    BODY = 1  # the function or the command
    AFTER = 2  # the outcome is known; `after`, on_success or on_failure, the events
    OVER = 3


class Outcome(msgspec.Struct, frozen=True):
    """How a function or command ended. runtime: seconds. code: the exit code, below 0 a signal, None where there is none.
    error: in words, "" when it ended well."""

    runtime: float
    code: int | None = None
    error: str = ""
    trace: str | None = None


class Record:
    def __init__(self) -> None:
        self._page = mmap.mmap(-1, SIZE)
        self._made = time.monotonic_ns()
        self.enter(Stage.BEFORE)

    def enter(self, stage: Stage, length: int = 0) -> None:
        """The run is in this stage from now on. length: of the outcome that has been written, 0: as before."""
        HEAD.pack_into(self._page, 0, stage, time.monotonic_ns(), length or self._head()[2])

    def settle(self, outcome: Outcome) -> None:
        """The function or command has ended like this; `AFTER` begins. An outcome too long for the page loses its trace."""
        text = encoded(outcome)
        if len(text) > SIZE - HEAD.size:
            text = encoded(msgspec.structs.replace(outcome, trace=None))
        self._page[HEAD.size : HEAD.size + len(text)] = text
        self.enter(Stage.AFTER, len(text))

    @property
    def stage(self) -> Stage:
        found = self._head()[0]
        return Stage(found) if found in list(Stage) else Stage.BODY

    @property
    def since(self) -> int:
        """The monotonic ns at which the stage began."""
        found = self._head()[1]
        return found if self._made <= found <= time.monotonic_ns() else self._made

    @property
    def outcome(self) -> Outcome | None:
        """None: the function or command had not ended."""
        length = self._head()[2]
        if not 0 < length <= SIZE - HEAD.size:
            return None
        try:
            return msgspec.json.decode(self._page[HEAD.size : HEAD.size + length], type=Outcome)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None

    def close(self) -> None:
        self._page.close()

    def _head(self) -> tuple[int, int, int]:
        found: tuple[int, int, int] = HEAD.unpack_from(self._page, 0)
        return found


def encoded(outcome: Outcome) -> bytes:
    """A text of the user's may have in it what is no text (a file name, say)."""
    plain = {"error": plain_text(outcome.error), "trace": outcome.trace and plain_text(outcome.trace)}
    return msgspec.json.encode(msgspec.structs.replace(outcome, **plain))


def plain_text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
