"""The driver contract. Each driver makes one `Connector`; producers and workers know only that protocol.

    Connector         send, reserve, answer and inspect jobs; its batches, jobs and ticks
    KeeperConnector   the same object for the keeper of a master: renew and reclaim leases, promote due jobs, requeue jobs
                      of dead workers
    LaneConnector     the same object where a worker may hold several jobs
    ClientIdentity    who opens a connection
    Patience          how long a connection waits for its server

`qd.Queue`, which producers use, is another thing: one queue by its name (dispatch/dispatcher.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from qd.drivers.types import (
    SPOTS,
    Answers,
    BatchState,
    BeatReply,
    BeatRequest,
    Claim,
    Effect,
    Entry,
    Found,
    Gaps,
    JobEvent,
    Kept,
    LaneAnswer,
    LaneReply,
    LaneTurn,
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
    from qd.drivers.keyspace.base import Arg, Keyspace


class Patience:
    """connect_timeout: seconds to connect; timeout: seconds until a reply begins. Both are always finite.

    about: called with 0 when the server has replied, and before a step that may take longer than `timeout` with the
    seconds it may take.
    """

    connect_timeout: float
    timeout: float
    about: Callable[[float], None] | None = None

    def patience(self, connect: float, answer: float) -> None:
        """Set the seconds to connect and for each reply."""
        self.connect_timeout, self.timeout = connect, answer

    def on_progress(self, call: Callable[[float], None]) -> None:
        """Report progress to `call` from now on."""
        self.about = call

    def report_progress(self, seconds: float = 0.0) -> None:
        if self.about is not None:
            self.about(seconds)

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Calls inside wait at most `seconds` to connect, and at most `seconds` for each reply."""
        before = self.connect_timeout, self.timeout
        try:
            self.patience(seconds, seconds)
            yield
        finally:
            self.patience(*before)


class ClientIdentity(NamedTuple):
    """token, slot: the master and worker slot that reserve jobs, empty for a producer. turns: turns that earlier workers of
    this slot have made. title: name in the server's client list. patience: seconds to connect, and for each reply. own: the
    app's drivers by name."""

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
        """Create the batch and send its jobs, up to 1,000 per step. If the producer dies between two steps, the batch never
        sends its callbacks."""

    def add(self, id: str, jobs: Sequence[Entry]) -> None:
        """Send more jobs of the batch. Raises UnknownBatch or BatchFinished: no job was sent, but of more than 1,000 jobs
        the first thousands may have been."""

    def cancel(self, id: str) -> bool:
        """False: the batch was already cancelled or finished, or does not exist."""

    def state(self, id: str) -> BatchState | None:
        """None: the batch does not exist, or no longer."""

    def failures(self, id: str) -> Mapping[str, tuple[str, str]]:
        """uuid of each failed job that has not been retried -> queue and id of its record in the failed store; both "" if
        the job was cancelled and has no record."""


STAYS = 8
"""Jobs that a worker takes from one queue before it continues with the next, on drivers where each further queue costs a
call. The attribute `stays` of a connector; without it 1."""


class Jobs(Protocol):
    """Single jobs by their ids (`id` of the payload, or `uuid`). Raises as Connector."""

    def find(self, queue: str, id: str, spots: Sequence[Spot] = SPOTS) -> Found | None:
        """Search the queue in many short calls. A job that moves meanwhile may be missed."""

    def ids(self, queue: str, start: str) -> set[str]:
        """The ids and uuids of jobs in the queue that begin so. As expensive as `find`."""

    def drop(self, found: Found, effects: Sequence[Effect]) -> bool:
        """Delete a waiting job and do `effects` in the same step. False: the job is no longer there."""

    def stop(self, found: Found) -> bool:
        """Cancel a running job; its keeper notifies the worker within about a second. False: the job no longer runs, or it
        runs in a worker of another program."""

    def kept(self, id: str) -> Kept | None:
        """The job's stored result and progress. None: nothing is stored."""

    def kept_many(self, ids: Sequence[str]) -> list[Kept | None]:
        """The same for many jobs, a thousand in a round trip."""

    def progress(self, id: str, percent: float, ttl: float, details: bytes = b"") -> None:
        """Store the job's progress for `ttl` seconds. details: JSON."""

    def emit(self, some: Sequence[tuple[str, Sequence[Arg]]]) -> list[object]:
        """Append events of jobs, in one round trip: for each its id and ARGV of emit.lua. Returns its replies, or errors."""

    def events(self, id: str, since: int) -> list[JobEvent]:
        """The events of a job that are kept and have a higher number."""

    def steps(self, id: str, mark: str, *added: str | bytes | int) -> Any:
        """Read the durable steps of a job for its attempt `mark`, or record one: see steps.lua."""


