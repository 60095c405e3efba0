"""Single jobs, batches and ticks of the schedule on a keyspace: base.Jobs, base.Batches and base.Ticks.

    KeptJobs.find     find.lua       a thousand payloads per call: each call is short, the search is O(n)
    KeptJobs.drop     drop.lua       a waiting job, by its exact bytes
    KeptJobs.stop     stop.lua       a running job: a field of qd:cancel, which the keeper of its worker reads
    KeptJobs.kept     HGETALL        the record that the end of the job wrote (keep.lua)
    KeptJobs.emit     emit.lua       qd:job:ID:events, its numbered events; events.lua reads those after a number
    KeptJobs.steps    steps.lua      reads or records the durable steps of a job
    KeptBatches       batch_add.lua  creates batches and adds jobs; the scripts that answer jobs count them (batch.lua)
    KeptTicks         tick.lua       takes ticks, in one write for all queues

qd:batch:ID            name, total, jobs, allow, created_at, cancelled_at, finished_at, skipped; open while jobs are being
                       sent; and for each callback: NAME its payload, NAME:queue, NAME:delay, NAME:moments, NAME:sent
qd:batch:ID:pending    uuids of jobs that have not ended
qd:batch:ID:failed     uuid -> queue and id of the failed record, "" if there is none, RETRIED once the job was sent again
qd:ticks               field -> the value that the last scheduler wrote
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from qd.arguments.values import decode_value
from qd.drivers import types
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import (
    Arg,
    Keyspace,
    ScriptCall,
    checked,
    chunked,
    chunked_by_size,
    grouped,
    script,
    strange,
)
from qd.drivers.keyspace.sending import effect_args, keyed_args, left_by, single_args
from qd.drivers.types import (
    SPOTS,
    Answers,
    BatchState,
    Claim,
    Claimed,
    Effect,
    Entry,
    Forget,
    Found,
    Kept,
    NewBatch,
    Spot,
)
from qd.errors import BatchFinished, ConnectionLost, ServerRefused, WrongType, unknown_batch
from qd.payload.format import readable
from qd.payload.reservation import split_mark
from qd.process.shield import shield

# In the order in which a job passes through them, so that a job that moves during the search is found later.
PLACES: tuple[tuple[Spot, str, Callable[[str], str]], ...] = (
    ("delayed", "zset", keys.delayed),
    ("ready", "list", keys.ready),
    ("ready", "list", keys.suspects),
    ("running", "zset", keys.reserved),
    ("failed", "hash", keys.failed),
)
RECORDS = 1000  # maximum number of records that are read in a round trip


class Records:
    def __init__(self, space: Keyspace, prefix: str) -> None:
        self.space, self.prefix = space, prefix

    def _keys(self, *names: str) -> list[str]:
        return [self.prefix + name for name in names]


class KeptJobs(Records):
    def find(self, queue: str, id: str, spots: Sequence[Spot] = SPOTS) -> Found | None:
        found = self._search(queue, id, spots)
        return next((each for each in found if id in (each.payload.id, each.payload.uuid)), None)

    def ids(self, queue: str, start: str) -> set[str]:
        found = self._search(queue, start, [spot for spot, _, _ in PLACES])
        ids = {id for each in found for id in (each.payload.id, each.payload.uuid)}
        return {id for id in ids if id and id.startswith(start)}

    def _search(self, queue: str, word: str, spots: Sequence[Spot]) -> Iterator[Found]:
        """The jobs whose payloads contain the word."""
        for spot, kind, key in PLACES:
            for text, position in self._containing(key(queue), word, kind) if spot in spots else ():
                if (payload := readable(text.partition(b"\n")[2] if spot == "failed" else text)) is None:
                    continue
                score = float(position) if spot in ("delayed", "running") else None
                behind = int(position) if spot == "ready" else None
                yield Found(queue, spot, text, payload, score, behind)

    def _containing(self, key: str, id: str, kind: str) -> Iterator[tuple[bytes, bytes]]:
        """Payloads or records that contain the id anywhere, each with its score, field or number of jobs behind it."""
        name, at = self.prefix + key, b"0"
        while True:
            with shield:
                at, *found = script("find").call(self.space, [name], kind, at, id)
            yield from zip(found[::2], found[1::2], strict=True)
            if at == b"0":
                return

    def drop(self, found: Found, effects: Sequence[Effect]) -> bool:
        if found.payload.rsv is not None:  # it was reserved before, and may still have places
            owner = found.payload.uuid or found.payload.id or ""
            effects = [*effects, *left_by(self.space, self.prefix, owner), Forget(found.payload.id or owner)]
        more, args = effect_args(effects, self.prefix)
        waits = keys.ready if found.spot == "ready" else keys.delayed
        names = self._keys(waits(found.queue), keys.notify(found.queue), keys.keyed(found.queue), *more)
        issue, _, key = ((found.payload.qd.key if found.payload.qd else None) or "").partition(" ")
        with shield:
            return bool(
                script("drop").call(self.space, names, found.spot, found.text, key, issue, found.behind or 0, *args)
            )

    def stop(self, found: Found) -> bool:
        try:
            mark = split_mark(found.payload.rsv or "")
        except ValueError:
            return False  # reserved by another program
        if not mark.n.isdecimal():
            return False
        names = self._keys(keys.reserved(found.queue), keys.owners(found.queue), keys.CANCEL)
        with shield:
            return bool(script("stop").call(self.space, names, mark.owner, mark.base))

    def kept(self, id: str) -> Kept | None:
        return self.kept_many([id])[0]

    def kept_many(self, ids: Sequence[str]) -> list[Kept | None]:
        found = list[Kept | None]()
        for some in chunked(ids, RECORDS):
            commands = [("HGETALL", self.prefix + keys.kept(id)) for id in some]
            with shield:
                replies = checked(self.space.call_many(commands))
            for each in (dict(zip(flat[::2], flat[1::2], strict=True)) for flat in replies):
                status = each[b"status"].decode("utf-8", "replace") if b"status" in each else None
                progress, at = number(each.get(b"progress")), number(each.get(b"at"))
                details = decode_value(each.get(b"details") or b"{}")
                found.append(Kept(status, each.get(b"value", b""), progress, at, details) if each else None)
        return found

    def progress(self, id: str, percent: float, ttl: float, details: bytes = b"") -> None:
        script("progress").call(self.space, self._keys(keys.kept(id)), percent, ttl, details)

    def emit(self, some: Sequence[tuple[str, Sequence[Arg]]]) -> list[object]:
        return self.space.run_many([ScriptCall(script("emit"), self._keys(keys.stream(id)), args) for id, args in some])

    def events(self, id: str, since: int) -> list[types.JobEvent]:
        entries = script("events").call(self.space, self._keys(keys.stream(id)), since)
        parts = [entry.split(b" ", 5) for entry in entries]  # as emit.lua writes them
        try:
            found = [types.JobEvent(int(number), decode_value(text), float(at)) for number, _, at, _, _, text in parts]
        except (ValueError, WrongType):
            raise ServerRefused(f"the stream of events of job {id} contains what qd did not write") from None
        return [event for event in found if event.number > since]

    def steps(self, id: str, mark: str, *added: str | bytes | int) -> Any:
        return script("steps").call(self.space, self._keys(keys.steps(id)), mark, *added)


def number(text: bytes | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None  # written by another program


CHUNK, CHUNK_BYTES = 1000, 16 << 20  # maximum number and size of the jobs of a call; a single job may be larger
RETRIED = b"retried "  # as batch.lua writes it
FACTS = ("name", "total", "created_at", "cancelled_at", "finished_at", "jobs")


class KeptBatches(Records):
    def send(self, batch: NewBatch, jobs: Sequence[Entry]) -> None:
        self._add(batch.id, jobs, fields_of(batch))

    def add(self, id: str, jobs: Sequence[Entry]) -> None:
        self._add(id, jobs, [])

    def _add(self, id: str, jobs: Sequence[Entry], fields: list[Arg]) -> None:
        """fields: of a new batch, [] for an existing one.

        A new batch is open from the first to the last of several calls. An existing batch is not opened: the job that adds
        is pending itself, and if it were killed in between, its next attempt could not close the batch.
        """
        chunks = list(chunked_by_size(jobs, lambda job: len(job.payload), CHUNK, CHUNK_BYTES)) or [[]]
        for number, chunk in enumerate(chunks):
            opens = 0
            if fields and len(chunks) > 1:
                opens = 1 if number == 0 else -1 if number == len(chunks) - 1 else 0
            self._call(id, chunk, opens, [] if number else fields)

    def _call(self, id: str, jobs: Sequence[Entry], opens: int, fields: list[Arg]) -> None:
        queues = list(dict.fromkeys([job.queue for job in jobs]))
        numbers = {queue: number for number, queue in enumerate(queues, 1)}
        names = [*keys_of(id), *[kind(each) for each in queues for kind in (keys.ready, keys.delayed, keys.notify)]]
        args: list[Arg] = [self.prefix, opens, len(fields) // 2, *fields]
        for job in jobs:
            args += [numbers[job.queue], job.uuid, job.delay, job.payload]
        reply = script("batch_add").call(self.space, self._keys(*names), *args)
        if reply == 0:
            raise unknown_batch(id)
        if reply == -1:
            raise BatchFinished(f"batch '{id}' is finished: add to it from inside one of its jobs")
        if reply != 1:
            self.space.close()
            raise ConnectionLost(self.space.stranger)

    def cancel(self, id: str) -> bool:
        return bool(script("batch_cancel").call(self.space, self._keys(keys.batch(id))))

    def state(self, id: str) -> BatchState | None:
        return self.states([id])[0]

    def states(self, ids: Sequence[str]) -> list[BatchState | None]:
        """In one round trip. None: there is no such batch."""
        commands, found = list[tuple[Arg, ...]](), list[BatchState | None]()
        for batch, pending, failed in (self._keys(*keys_of(id)) for id in ids):
            commands += [("HMGET", batch, *FACTS), ("SCARD", pending), ("HLEN", failed)]
        replies = iter(checked(self.space.call_many(commands)) if commands else ())
        for id in ids:
            (name, total, *times, jobs), left, bad = next(replies), next(replies), next(replies)
            state = None
            with suppress(ValueError):  # another program's key
                made, *(cancelled, ended) = (None if text is None else float(text) for text in times)
                if total is not None:
                    numbers = (int(total), left, bad, made or 0.0)
                    state = BatchState(id, (name or b"").decode(), *numbers, cancelled, ended, int(jobs or 0))
            found.append(state)
        return found

    def failures(self, id: str) -> Mapping[str, tuple[str, str]]:
        flat = self.space.call("HGETALL", *self._keys(keys.batch_failed(id)))
        found = dict[str, tuple[str, str]]()
        for uuid, place in zip(flat[::2], flat[1::2], strict=True):
            if place != RETRIED:
                queue, _, record = place.decode().rpartition(" ")
                found[uuid.decode()] = queue, record
        return found


def keys_of(id: str) -> tuple[str, str, str]:
    return keys.batch(id), keys.batch_pending(id), keys.batch_failed(id)


def fields_of(batch: NewBatch) -> list[Arg]:
    fields: list[Arg] = ["name", batch.name, "jobs", batch.jobs]
    if batch.allow_failures:
        fields += ["allow", 1]
    for name, (queue, payload, delay, moments) in batch.callbacks.items():
        fields += [name, payload, f"{name}:queue", queue, f"{name}:delay", delay]
        fields += [f"{name}:moments", " ".join(map(str, moments))]
    return fields


TICK_CHUNK = 500  # maximum number of ticks in a script call


class KeptTicks(Records):
    def begin(self, claims: Sequence[Claim]) -> Answers:
        groups = grouped([claim.queue for claim in claims], TICK_CHUNK)
        calls = [call_of(self.prefix, queue, claims, places) for queue, places in groups]
        return partial(self._taken, len(claims), calls, self.space.begin_many(calls))

    def _taken(self, count: int, calls: Sequence[ScriptCall], replies: Callable[[], list[Any]]) -> list[Claimed]:
        found = [Claimed()] * count
        for call, reply in zip(calls, replies(), strict=True):
            for place, answer in zip(call.places, self._answers(call, reply), strict=True):
                found[place] = answer
        return found

    def _answers(self, call: ScriptCall, reply: Any) -> Sequence[Claimed]:
        if isinstance(reply, Exception):
            return [Claimed(refused=reply)] * len(call.places)
        if isinstance(reply, list) and len(reply) == 1 + len(call.places):
            now = reply[0] / 1000
            plain = (Claimed(now, early=True), Claimed(now, taken=True))
            return [plain[each] if isinstance(each, int) else answer_of(each, now) for each in reply[1:]]
        self.space.close()
        raise ConnectionLost(self.space.stranger)

    def read(self, fields: Sequence[str]) -> list[bytes]:
        found = list[bytes]()
        for chunk in encoded_chunks(fields):
            found += [raw or b"" for raw in self.space.call("HMGET", *self._keys(keys.TICKS), *chunk)]
        return found

    def strange(self, queue: str) -> str:
        sent = (keys.ready, keys.delayed, keys.notify) if queue else ()
        expected = {key(queue): keys.TYPES[key] for key in sent}
        return strange(self.space, self.prefix, {keys.TICKS: b"hash", **expected})

    def page(self, at: int) -> tuple[int, dict[str, bytes]]:
        following, flat = self.space.call("HSCAN", *self._keys(keys.TICKS), at, "COUNT", TICK_CHUNK)
        names = [name.decode("utf-8", "surrogateescape") for name in flat[::2]]
        return int(following), dict(zip(names, flat[1::2], strict=True))

    def put(self, field: str, value: bytes) -> None:
        self.space.call("HSET", *self._keys(keys.TICKS), field, value)

    def forget(self, fields: Sequence[str]) -> None:
        for chunk in encoded_chunks(fields):
            self.space.call("HDEL", *self._keys(keys.TICKS), *chunk)


def encoded_chunks(fields: Sequence[str]) -> list[Sequence[bytes]]:
    return chunked([field.encode("utf-8", "surrogateescape") for field in fields], TICK_CHUNK)


def answer_of(reply: Any, now: float) -> Claimed:
    """The outcome of a tick that was refused or not taken, or whose job was not sent."""
    if isinstance(reply, Exception):
        return Claimed(now, refused=reply)
    if isinstance(reply, list):
        return Claimed(now, found=reply[0] or b"")
    return Claimed(now, taken=True, holder=reply.decode("utf-8", "replace"))


def call_of(prefix: str, queue: str, claims: Sequence[Claim], places: Sequence[int]) -> ScriptCall:
    kinds = (keys.ready, keys.delayed, keys.notify, keys.keyed) if queue else ()
    names, args = [keys.TICKS, *[kind(queue) for kind in kinds]], list[Arg]()
    for place in places:
        _, field, before, after, at, job = claims[place]
        args += (field, before, after, at)
        if job is None:
            args.append("none")
        elif job.key:
            args += ("keyed", *keyed_args(job))
        elif job.lock:
            args += ("single", *single_args(job))
            names.append(keys.unique(job.lock))
        else:
            args += ("push", job.delay or 0, job.payload)
    return ScriptCall(script("tick"), [prefix + name for name in names], args, places)
