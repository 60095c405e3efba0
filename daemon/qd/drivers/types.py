"""What the end of a job does beside taking it away. A connector does all of it in the step that answers the job, or none
of it: a worker that is killed in between has answered nothing.

drivers/types.py works them out from a payload's ties; Connector.ack, release and bury take them, and Jobs.drop.

What a connection must be able to do to keep batches: jobs that are counted together. dispatch/batch.py knows only this; the
counting itself is an effect of the answers (effects.Count).

What the end of a job does to what it is tied to: its lock, its chain, its batch, its record. The worker asks for each
end, and whoever takes a waiting job away; worker and keeper ask for a job that is put back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

import msgspec

from qd.errors import ConnectionLost, ServerRefused
from qd.payload.format import HOLD, Payload, Relations
from qd.payload.reservation import unanswered
from qd.payload.rewrite import linked


class Push(msgspec.Struct, frozen=True):
    """Send another job: the next of a chain, a callback. delay: seconds."""

    queue: str
    payload: bytes
    delay: float = 0.0


class Free(msgspec.Struct, frozen=True):
    """Free the lock `name`, if `owner` still has it."""

    name: str
    owner: str


class Hold(msgspec.Struct, frozen=True):
    """Let `owner` keep the lock `name` for so many seconds from now, if it still has it."""

    name: str
    owner: str
    seconds: float


class Leave(msgspec.Struct, frozen=True):
    """Delete `field` of the hash `key`, if `holder` still has it: a place of a job that did not free it itself."""

    key: str
    field: str
    holder: str


class Vacate(msgspec.Struct, frozen=True):
    """Free all places of `owner`, on a cluster whose node with the list of them is away. holder: only those of this attempt,
    since the job runs again; "": all."""

    owner: str
    holder: str = ""


class Count(msgspec.Struct, frozen=True):
    """Let the batch `id` count the end of its job `job` (a uuid), which sends its callbacks when it was the last.

    skipped: it was not run, for the batch was cancelled. place: queue and id of the record of one that has failed.
    """

    id: str
    job: str
    how: Literal["done", "skipped", "failed"] = "done"
    place: str = ""


class Keep(msgspec.Struct, frozen=True):
    """Keep how the job `id` ended: its status and, as JSON, its result or error. ttl: seconds."""

    id: str
    status: str
    value: bytes
    ttl: float


Effect = Push | Free | Hold | Leave | Vacate | Count | Keep


class Entry(NamedTuple):
    """A job of a batch. delay: seconds."""

    queue: str
    uuid: str
    payload: bytes
    delay: float


class Callback(NamedTuple):
    """A job that a batch sends. moments: where in its payload unix seconds stand that count from then, createdAt last."""

    queue: str
    payload: bytes
    delay: float
    moments: tuple[int, ...]


class NewBatch(msgspec.Struct, frozen=True):
    """callbacks: by "then", "catch", "finally"."""

    id: str
    name: str
    allow_failures: bool
    callbacks: Mapping[str, Callback]


class BatchState(msgspec.Struct, frozen=True):
    """A batch at one moment. total: jobs sent; pending: those that have not ended, failed: those that have failed for good.
    Moments: unix seconds by the server's clock, None: not yet."""

    id: str
    name: str
    total: int
    pending: int
    failed: int
    created_at: float
    cancelled_at: float | None
    finished_at: float | None

    @property
    def progress(self) -> int:
        """Percent of its jobs that have ended, rounded down: 100 only when none is left."""
        return 100 if not self.pending else 100 * (self.total - self.pending) // max(1, self.total)


Gap = Literal["order", "head", "delay", "lease", "counts", "ends", "find", "clear", "sizes", "failed", "memory"]
Gaps = Mapping[Gap, str]
NONE: Gaps = MappingProxyType({})


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


def reserved_of(queue: str, member: bytes, base: str = "") -> Reserved:
    """A reservation read back from its payload, of the reserver whose marks begin with `base` when that is known. What
    stood there before the reserve is told as one attempt less: right for what was never reserved and has its count; else
    our own keys, and no other byte, may differ from what was pushed where a payload is kept raw."""
    unit = unanswered(member, base)
    if unit is None:
        return Reserved(queue, member, "", 0, 0, b"")
    before = b'"attempts":%d' % max(0, unit.attempts - 1)
    return Reserved(queue, member, unit.mark, unit.start, unit.end - unit.start, before)


End = Literal["done", "skipped", "failed"]  # skipped: not run, for its batch was cancelled


def ends(payload: Payload, how: End, place: str = "", value: bytes = b"null") -> list[Effect]:
    """In the order in which they come to pass; [] for a job that is tied to nothing. To the others a job that was cancelled
    has failed. place: queue and id of the record of one that has failed, "" where none is kept.
    value: its result or error as JSON, for its record (result_ttl)."""
    ties, effects = payload.qd, list[Effect]()
    if ties is None:
        return effects
    now, uuid = int(time.time()), payload.uuid or ""
    if ties.unique is not None:
        effects.append(Free(ties.unique, uuid))
    if how == "failed":
        effects += [Push(link.queue, linked(link, now), link.delay) for link in ties.catch]
    else:
        effects += _next(ties, now)
    if ties.batch is not None:
        effects.append(Count(ties.batch, uuid, how, place))
    if ties.result and (known := payload.id or uuid):
        effects.append(Keep(known, "failed" if how == "failed" else "done", value, ties.result))
    return effects


def _next(ties: Relations, now: int) -> list[Push]:
    """The next of the chain, with what then remains of it."""
    if not ties.chain:
        return []
    link, *rest = ties.chain
    return [Push(link.queue, linked(link, now, tuple(rest), ties.catch), link.delay)]


def put_back(payload: Payload, delay: float) -> tuple[Effect, ...]:
    """Its lock lasts until it is due again, in `delay` seconds, and as long from then as it did from the first time. One
    that has begun, and held it until then only, has none: nothing is held of a lock that is not its own."""
    ties = payload.qd
    if ties is None or ties.unique is None:
        return ()
    return (Hold(ties.unique, payload.uuid or "", delay + (ties.hold or HOLD)),)


class BeatRequest(NamedTuple):
    """token: of the master. report: JSON, "" for none. lease: seconds. reclaims_until: the last moment of the server's clock
    at which it may reclaim, 0: not at all. slots: those that are alive."""

    token: str
    report: str
    lease: float
    renew: bool
    reclaims_until: float
    slots: Sequence[int]


class Given(NamedTuple):
    """An answer of a worker that waited for its server, and is given now. there: its lease was not lost meanwhile."""

    queue: str
    member: bytes
    there: bool


class BeatReply(NamedTuple):
    """now: unix seconds of the server. restart, down: what stands there, "" for nothing. due: ms until the next delayed job,
    -1: there is none. more: jobs are still due. waiting: places of queues that wait for somebody, 0 is the first.
    cancelled, lost: slot and turn, of jobs that are to end and of leases that are gone. away: servers that have some of the
    queues and did not answer, or queues that a server refuses, each with what is wrong, where others did.
    broke: what else was to be done met a server that is away. given: answers that workers had left."""

    now: float
    restart: str
    down: str
    due: int
    more: bool
    reclaimed: int
    waiting: list[int]
    cancelled: list[tuple[int, int]]
    lost: list[tuple[int, int]]
    away: tuple[tuple[str, str], ...] = ()
    broke: ConnectionLost | ServerRefused | None = None
    given: tuple[Given, ...] = ()
