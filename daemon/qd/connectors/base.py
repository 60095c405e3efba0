"""What whoever keeps queues must be able to do. Each driver makes a `Connector`; worker and bus know only this, a keeper a
bit more (keeping.py). (`qd.Queue`, which producers use, is one queue by its name: bus/send.py.)"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import msgspec

from qd.connectors.batches import Batches
from qd.connectors.effects import Effect
from qd.payload import Payload
from qd.unit import unanswered

if TYPE_CHECKING:
    from qd.config import ConnectionSettings
    from qd.connectors.keyspace.base import Keyspace


Limit = Literal["order", "head", "delay", "lease", "counts", "ends", "find", "clear", "sizes", "failed", "memory"]
Limits = Mapping[Limit, str]
"""What a connection cannot do as Redis does, each with what that means, in words for who runs `qd work`:
order: first in, first out; head: put back in front of others; delay: to the millisecond; lease: renewed by the keeper,
whatever its job does; counts: of attempts, crashes and exceptions, exact; ends: what the end of a job does beside is one
step with it; find: single jobs by their ids, cancelled and listed; clear; sizes: exact, of each kind; failed: the failed
store in one step with the queue; memory: it has a keyspace of its own."""
NONE: Limits = MappingProxyType({})


STAYS = 8
"""Jobs that a worker takes in a row from one queue before it goes on to the next, if queues take turns and each further
queue costs a call. The attribute `stays` of a connector; without it 1."""


class Reserved(NamedTuple):
    """A payload in hand: leased, marked, ours until it is answered."""

    queue: str
    member: bytes  # the bytes as they stand reserved, with the mark in them
    mark: str  # "<token>.<slot>.<turn>.<attempts>"
    start: int  # where the reserve wrote its unit into the pushed bytes,
    length: int  # how long that unit is,
    before: bytes  # and what stood there before


class Released(NamedTuple):
    """How a reserved job goes back. text: as it is to stand; delay: seconds until it is due, 0: at once, at the tail (or
    head) of ready."""

    text: bytes
    delay: float = 0.0
    head: bool = False


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A job to send. delay: seconds. lock: a name that no two jobs may hold at a time, "" for none; then owner is who holds
    it (the job's id), and hold for how many seconds at most, counted from when it is due. key: "ISSUE NAME", where it waits
    under a name, as its payload says it too; "" for none."""

    queue: str
    payload: bytes
    delay: float = 0.0
    lock: str = ""
    owner: str = ""
    hold: float = 0.0
    key: str = ""


class Claim(NamedTuple):
    """A tick of an entry of the schedule, to be taken by one scheduler only.

    queue: where its job is sent, "" when none is. field: the entry's, among those of the queue. before: what it was read as,
    b"" when it was not there. after: what it is to be. at: the tick, unix milliseconds. job: sent in the same step.
    """

    queue: str
    field: str
    before: bytes
    after: bytes
    at: int
    job: Outgoing | None = None


class Claimed(NamedTuple):
    """What became of a claim: taken, early, found or refused.

    now: unix seconds by the server. holder: it is taken, and its job was not sent, for this one holds its lock. early: the
    tick is yet to come. found: what the field is in place of `before`, b"": it is not there. refused: by the server; nothing
    was done.
    """

    now: float = 0.0
    taken: bool = False
    early: bool = False
    found: bytes | None = None
    holder: str = ""
    refused: Exception | None = None


Answers = Callable[[], list[Claimed]]


class Turn(NamedTuple):
    """The answer of one turn: what became of the ack, and what is in hand now."""

    acked: bool | None  # None: nothing to ack; False: the lease was lost before
    reserved: Reserved | None
    next_due: float | None  # seconds until the next delayed job is due; None: none waits
    paused: tuple[str, ...]  # queues that are paused
    malformed: int  # payloads that were not even JSON objects, moved to the failed store by this turn


