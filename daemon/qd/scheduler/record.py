"""What a run tells its scheduler: a page of memory that both see, so that no closed descriptor loses it.

The run writes, the scheduler reads, and has all of it once the run was reaped.
"""

from __future__ import annotations

import mmap
import struct
import time
from enum import IntEnum

import msgspec

SIZE = 1 << 16  # touched as far as it is written
HEAD = struct.Struct("<qqi")  # stage, monotonic ns at which it began, bytes of the outcome behind


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
        self.enter(Stage.BEFORE)

    def enter(self, stage: Stage, length: int = 0) -> None:
        HEAD.pack_into(self._page, 0, stage, time.monotonic_ns(), length or self._head()[2])

    def settle(self, outcome: Outcome) -> None:
        text = msgspec.json.encode(outcome)
        if len(text) > SIZE - HEAD.size:
            text = msgspec.json.encode(msgspec.structs.replace(outcome, trace=None))
        self._page[HEAD.size : HEAD.size + len(text)] = text
        self.enter(Stage.AFTER, len(text))

    @property
    def stage(self) -> Stage:
        return Stage(self._head()[0])

    @property
    def since(self) -> int:
        """The monotonic ns at which the stage began."""
        return self._head()[1]

    @property
    def outcome(self) -> Outcome | None:
        """None: the function or command had not ended."""
        length = self._head()[2]
        return msgspec.json.decode(self._page[HEAD.size : HEAD.size + length], type=Outcome) if length else None

    def close(self) -> None:
        self._page.close()

    def _head(self) -> tuple[int, int, int]:
        found: tuple[int, int, int] = HEAD.unpack_from(self._page, 0)
        return found
