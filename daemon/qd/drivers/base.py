"""How long a connection waits for its server, and whom it tells that it makes progress.

Who opens a connection, as each driver is told.

What whoever keeps queues must be able to do. Each driver makes a `Connector`; worker and bus know only this, a keeper a
bit more (keeping.py). (`qd.Queue`, which producers use, is one queue by its name: dispatch/dispatcher.py.)

What a keeper asks of its connection: leases renewed and reclaimed, what is due moved, the jobs of the dead given back.

One object is both: `base.Connector` for producers and workers, this for the keeper of their master.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from qd.drivers.types import (
    Answers,
    BatchState,
    BeatReply,
    BeatRequest,
    Claim,
    Claimed,
    Effect,
    Entry,
    Found,
    Gaps,
    Kept,
    NewBatch,
    Outgoing,
    Released,
    Reserved,
    Sizes,
    Spot,
    Turn,
)

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings, Settings
    from qd.drivers.keyspace.base import Keyspace


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


class ClientIdentity(NamedTuple):
    """token, slot, turns: who reserves, and how many turns those made who had the slot before; empty for a producer. title:
    what the server's list of clients shows. patience: seconds to connect, and for each reply. own: the app's drivers, by
    their words."""

    token: str = ""
    slot: int = 0
    turns: int = 0
    title: str = ""
    patience: float = 5.0
    own: Mapping[str, Factory] = MappingProxyType({})


PRODUCER = ClientIdentity()
Factory = Callable[["Settings", "ConnectionSettings", ClientIdentity], "Connector"]


class Batches(Protocol):
    """Every call may raise ConnectionLost, ServerBusy or ServerRefused."""

    def send(self, batch: NewBatch, jobs: Sequence[Entry]) -> None:
        """Make it and send its jobs, up to 1,000 a step. Who dies between two steps leaves a batch that calls nobody."""

    def add(self, id: str, jobs: Sequence[Entry]) -> None:
        """Send more jobs of it. Raises UnknownBatch, BatchFinished: nothing was sent then, of more than 1,000 jobs
        perhaps the first thousands."""

    def cancel(self, id: str) -> bool:
        """Its jobs are not wanted any more. False: it was cancelled or finished already, or is not there."""

    def cancelled(self, id: str) -> bool:
        """Cheap. False also for one that is not there."""

    def state(self, id: str) -> BatchState | None:
        """None: it is not there, or not any more."""

    def failures(self, id: str) -> Mapping[str, tuple[str, str]]:
        """uuid of each job of it that has failed, and was not retried since -> queue and id of its record in the failed
        store; both "" if it never had one (it was cancelled)."""


"""What a connection cannot do as Redis does, each with what that means, in words for who runs `qd work`:
order: first in, first out; head: put back in front of others; delay: to the millisecond; lease: renewed by the keeper,
whatever its job does; counts: of attempts, crashes and exceptions, exact; ends: what the end of a job does beside is one
step with it; find: single jobs by their ids, cancelled and listed; clear; sizes: exact, of each kind; failed: the failed
store in one step with the queue; memory: it has a keyspace of its own."""


STAYS = 8
"""Jobs that a worker takes in a row from one queue before it goes on to the next, if queues take turns and each further
queue costs a call. The attribute `stays` of a connector; without it 1."""


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
    def limits(self) -> Gaps:
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


class Forgotten(NamedTuple):
    """aged: records that were deleted for their age. dropped: the queue's counter of records that were deleted to make room
    for newer ones; it starts again at 0 once the last of them was longer ago than records are kept."""

    aged: int
    dropped: int


class KeeperConnector(Connector, Protocol):
    """Every call may raise ConnectionLost, ServerBusy or ServerRefused."""

    def beat(self, queues: Sequence[str], asked: BeatRequest) -> BeatReply:
        """Everything periodic: renew the leases of the slots, reclaim what ran out, move what is due, wake who waits.
        restart, down and the report count where this is the control connection, too."""

    def owners(self, queue: str) -> list[str]:
        """Who holds a job of this queue, "<token>/<slot>" each."""

    def owned(self, queue: str, owner: str) -> bytes | None:
        """The payload that `owner` holds, with its mark."""

    def give_back(self, queue: str, owner: str, member: bytes, back: Released, effects: Sequence[Effect] = ()) -> bool:
        """Release, of a job that `owner`, now dead, held. False: it does not hold it as `member` any more."""

    def note_death(self, queue: str, mark: str, note: bytes) -> None:
        """Kept for the next reserve of the job, a day at most."""

    def forget_aged(self, queue: str, seconds: float, most: int) -> Forgotten:
        """Delete at most so many records of jobs that failed longer ago."""

    def missing_rights(self, queue: str) -> set[str]:
        """What this user of the server may not do and a worker needs, tried beside the keys of this queue."""

    def user(self) -> str:
        """Who that is, for people."""
