"""The values that cross the driver contract (base.py).

    Reserved, Turn, Released, Outgoing   a job on its way to and from a worker
    Effect                               what the end of a job does besides deleting it: to its lock, chain, batch, record
    NewBatch, BatchState, Entry          batches
    Claim, Claimed                       ticks of the schedule
    BeatRequest, BeatReply               the keeper's beat

A connector does the effects in the step that answers the job, all of them or none: a worker that is killed in between has
answered nothing. `ends` and `put_back` derive them from a payload.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from qd.errors import ConnectionLost, ServerRefused
from qd.payload.build import chained_payload
from qd.payload.format import HOLD, Payload
from qd.payload.reservation import unanswered
from qd.payload.signing import Signing
from qd.process import SLOTS


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
    """Let `owner` keep the lock `name` for `seconds` from now, if it still has it."""

    name: str
    owner: str
    seconds: float


class Leave(msgspec.Struct, frozen=True):
    """Delete `field` of the hash `key`, if `holder` still has it: a place that the job did not free itself."""

    key: str
    field: str
    holder: str


class Vacate(msgspec.Struct, frozen=True):
    """Free all places of `owner`, on a cluster whose node with the list of places is unreachable. holder: only the places of
    this attempt, since the job runs again; "": all."""

    owner: str
    holder: str = ""


class Count(msgspec.Struct, frozen=True):
    """Let the batch `id` count the end of its job `job` (a uuid); the last end sends the callbacks.

    skipped: the job did not run because the batch was cancelled. place: queue and id of a failed job's record.
    """

    id: str
    job: str
    how: Literal["done", "skipped", "failed"] = "done"
    place: str = ""


class Keep(msgspec.Struct, frozen=True):
    """Store how the job `id` ended: its status, and its result or error as JSON. ttl: seconds."""

    id: str
    status: str
    value: bytes
    ttl: float


class Forget(msgspec.Struct, frozen=True):
    """Delete the durable steps of the job `id`, which runs no more."""

    id: str


Effect = Push | Free | Hold | Leave | Vacate | Count | Keep | Forget


class Entry(NamedTuple):
    """One job of a batch. delay: seconds."""

    queue: str
    uuid: str
    payload: bytes
    delay: float


class Callback(NamedTuple):
    """A job that a batch sends. moments: positions of unix seconds in the payload that the batch updates when it sends the
    job, createdAt last."""

    queue: str
    payload: bytes
    delay: float
    moments: tuple[int, ...]


class NewBatch(msgspec.Struct, frozen=True):
    """callbacks: keys "then", "catch", "finally". jobs: how many are sent with it, with the ids of build.id_in_batch."""

    id: str
    name: str
    allow_failures: bool
    callbacks: Mapping[str, Callback]
    jobs: int = 0


class BatchState(msgspec.Struct, frozen=True):
    """A batch at one time. total: jobs sent; pending: not ended; failed: permanently failed; jobs: those that were sent
    with it, not added later. The times are unix seconds by the server's clock, None for not yet."""

    id: str
    name: str
    total: int
    pending: int
    failed: int
    created_at: float
    cancelled_at: float | None
    finished_at: float | None
    jobs: int = 0

    @property
    def progress(self) -> int:
        """Percent of jobs that have ended, rounded down: 100 only when none is left."""
        return 100 if not self.pending else 100 * (self.total - self.pending) // max(1, self.total)


class JobEvent(NamedTuple):
    """An event that a job has emitted. number: grows over all attempts of the job; one that is missing is no longer kept.
    data: what was emitted, as JSON values. at: unix seconds, by the server's clock."""

    number: int
    data: Any
    at: float


Gap = Literal["order", "head", "delay", "lease", "counts", "ends", "find", "clear", "sizes", "failed", "memory"]
Gaps = Mapping[Gap, str]
"""Capabilities a driver lacks compared with Redis, each with its consequence in words for the operator.

order: first in, first out. head: put a job back at the front. delay: exact to the millisecond. lease: the keeper renews it,
whatever the job does. counts: exact attempts, crashes and exceptions. ends: the effects of a job's end are one step with it.
find: single jobs by id, cancel and list them. clear. sizes: exact, for each kind. failed: the failed store is one step with
the queue. memory: a keyspace of its own.
"""
NONE: Gaps = MappingProxyType({})


