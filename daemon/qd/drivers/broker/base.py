"""What a server must be able to do that keeps jobs and nothing else. queue.py asks; beanstalkd/ and sqs/ are some.

The keyspace that is borrowed, opened when it is first asked: plain jobs are sent without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol

from qd.drivers.keyspace.base import Arg, Keyspace, Replies, Script, ScriptCall
from qd.drivers.types import Gaps
from qd.errors import QdError


class Delivery(NamedTuple):
    """A job as the server hands it out. id: the same however often that happens, without a space; handle: what it is deleted
    by, without a space at its beginning.

    attempts, crashes: made before by programs that do not write them into the payload, as far as the server counts.
    """

    queue: str
    id: str
    handle: str
    body: bytes
    attempts: int = 0
    crashes: int = 0


class Standing(NamedTuple):
    """How many jobs the server has. oldest: seconds the first ready one waits, None: nobody knows."""

    ready: int
    delayed: int
    reserved: int
    oldest: float | None = None


class Broker(Protocol):
    """Belongs to one thread of one process, and connects on first use. Every call may raise ConnectionLost, ServerBusy or
    ServerRefused. timeout: seconds for each answer."""

    limits: Gaps
    longest: float  # seconds that a job may be delayed for by the server itself; a later one waits in the outbox
    counts_ended: bool  # as reserved: jobs that are ended and not dropped yet. False: those are known here long after
    slow: bool  # a look at it lasts: the job before is acked first, by a call of its own

    @property
    def timeout(self) -> float: ...

    @property
    def place(self) -> str:
        """Where it is, for people: without a password."""

    def patience(self, connect: float, answer: float) -> None:
        """Seconds to connect, and for each answer."""

    def on_progress(self, call: Callable[[float], None]) -> None:
        """As Keyspace.on_progress."""

    def check(self, queue: str) -> None:
        """Raises ServerRefused when the server can have no queue of this name."""

    def send(self, queue: str, jobs: Sequence[tuple[bytes, float]]) -> list[QdError | None]:
        """Send payloads, each with its delay in seconds, in order. Raises nothing; for each what went wrong: NeverTaken when
        it never will be taken, ConnectionLost when nobody knows whether it was."""

    def take(self, queues: Sequence[str], seconds: float, wake: int = -1) -> Delivery | None:
        """Reserve a job of the first of `queues` that has one, for the connection's retry_after. None: there is none, and
        none came within `seconds`, or before the descriptor `wake` was readable. 0: do not wait."""

    def hold(self, parcel: Delivery | None) -> None:
        """Keep it reserved, however long it takes, until the next call of this. None: there is nothing to keep any more."""

    def kept(self, parcel: Delivery) -> bool:
        """Reserve a parcel for another retry_after from now. False: this worker does not have it any more."""

    def drop(self, queue: str, id: str, handle: str, *, soon: bool = False) -> None:
        """Delete a job. It need not be done when this returns: `gone` tells. One that is not there is gone. soon: a `take`
        follows, and what is not `slow` deletes it with that."""

    def gone(self, wait: bool = False) -> list[tuple[str, str]]:
        """(queue, id) of dropped ones that are deleted for certain, each told once. wait: let all of them be, first."""

    def put_back(self, parcel: Delivery, delay: float) -> None:
        """Let go of a reserved job: somebody may have it in `delay` seconds."""

    def renewed(self, held: Sequence[tuple[str, str, str]]) -> None:
        """By a keeper, at a third of the lease: these (queue, id, handle) are in the hands of its live workers."""

    def there(self, queue: str, id: str) -> bool | None:
        """Whether the server still has it. None: nobody can tell."""

    def standing(self, queue: str) -> Standing: ...

    def queues(self) -> Sequence[str]:
        """Those that the server has. None where it also has those of other programs and cannot tell them apart."""

    def clear(self, queue: str, forget: Callable[[bytes], None]) -> int:
        """Delete what is ready or delayed, and tell each payload to `forget`. Returns how many."""

    def within(self, seconds: float) -> AbstractContextManager[None]:
        """Calls inside wait no longer than that."""

    def close(self) -> None:
        """The next call connects anew. What was reserved and not answered goes back."""


class Named:
    """What is raised inside names the server."""

    def __init__(self, server: str) -> None:
        self.server = server

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, QdError):
            error.server = self.server


class LazyKeyspace:
    """A Keyspace. open: raises ConfigError where there is none to borrow. server: its driver; its errors name it."""

    def __init__(self, open: Callable[[], Keyspace], server: str) -> None:
        self._open, self.named = open, Named(server)
        self._space: Keyspace | None = None
        self._patience = (5.0, 5.0)  # seconds to connect, and for each reply
        self._about: Callable[[float], None] | None = None

    @property
    def space(self) -> Keyspace:
        if self._space is None:
            space = self._open()
            space.patience(*self._patience)
            if self._about is not None:
                space.on_progress(self._about)
            self._space = space
        return self._space

    def patience(self, connect: float, answer: float) -> None:
        self._patience = connect, answer
        if self._space is not None:
            self._space.patience(connect, answer)

    def on_progress(self, call: Callable[[float], None]) -> None:
        self._about = call
        if self._space is not None:
            self._space.on_progress(call)

    @property
    def place(self) -> str:
        return self.space.place

    @property
    def stranger(self) -> str:
        return self.space.stranger

    def call(self, *args: Arg) -> Any:
        with self.named:
            return self.space.call(*args)

    def call_many(self, commands: Sequence[tuple[Arg, ...]]) -> list[Any]:
        with self.named:
            return self.space.call_many(commands)

    def run(self, script: Script, names: Sequence[str], args: Sequence[Arg]) -> Any:
        with self.named:
            return self.space.run(script, names, args)

    def run_many(self, calls: Sequence[ScriptCall]) -> list[Any]:
        with self.named:
            return self.space.run_many(calls)

    def begin_many(self, calls: Sequence[ScriptCall]) -> Replies:
        with self.named:
            return self.space.begin_many(calls)

    def pop(self, name: str, seconds: float, wake: int = -1) -> bool:
        with self.named:
            return self.space.pop(name, seconds, wake)

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        with self.space.within(seconds):
            yield

    def close(self) -> None:
        if self._space is not None:
            self._space.close()