class Ticks(Protocol):
    """The history of the schedule, one field per entry. Raises as Connector."""

    def begin(self, claims: Sequence[Claim]) -> Answers:
        """Take ticks in one round trip; call the result for the answers. Other calls may begin in between. Each claim is one
        step: its field is set and its job sent, or neither. No field may occur twice."""

    def read(self, fields: Sequence[str]) -> list[bytes]:
        """The value of each field; b"" if it does not exist."""

    def strange(self, queue: str) -> str:
        """Describes the keys needed by a tick of this queue that have a wrong type; "" if there are none."""

    def page(self, at: int) -> tuple[int, dict[str, bytes]]:
        """Some of the fields. at: 0 for the first page. Returns where the next page begins, 0 after the last."""

    def put(self, field: str, value: bytes) -> None: ...

    def forget(self, fields: Sequence[str]) -> None: ...


class Connector(Protocol):
    """A connection to queues. Every call may raise ConnectionLost, ServerBusy or ServerRefused. After ConnectionLost the
    server may have executed the call; `held` returns what this worker owns."""

    @property
    def settings(self) -> ConnectionSettings: ...

    @property
    def limits(self) -> Gaps:
        """Capabilities that the driver lacks. Does not contact the server."""

    @property
    def kept(self) -> tuple[Keyspace, str]:
        """The keyspace for everything stored next to the jobs, and the prefix of every name there. Raises ConfigError if
        there is none."""

    def patience(self, connect: float, answer: float) -> None:
        """Set the seconds to connect and for each reply."""

    @property
    def batches(self) -> Batches: ...

    @property
    def jobs(self) -> Jobs: ...

    @property
    def ticks(self) -> Ticks: ...

    def push(self, queue: str, payload: bytes) -> None:
        """Append to the ready jobs of `queue`."""

    def later(self, queue: str, payload: bytes, delay: float) -> None:
        """Make the job ready in `delay` seconds by the server's clock."""

    def post(self, jobs: Sequence[Outgoing]) -> list[str | None]:
        """Send many jobs in one round trip, in their order within a queue. Returns for each None, or the other owner of its
        lock if it was not sent. A keyed job replaces the one that waits under its name."""

    def free(self, name: str, owner: str) -> bool:
        """Free a lock. False: it did not belong to this owner."""

    def cancel_keyed(self, queue: str, name: str) -> bool:
        """Cancel the job that waits under `name`. False: none waits; it runs or has run."""

    def move_keyed(self, queue: str, name: str, delay: float) -> bool:
        """Make the job that waits under `name` due in `delay` seconds. False: none waits."""

    def keyed_due(self, queue: str, name: str) -> float | None:
        """Unix seconds at which the job that waits under `name` is or was due. None: none waits."""

    def turn(self, done: Reserved | None, queues: Sequence[str], shut: Sequence[str] = ()) -> Turn:
        """Ack `done` and lease the first ready payload of `queues` (in order) in one call. shut: queues from which no job is
        taken; the reply lists them as paused."""

    def wait(self, queues: Sequence[str], seconds: float, wake: int) -> None:
        """Return when a job may be ready, after `seconds`, or when the file descriptor `wake` is readable."""

    # ack, release and bury do all `effects` in the same step, or none if the lease was lost.

    def ack(self, done: Reserved, effects: Sequence[Effect] = ()) -> bool:
        """Delete a finished job. False: its lease was lost, so another worker may have run it."""

    def release(self, held: Reserved, back: Released, effects: Sequence[Effect] = ()) -> bool:
        """Put the job back. False: the lease was lost."""

    def bury(self, held: Reserved, record: bytes, raw: bytes, effects: Sequence[Effect] = ()) -> bool:
        """Move the job into the failed store. record: one line of JSON; raw: the payload. False: the lease was lost."""

    def copied(self, queue: str, id: str) -> None:
        """Note in the failed record `id` that failed_jobs has a row for it."""

    def checkpoint(self, held: Reserved, member: bytes) -> bool:
        """Replace the text of a reserved job with `member`; lease and mark stay. False: the lease was lost."""

    def held(self, queues: Sequence[str]) -> Reserved | None:
        """After a failed call: the job that this worker owns according to the server, or None."""

    def death(self, queue: str, mark: str) -> bytes | None:
        """The keeper's note on how the worker died that held the job under `mark` ("<token>.<slot>.<turn>")."""

    def sizes(self, queue: str) -> Sizes: ...

    def queues(self) -> Sequence[str]:
        """Queues that the server itself lists, in addition to those with keys in the keyspace."""

    def clear(self, queue: str) -> int:
        """Delete ready and delayed payloads, never running ones. Returns the number deleted."""

    def within(self, seconds: float) -> AbstractContextManager[None]:
        """Calls inside wait at most `seconds` for the server, then raise ConnectionLost."""

    def beats(self, about: Callable[[float], None]) -> None:
        """Report progress: call `about(seconds)` before each step that may take so long."""

    def close(self) -> None: ...