class Sizes(msgspec.Struct, frozen=True):
    """How many payloads stand where. oldest_age: seconds the head of ready waits; None when that is not known."""

    ready: int
    delayed: int
    reserved: int
    failed: int
    oldest_age: float | None


Spot = Literal["delayed", "ready", "running", "failed"]


class Found(NamedTuple):
    """A job that was looked for by its id. text: as it stands there (a record and the payload where it has failed).

    score: unix seconds at which it is due, or at which its lease runs out; None elsewhere. behind: how many of the ready
    ones stand behind it.
    """

    queue: str
    spot: Spot
    text: bytes
    payload: Payload
    score: float | None
    behind: int | None = None


class Kept(NamedTuple):
    """What is kept of a job with result_ttl. status: done or failed, None while it has not ended. value: JSON, its result or
    {error, message}; b"!" and why where JSON cannot carry it. at: unix seconds."""

    status: str | None
    value: bytes
    progress: float | None
    at: float | None

    @property
    def percent(self) -> float | None:
        """How far the job is: what it said last, 100 once it is done."""
        return 100.0 if self.status == "done" else self.progress


class Jobs(Protocol):
    """Single jobs by their ids (`id` of the payload, or `uuid`). Raises as Connector."""

    def find(
        self, queue: str, id: str, spots: Sequence[Spot] = ("delayed", "ready", "running", "failed")
    ) -> Found | None:
        """Where it stands. Looks through the queue in many short calls; a job that moves meanwhile may be missed."""

    def drop(self, found: Found, effects: Sequence[Effect]) -> bool:
        """Take a waiting job away for good, and do `effects` in the same step. False: it is not there any more."""

    def stop(self, found: Found) -> bool:
        """Ask for the end of a running job: its worker is told within a second or so. False: it does not run there any
        more, or for a worker that is none of qd's."""

    def kept(self, id: str) -> Kept | None:
        """What is kept of it. None: nothing."""

    def progress(self, id: str, percent: float, ttl: float) -> None:
        """Keep how far it is, for `ttl` seconds."""


class Ticks(Protocol):
    """What the schedule has done, a field an entry. Raises as Connector."""

    def take(self, claims: Sequence[Claim]) -> list[Claimed]:
        """In one round trip, no field twice. Each by itself: its field is set and its job sent, or nothing of it is done."""

    def begin(self, claims: Sequence[Claim]) -> Answers:
        """As take, whose answers are had by calling what is returned: others may be begun before."""

    def read(self, fields: Sequence[str]) -> list[bytes]:
        """What each of them is; b"": it is not there."""

    def strange(self, queue: str) -> str:
        """Which keys that a tick of this queue needs hold something else, in words; "": none."""

    def page(self, at: int) -> tuple[int, dict[str, bytes]]:
        """Some of all fields, 0: the first. Returns where the next page is, 0 where there is none."""

    def put(self, field: str, value: bytes) -> None: ...

    def forget(self, fields: Sequence[str]) -> None: ...


