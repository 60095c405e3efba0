"""EventStream: the events of a job, as handle.events() returns them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Literal

from qd.drivers.pausing import Pausing, block_on, wait_for
from qd.drivers.types import JobEvent

Status = Literal["ready", "delayed", "running", "done", "failed", "unknown"]
Read = Callable[[int], Pausing[tuple[list[JobEvent], Status | None]]]  # waits for the events after a number


class EventStream:
    """The events of a job, for `async for` and `for`, as handle.events() returns it.

    Attributes:
        since: The number of the last event it has returned, which is where to resume.
        status: "done", "failed" or "unknown" once it has found that the job has ended; None before.
    """

    def __init__(self, read: Read, since: int, *, once: bool) -> None:
        """once: end after the first read."""
        self._read, self._once = read, once
        self.since = since
        self.status: Status | None = None

    def __iter__(self) -> Iterator[JobEvent]:
        goes_on = True
        while goes_on:
            events, self.status = block_on(self._read(self.since))
            yield from self._noted(events)
            goes_on = not self._once and self.status is None

    async def __aiter__(self) -> AsyncIterator[JobEvent]:
        goes_on = True
        while goes_on:
            events, self.status = await wait_for(self._read(self.since))
            for event in self._noted(events):
                yield event
            goes_on = not self._once and self.status is None

    def _noted(self, events: Sequence[JobEvent]) -> Iterator[JobEvent]:
        for event in events:
            self.since = event.number
            yield event