class Forgotten(NamedTuple):
    """aged: records deleted because of their age. dropped: the queue's counter of records deleted to make room for newer
    ones; it returns to 0 when the last of these deletions is longer ago than records are kept."""

    aged: int
    dropped: int


class KeeperConnector(Connector, Protocol):
    """Every call may raise ConnectionLost, ServerBusy or ServerRefused."""

    def beat(self, queues: Sequence[str], request: BeatRequest) -> BeatReply:
        """Renew the leases of the slots, reclaim expired ones, promote due jobs, wake waiting workers. restart, down and the
        report matter on the control connection only."""

    def owners(self, queue: str) -> list[str]:
        """The owners of this queue's reserved jobs, "<token>/<slot>" each."""

    def owned(self, queue: str, owner: str) -> bytes | None:
        """The payload that `owner` holds, with its mark."""

    def give_back(self, queue: str, owner: str, member: bytes, back: Released, effects: Sequence[Effect] = ()) -> bool:
        """Release a job of a dead `owner`. False: the owner no longer holds it as `member`."""

    def note_death(self, queue: str, mark: str, note: bytes) -> None:
        """Store the note for the next reserve of the job, at most one day."""

    def forget_aged(self, queue: str, seconds: float, most: int) -> Forgotten:
        """Delete at most `most` records of jobs that failed more than `seconds` ago."""

    def missing_rights(self, queue: str) -> set[str]:
        """Commands that workers need and this user of the server may not call, tried on keys next to this queue's."""

    def user(self) -> str:
        """The name of that user."""


class LaneConnector(KeeperConnector, Protocol):
    """A connection on which a worker may hold several jobs: prefetch and concurrency. Without it they are 1.

    keeps_suspects: it keeps jobs that may have killed a worker apart from the ready ones. Concurrency needs that.
    fetches_ahead: prefetch = "auto" fetches several. Not on a cluster, where the answers for an unreachable node are left on
    another one by one."""

    keeps_suspects: bool
    fetches_ahead: bool

    def turn_lanes(self, turn: LaneTurn) -> LaneReply:
        """Ack the finished jobs, put back the unstarted ones and reserve, in one call. It reserves at most one job for each
        free lane and 256 kB (the first whatever its size), all from the first queue that has one. Several at once are always
        ordinary payloads from the head of a queue (not reserved before, without a lock, key or batch, not of PHP); any other
        is taken by itself, into lane `single`. Each job has a turn of its own, in ascending order.

        A turn that arrives after a later one, or after held_lanes, does nothing. Raises ConnectionLost if the server has
        executed a turn whose reply this worker does not have: query held_lanes."""

    def held_lanes(self, queues: Sequence[str], lanes: Sequence[int]) -> list[Reserved]:
        """After a failed call: the jobs that this worker owns in lane 0 and these lanes, by turn. Turns sent before
        do nothing from now on."""

    def leave_lanes(self) -> None:
        """The worker leaves and owns no job: delete what turn_lanes keeps for it."""

    # for keepers

    def owned_by(self, queue: str, owners: Sequence[str]) -> dict[str, bytes]:
        """The payload of each of these owners that has one, with its mark."""

    def settle_lanes(self, queue: str, answers: Sequence[LaneAnswer]) -> list[bool]:
        """Answer the jobs of lanes, at most 100 in one step, in order of the queue. False: the owner no longer has that
        text."""

    def forget_lanes(self, queues: Sequence[str], owners: Sequence[str]) -> None:
        """The workers `owners` ("<token>/<slot>") have ended, and their jobs are settled: delete what turn_lanes keeps for
        them."""


def with_lanes(queue: Connector) -> LaneConnector | None:
    return cast("LaneConnector", queue) if hasattr(queue, "turn_lanes") else None