class Connector(Protocol):
    """A connection to queues. Every call may raise ConnectionLost, ServerBusy or ServerRefused; then nothing is known
    of it but what `held` tells."""

    @property
    def settings(self) -> ConnectionSettings: ...

    @property
    def limits(self) -> Limits:
        """What it cannot do. The same for every connection of its kind: nobody is asked."""

    @property
    def kept(self) -> tuple[Keyspace, str]:
        """Where what it keeps beside its jobs stands, and what every name there begins with. Raises ConfigError where
        there is no such place."""

    def patience(self, connect: float, answer: float) -> None:
        """Seconds to connect, and for each answer, from now on."""

    @property
    def batches(self) -> Batches:
        """Those that it keeps."""

    @property
    def jobs(self) -> Jobs: ...

    @property
    def ticks(self) -> Ticks: ...

    def push(self, queue: str, payload: bytes) -> None:
        """Append to the ready jobs of `queue`."""

    def later(self, queue: str, payload: bytes, delay: float) -> None:
        """Make it ready in `delay` seconds by the server's clock."""

    def push_many(self, jobs: Sequence[tuple[str, bytes, float | None]]) -> None:
        """Many (queue, payload, delay or None) in one round trip."""

    def post(self, jobs: Sequence[Outgoing]) -> list[str | None]:
        """Many in one round trip. For each the owner of its lock, where another holds it: then it was not sent. One with
        a key takes the place of what waits under its name."""

    def free(self, name: str, owner: str) -> bool:
        """Free a lock. False: it was not this owner's."""

    def cancel_keyed(self, queue: str, name: str) -> bool:
        """The job that waits under `name` will never run. False: none waits, it runs or has run."""

    def move_keyed(self, queue: str, name: str, delay: float) -> bool:
        """The job that waits under `name` is due in `delay` seconds. False: none waits."""

    def keyed_due(self, queue: str, name: str) -> float | None:
        """Unix seconds at which the job that waits under `name` is or was due. None: none waits."""

    def turn(self, done: Reserved | None, queues: Sequence[str], shut: Sequence[str] = ()) -> Turn:
        """Ack `done` and lease the first ready payload of `queues` (in order) in one call. shut: those of them that
        nothing is taken from; the reply tells them as paused."""

    def wait(self, queues: Sequence[str], seconds: float, wake: int) -> None:
        """Return when a job may be ready, when `seconds` are over, or when the file descriptor `wake` is readable."""

    # The next three do `effects` in the same step, all of them, and none when the lease was lost.

    def ack(self, done: Reserved, effects: Sequence[Effect] = ()) -> bool:
        """Forget a finished job. False: its lease was lost, somebody else may have run it."""

    def release(self, held: Reserved, back: Released, effects: Sequence[Effect] = ()) -> bool:
        """Put it back. False: lease lost."""

    def bury(self, held: Reserved, record: bytes, raw: bytes, effects: Sequence[Effect] = ()) -> bool:
        """Move it into the failed store: `record` is one line of JSON, `raw` the payload. False: lease lost."""

    def copied(self, queue: str, id: str) -> None:
        """Note in the record `id` that failed_jobs has a row for it."""

    def checkpoint(self, held: Reserved, member: bytes) -> bool:
        """Let the job in hand stand as `member` from now on: same lease, same mark. False: lease lost."""

    def held(self, queues: Sequence[str]) -> Reserved | None:
        """After a broken call: the job this worker owns by the server's word, or None."""

    def death(self, queue: str, mark: str) -> bytes | None:
        """How the worker died that held the job under `mark` ("<token>.<slot>.<turn>"), as its keeper noted it."""

    def sizes(self, queue: str) -> Sizes: ...

    def queues(self) -> Sequence[str]:
        """Queues that the server itself lists, beside those that have keys in the keyspace."""

    def clear(self, queue: str) -> int:
        """Delete ready and delayed payloads, never what runs. Returns how many."""

    def within(self, seconds: float) -> AbstractContextManager[None]:
        """Calls inside wait for the server no longer than that, then they raise ConnectionLost."""

    def beats(self, about: Callable[[float], None]) -> None:
        """Call `about(seconds)` at each step of a call that may take so long: whoever watches the caller sees it live."""

    def close(self) -> None: ...


def reserved_of(queue: str, member: bytes, base: str = "") -> Reserved:
    """A reservation read back from its payload, of the reserver whose marks begin with `base` when that is known. What
    stood there before the reserve is told as one attempt less: right for what was never reserved and has its count; else
    our own keys, and no other byte, may differ from what was pushed where a payload is kept raw."""
    unit = unanswered(member, base)
    if unit is None:
        return Reserved(queue, member, "", 0, 0, b"")
    before = b'"attempts":%d' % max(0, unit.attempts - 1)
    return Reserved(queue, member, unit.mark, unit.start, unit.end - unit.start, before)