class Reserved(NamedTuple):
    """A leased and marked payload, owned by this worker until it is answered."""

    queue: str
    member: bytes  # the payload as stored in reserved, with the mark in it
    mark: str  # "<token>.<slot>.<turn>.<attempts>"
    start: int  # where the reserve wrote its fields into the pushed bytes,
    length: int  # how many bytes it wrote,
    before: bytes  # and which bytes they replaced

    @property
    def owner(self) -> str:
        """The field of the owners hash: "<token>/<seat>"."""
        token, seat, _, _ = self.mark.split(".")
        return f"{token}/{seat}"

    @property
    def turn(self) -> int:
        return int(self.mark.split(".")[2])

    @property
    def lane(self) -> int:
        return int(self.mark.split(".")[1]) // SLOTS


class Released(NamedTuple):
    """How a reserved job is put back. text: its new payload; delay: seconds until it is due, 0: ready now, at the tail (or
    head) of the list."""

    text: bytes
    delay: float = 0.0
    head: bool = False


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A job to send. delay: seconds. lock: name of the lock that the job needs, "" for none; owner: who holds it then (the
    job's id); hold: for at most how many seconds after the job is due. key: "ISSUE NAME" if the job waits under a name, the
    same text as in its payload; "" if not."""

    queue: str
    payload: bytes
    delay: float = 0.0
    lock: str = ""
    owner: str = ""
    hold: float = 0.0
    key: str = ""


class Claim(NamedTuple):
    """A tick of a schedule entry that only one scheduler may take.

    queue: where the job is sent, "" if there is none. field: the entry's field. before: the value that was read, b"" if the
    field did not exist. after: the new value. at: the tick, unix milliseconds. job: sent in the same step.
    """

    queue: str
    field: str
    before: bytes
    after: bytes
    at: int
    job: Outgoing | None = None


class Claimed(NamedTuple):
    """The outcome of a claim: taken, early, found or refused.

    now: unix seconds by the server. holder: the tick is taken, but its job was not sent because this owner holds its lock.
    early: the tick is in the future. found: the field's value if it is not `before`, b"" if the field does not exist.
    refused: the server refused the claim; nothing was done.
    """

    now: float = 0.0
    taken: bool = False
    early: bool = False
    found: bytes | None = None
    holder: str = ""
    refused: Exception | None = None


Answers = Callable[[], list[Claimed]]


NO_JOB = "not a JSON object with a count of attempts"  # as the scripts write it, which cannot tell why


class Unread(NamedTuple):
    """A payload that is no job, moved to the failed store unread. id: of its record."""

    queue: str
    id: str
    reason: str


class Turn(NamedTuple):
    """The reply of one turn: the result of the ack, and the job reserved next."""

    acked: bool | None  # None: nothing to ack; False: the lease had been lost
    reserved: Reserved | None
    next_due: float | None  # seconds until the next delayed job is due; None: none waits
    paused: tuple[str, ...]  # queues
    malformed: tuple[Unread, ...] = ()


class LaneTurn(NamedTuple):
    """A turn of a worker that has several jobs: what it answers, and which lanes are free.

    done: finished jobs to ack. back: jobs that it holds and has not started, to be put back at the head in this order with
    nothing counted. lanes: free lanes; at most one job is reserved for each, none without lanes. single: the lane of a job
    that must be taken by itself. diverts: a job that may have killed a worker goes to the suspects instead of a lane.
    suspects: take only suspects: those that may run together in `lanes`, another one by itself.
    """

    queues: Sequence[str]
    done: Sequence[Reserved] = ()
    back: Sequence[Reserved] = ()
    lanes: Sequence[int] = ()
    single: int = 0
    shut: Sequence[str] = ()
    diverts: bool = False
    suspects: bool = False


class LaneReply(NamedTuple):
    """The reply of such a turn. lost: of `done`, jobs whose lease had been lost. jobs: reserved now, in order. The rest as
    in Turn."""

    lost: tuple[Reserved, ...]
    jobs: tuple[Reserved, ...]
    next_due: float | None
    paused: tuple[str, ...]
    malformed: tuple[Unread, ...] = ()


class LaneAnswer(NamedTuple):
    """What a keeper does with the job of a lane. text: the payload to put back at the head; None: it has finished, delete
    it. suspect: put it to the suspects instead."""

    owner: str
    member: bytes
    text: bytes | None = None
    suspect: bool = False


class Sizes(msgspec.Struct, frozen=True):
    """How many payloads a queue has. oldest_age: seconds the head of ready has been waiting, None if unknown."""

    ready: int
    delayed: int
    reserved: int
    failed: int
    oldest_age: float | None


Spot = Literal["delayed", "ready", "running", "failed"]
SPOTS: tuple[Spot, ...] = get_args(Spot)


class Found(NamedTuple):
    """A job found by its id. text: as stored (record and payload if it has failed).

    score: unix seconds at which a delayed job is due or a running job's lease expires, else None. behind: how many ready
    jobs come after it.
    """

    queue: str
    spot: Spot
    text: bytes
    payload: Payload
    score: float | None
    behind: int | None = None


class Kept(NamedTuple):
    """The stored record of a job with result_ttl. status: done or failed, None until it ends. value: JSON, the result or
    {error, message}; b"!" and the reason if JSON cannot represent it. at: unix seconds. details: of its progress."""

    status: str | None
    value: bytes
    progress: float | None
    at: float | None
    details: Mapping[str, Any] = MappingProxyType({})

    @property
    def percent(self) -> float | None:
        """The progress that the job reported last; 100 once it is done."""
        return 100.0 if self.status == "done" else self.progress


def reserved_of(queue: str, member: bytes, base: str = "") -> Reserved:
    """The reservation in a reserved payload. base: the beginning of the owner's marks, if known.

    `before` is reconstructed with one attempt less. That is exact if the payload had an attempts count and was never
    reserved before; otherwise only qd's own keys may differ from the pushed bytes.
    """
    unit = unanswered(member, base)
    if unit is None:
        return Reserved(queue, member, "", 0, 0, b"")
    before = b'"attempts":%d' % max(0, unit.attempts - 1)
    return Reserved(queue, member, unit.mark, unit.start, unit.end - unit.start, before)


End = Literal["done", "skipped", "failed"]  # skipped: not run because its batch was cancelled


def ends(
    payload: Payload, how: End, place: str = "", value: bytes = b"null", signing: Signing | None = None
) -> list[Effect]:
    """The effects of a job's end, in the order in which they happen. A cancelled job counts as failed.

    place: queue and id of a failed job's record, "" if there is none. value: result or error as JSON, for the record of a
    job with result_ttl and for the next job of the chain. signing: signs that one, if it takes the result.
    """
    relations, effects = payload.qd, list[Effect]()
    if relations is None:
        return effects
    now, uuid = time.time(), payload.uuid or ""
    if relations.unique is not None:
        effects.append(Free(relations.unique, uuid))
    if how == "failed":
        effects += [Push(link.queue, chained_payload(link, now), link.delay) for link in relations.catch]
    elif relations.chain:
        link, *rest = relations.chain
        passed = (uuid, value, signing)
        effects.append(Push(link.queue, chained_payload(link, now, tuple(rest), relations.catch, passed), link.delay))
    if relations.batch is not None:
        effects.append(Count(relations.batch, uuid, how, place))
    if relations.result and (known := payload.id or uuid):
        effects.append(Keep(known, "failed" if how == "failed" else "done", value, relations.result))
    return effects


def put_back(payload: Payload, delay: float) -> tuple[Effect, ...]:
    """The effect of a release: the job's lock, if it still has one, lasts until the job is due again in `delay` seconds, and
    then for its usual time."""
    relations = payload.qd
    if relations is None or relations.unique is None:
        return ()
    return (Hold(relations.unique, payload.uuid or "", delay + (relations.hold or HOLD)),)


class BeatRequest(NamedTuple):
    """token: of the master. report: JSON, "" for none. lease: seconds. reclaims_until: last moment (unix, server clock)
    at which the beat may reclaim leases, 0 for never. slots: seats of live workers, slot + 256 x lane."""

    token: str
    report: str
    lease: float
    renew: bool
    reclaims_until: float
    slots: Sequence[int]


class LateAnswer(NamedTuple):
    """An answer that a worker left for an unreachable node and that has now been delivered. there: the lease still held."""

    queue: str
    member: bytes
    there: bool


class BeatReply(NamedTuple):
    """now: unix seconds of the server. restart, down: the control values, "" for none. due: ms until the next delayed job
    or -1. more: more jobs are due already. waiting: indexes of queues with ready jobs that no worker holds any of.
    cancelled, lost: slot and turn of jobs to cancel, and of lost leases. away: servers that did not answer, or queues that a
    server refuses, each with the error, while others did answer. broke: error of the other work of this beat.
    late_answers: those that workers had left."""

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
    late_answers: tuple[LateAnswer, ...] = ()
