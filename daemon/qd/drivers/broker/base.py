"""What a driver whose server only keeps jobs must be able to do, and the keyspace it borrows for everything else.

Broker         a job server without keys: beanstalkd, SQS
LazyKeyspace   the borrowed keyspace, opened on first use: a producer of plain jobs never needs it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from qd.drivers.base import Patience
from qd.drivers.keyspace.base import Keyspace
from qd.drivers.types import Gaps
from qd.errors import QdError


class Delivery(NamedTuple):
    """A job as the broker hands it out.

    id: the same on every delivery, without a space. handle: token used to delete the job; does not begin with a space.
    attempts, crashes: as the broker counts them, for programs that do not write them into the payload.
    """

    queue: str
    id: str
    handle: str
    body: bytes
    attempts: int = 0
    crashes: int = 0


class QueueCounts(NamedTuple):
    """How many jobs the broker has. oldest: seconds the first ready job has waited, or None if unknown."""

    ready: int
    delayed: int
    reserved: int
    oldest: float | None = None


class Broker(Protocol):
    """Belongs to one thread of one process, and connects on first use. Every call may raise ConnectionLost, ServerBusy or
    ServerRefused."""

    limits: Gaps
    max_delay: float  # seconds that the broker itself can delay a job; a later job waits in the outbox
    counts_ended: bool  # whether counts() still includes jobs that have ended but are not deleted yet
    slow: bool  # reserving takes long, so the previous job is acked first, by a call of its own

    @property
    def connection(self) -> Patience: ...

    def check(self, queue: str) -> None:
        """Raises ServerRefused if the server cannot have a queue of this name."""

    def send(self, queue: str, jobs: Sequence[tuple[bytes, float]]) -> list[QdError | None]:
        """Send payloads, each with its delay in seconds, in order. Raises nothing. Returns an error per job: NeverTaken if
        the server will never accept it, ConnectionLost if it may or may not have been sent."""

    def reserve(self, queues: Sequence[str], seconds: float, wake: int = -1) -> Delivery | None:
        """Reserve a job of the first of `queues` that has one, for the connection's retry_after. Returns None if none
        arrives within `seconds` (0: do not wait), or before the descriptor `wake` is readable."""

    def keep_reserved(self, delivery: Delivery | None) -> None:
        """Keep this delivery reserved until the next call. None: keep none."""

    def extend(self, delivery: Delivery) -> bool:
        """Reserve it for another retry_after from now. Returns False if this worker no longer has it."""

    def delete(self, queue: str, id: str, handle: str, *, soon: bool = False) -> None:
        """Delete a job, or start to: `deleted` reports it. A job that does not exist counts as deleted. soon: a `reserve`
        follows, and a broker that is not `slow` sends the delete along with it."""

    def deleted(self, wait: bool = False) -> list[tuple[str, str]]:
        """(queue, id) of jobs that are certainly deleted, each reported once. wait: finish pending deletes first."""

    def release(self, delivery: Delivery, delay: float) -> None:
        """Make a reserved job available to other workers in `delay` seconds."""

    def renew(self, held: Sequence[tuple[str, str, str]]) -> None:
        """Called by a keeper every third of the lease: live workers still hold these (queue, id, handle)."""

    def exists(self, queue: str, id: str) -> bool | None:
        """Whether the broker still has the job. None if it cannot be queried."""

    def counts(self, queue: str) -> QueueCounts: ...

    def queues(self) -> Sequence[str]:
        """The server's queues; empty if it cannot tell them from those of other programs."""

    def clear(self, queue: str, forget: Callable[[bytes], None]) -> int:
        """Delete ready and delayed jobs, pass each payload to `forget`, and return how many."""

    def close(self) -> None:
        """The next call connects again. Reserved jobs that were not answered become available again."""


class LazyKeyspace:
    """Stands for a Keyspace that is opened on first use. open: raises ConfigError if there is none to borrow. server: the
    driver that its errors name."""

    def __init__(self, open: Callable[[], Keyspace], server: str) -> None:
        self._open, self._server = open, server
        self._space: Keyspace | None = None
        self._patience = (5.0, 5.0)  # seconds to connect, and for each reply
        self._progress: Callable[[float], None] | None = None

    @property
    def space(self) -> Keyspace:
        if self._space is None:
            space = self._open()
            space.patience(*self._patience)
            if self._progress is not None:
                space.on_progress(self._progress)
            self._space = space
        return self._space

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.space, name)
        if not callable(found):
            return found

        def call(*args: Any) -> Any:
            try:
                return found(*args)
            except QdError as error:
                error.server = self._server
                raise

        setattr(self, name, call)  # the next call finds it there
        return call

    def patience(self, connect: float, answer: float) -> None:
        self._patience = connect, answer
        if self._space is not None:
            self._space.patience(connect, answer)

    def on_progress(self, call: Callable[[float], None]) -> None:
        self._progress = call
        if self._space is not None:
            self._space.on_progress(call)

    def close(self) -> None:
        if self._space is not None:
            self._space.close()
