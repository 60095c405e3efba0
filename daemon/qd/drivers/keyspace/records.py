"""Single jobs in Redis, by their ids: found, cancelled, and what is kept of their ends. See base.Jobs.

find    find.lua       a thousand payloads a call: no call is long, all of them are O(n)
drop    drop.lua       a waiting job, by its exact bytes
stop    stop.lua       a running one: a field of qd:cancel, which the keeper of its worker reads
kept    HGETALL        the record that the end of a job wrote (keep.lua)

Batches on Redis: made and added to here, counted by the scripts that answer jobs (batch.lua).

qd:batch:ID            name, total, allow, created_at, cancelled_at, finished_at, skipped; open while jobs are being
                       sent; and for each callback: NAME its payload, NAME:queue, NAME:delay, NAME:moments, NAME:sent
qd:batch:ID:pending    uuids of those that have not ended
qd:batch:ID:failed     uuid -> queue and id of the failed record, "" if there is none, RETRIED once it was sent again

Ticks of the schedule in Redis: tick.lua takes them, in one write for all queues. See base.Connector.

qd:ticks   field -> what the last scheduler wrote there
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg, Keyspace, Replies, ScriptCall, script
from qd.drivers.keyspace.sending import keyed_words, left_by, single_words, spoken
from qd.drivers.types import Answers, BatchState, Claim, Claimed, Effect, Entry, Found, Kept, NewBatch, Outgoing, Spot
from qd.errors import BatchFinished, ConnectionLost, Malformed, UnknownBatch
from qd.payload.format import Payload, read
from qd.payload.reservation import split_mark
from qd.process.shield import shield

# In the order in which a job goes through them, so that one that goes on meanwhile is met further behind.
PLACES: tuple[tuple[Spot, str], ...] = (("delayed", "zset"), ("ready", "list"), ("running", "zset"), ("failed", "hash"))
NAMES = {"delayed": keys.delayed, "ready": keys.ready, "running": keys.reserved, "failed": keys.failed}


class KeptJobs:
    def __init__(self, space: Keyspace, prefix: str) -> None:
        self.space, self.prefix = space, prefix

    def find(
        self, queue: str, id: str, spots: Sequence[Spot] = ("delayed", "ready", "running", "failed")
    ) -> Found | None:
        for spot, kind in PLACES:
            for text, beside in self._named(queue, id, spot, kind) if spot in spots else ():
                raw = text.partition(b"\n")[2] if spot == "failed" else text
                payload = understood(raw)
                if payload is not None and id in (payload.id, payload.uuid):
                    score = float(beside) if spot in ("delayed", "running") else None
                    behind = int(beside) if spot == "ready" else None
                    return Found(queue, spot, text, payload, score, behind)
        return None

    def _named(self, queue: str, id: str, spot: Spot, kind: str) -> Iterator[tuple[bytes, bytes]]:
        """Whatever has the id somewhere in it."""
        name, at = self.prefix + NAMES[spot](queue), b"0"
        while True:
            with shield:
                at, *found = script("find").call(self.space, [name], kind, at, id)
            yield from zip(found[::2], found[1::2], strict=True)
            if at == b"0":
                return

    def drop(self, found: Found, effects: Sequence[Effect]) -> bool:
        if found.payload.rsv is not None:  # it was in hand before, and may have left places
            owner = found.payload.uuid or found.payload.id or ""
            effects = [*effects, *left_by(self.space, self.prefix, owner)]
        more, said = spoken(effects, self.prefix)
        own = (NAMES[found.spot](found.queue), keys.notify(found.queue), keys.keyed(found.queue))
        names = [self.prefix + name for name in (*own, *more)]
        issue, _, key = ((found.payload.qd.key if found.payload.qd else None) or "").partition(" ")
        with shield:
            return bool(
                script("drop").call(self.space, names, found.spot, found.text, key, issue, found.behind or 0, *said)
            )

    def stop(self, found: Found) -> bool:
        try:
            mark = split_mark(found.payload.rsv or "")
        except ValueError:
            return False  # another program's
        if not mark.n.isdecimal():
            return False
        names = [self.prefix + name for name in (keys.reserved(found.queue), keys.owners(found.queue), keys.CANCEL)]
        with shield:
            return bool(script("stop").call(self.space, names, f"{mark.token}/{mark.slot}", mark.base))

    def kept(self, id: str) -> Kept | None:
        with shield:
            flat: list[Any] = self.space.call("HGETALL", self.prefix + keys.kept(id))
        said = {flat[i].decode("utf-8", "replace"): flat[i + 1] for i in range(0, len(flat), 2)}
        if not said:
            return None
        status = said["status"].decode("utf-8", "replace") if "status" in said else None
        return Kept(status, said.get("value", b""), number(said.get("progress")), number(said.get("at")))

    def progress(self, id: str, percent: float, ttl: float) -> None:
        script("progress").call(self.space, [self.prefix + keys.kept(id)], percent, ttl)


def understood(raw: bytes) -> Payload | None:
    try:
        return read(raw)
    except Malformed:
        return None


def number(text: bytes | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None  # somebody else wrote it


CHUNK, MUCH = 1000, 16 << 20  # jobs a call carries at most, and bytes, as far as one job is not larger
RETRIED = b"retried "  # as batch.lua writes it
FACTS = ("name", "total", "created_at", "cancelled_at", "finished_at")


class KeptBatches:
    """Uses the space of its queue."""

    def __init__(self, space: Keyspace, prefix: str) -> None:
        self._space, self._prefix = space, prefix

    def send(self, batch: NewBatch, jobs: Sequence[Entry]) -> None:
        self._add(batch.id, jobs, fields_of(batch))

    def add(self, id: str, jobs: Sequence[Entry]) -> None:
        self._add(id, jobs, [])

    def _add(self, id: str, jobs: Sequence[Entry], fields: list[Arg]) -> None:
        """fields: those of a new batch, which is open until the last of several calls. One that is added to is not: the job
        that adds is pending itself, and when it is killed in between its next attempt could not close what it had opened."""
        chunks = list(chunked(jobs)) or [[]]
        for number, chunk in enumerate(chunks):
            several, last = bool(fields) and len(chunks) > 1, number == len(chunks) - 1
            opens = (1 if not number else -1 if last else 0) if several else 0
            self._call(id, chunk, opens, fields if not number else [])

    def _call(self, id: str, jobs: Sequence[Entry], opens: int, fields: list[Arg]) -> None:
        queues = list(dict.fromkeys([job.queue for job in jobs]))
        numbers = {queue: number for number, queue in enumerate(queues, 1)}
        names = [*keys_of(id), *[kind(each) for each in queues for kind in (keys.ready, keys.delayed, keys.notify)]]
        args: list[Arg] = [self._prefix, opens, len(fields) // 2, *fields]
        for job in jobs:
            args += [numbers[job.queue], job.uuid, job.delay, job.payload]
        said = script("batch_add").call(self._space, self._keys(*names), *args)
        if said == 0:
            raise UnknownBatch(f"no batch '{id}' is there (a finished one is kept for a day)")
        if said == -1:
            raise BatchFinished(f"batch '{id}' is finished: add to it from inside one of its jobs")
        if said != 1:
            self._space.close()
            raise ConnectionLost(self._space.stranger)

    def cancel(self, id: str) -> bool:
        return bool(script("batch_cancel").call(self._space, self._keys(keys.batch(id))))

    def cancelled(self, id: str) -> bool:
        return self._space.call("HGET", *self._keys(keys.batch(id)), "cancelled_at") is not None

    def state(self, id: str) -> BatchState | None:
        batch, pending, failed = self._keys(*keys_of(id))
        said = self._space.call_many([("HMGET", batch, *FACTS), ("SCARD", pending), ("HLEN", failed)])
        for answer in said:
            if isinstance(answer, Exception):
                raise answer
        name, total, created, cancelled, finished = said[0]
        if total is None:
            return None
        return BatchState(
            id, name.decode(), int(total), said[1], said[2], float(created), moment(cancelled), moment(finished)
        )

    def failures(self, id: str) -> Mapping[str, tuple[str, str]]:
        flat = self._space.call("HGETALL", *self._keys(keys.batch_failed(id)))
        places = [place.decode().rpartition(" ") for place in flat[1::2] if place != RETRIED]
        uuids = [uuid.decode() for uuid, place in zip(flat[::2], flat[1::2], strict=True) if place != RETRIED]
        return {uuid: (queue, id) for uuid, (queue, _, id) in zip(uuids, places, strict=True)}

    def _keys(self, *names: str) -> list[str]:
        return [self._prefix + name for name in names]


def keys_of(id: str) -> tuple[str, str, str]:
    return keys.batch(id), keys.batch_pending(id), keys.batch_failed(id)


def fields_of(batch: NewBatch) -> list[Arg]:
    fields: list[Arg] = ["name", batch.name]
    if batch.allow_failures:
        fields += ["allow", 1]
    for name, (queue, payload, delay, moments) in batch.callbacks.items():
        fields += [name, payload, f"{name}:queue", queue, f"{name}:delay", delay]
        fields += [f"{name}:moments", " ".join(map(str, moments))]
    return fields


def chunked(jobs: Sequence[Entry]) -> Iterator[list[Entry]]:
    """In parts that are no load for the server."""
    chunk, size = list[Entry](), 0
    for job in jobs:
        if chunk and (len(chunk) == CHUNK or size + len(job.payload) > MUCH):
            yield chunk
            chunk, size = [], 0
        chunk.append(job)
        size += len(job.payload)
    if chunk:
        yield chunk


def moment(text: bytes | None) -> float | None:
    return None if text is None else float(text)


TICK_CHUNK = 500  # ticks a script call takes at most


class KeptTicks:
    def __init__(self, space: Keyspace, prefix: str) -> None:
        self.space, self.prefix, self._key = space, prefix, prefix + keys.TICKS

    def take(self, claims: Sequence[Claim]) -> list[Claimed]:
        return self.begin(claims)()

    def begin(self, claims: Sequence[Claim]) -> Answers:
        calls = calls_of(self.prefix, claims)
        return partial(self._taken, len(claims), calls, self.space.begin_many(calls))

    def _taken(self, count: int, calls: Sequence[ScriptCall], replies: Replies) -> list[Claimed]:
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
        for some in chunks(fields):
            found += [raw or b"" for raw in self.space.call("HMGET", self._key, *some)]
        return found

    def strange(self, queue: str) -> str:
        """Which keys that a tick of this queue needs hold something else, in words; "": none."""
        kinds = {keys.TICKS: b"hash"}
        if queue:
            kinds |= {keys.ready(queue): b"list", keys.delayed(queue): b"zset", keys.notify(queue): b"list"}
        found = self.space.call_many([("TYPE", self.prefix + key) for key in kinds])
        wrong = [
            (key, is_, kind) for is_, (key, kind) in zip(found, kinds.items(), strict=True) if isinstance(is_, bytes)
        ]
        return ", ".join(
            f"{self.prefix}{key} is a {is_.decode()} and not a {kind.decode()}"
            for key, is_, kind in wrong
            if is_ not in (b"none", kind)
        )

    def page(self, at: int) -> tuple[int, dict[str, bytes]]:
        following, flat = self.space.call("HSCAN", self._key, at, "COUNT", TICK_CHUNK)
        return int(following), {text_of(flat[n]): flat[n + 1] for n in range(0, len(flat), 2)}

    def put(self, field: str, value: bytes) -> None:
        self.space.call("HSET", self._key, field, value)

    def forget(self, fields: Sequence[str]) -> None:
        for some in chunks(fields):
            self.space.call("HDEL", self._key, *some)


def chunks(fields: Sequence[str]) -> Iterator[list[bytes]]:
    raw = [field.encode("utf-8", "surrogateescape") for field in fields]
    return (raw[at : at + TICK_CHUNK] for at in range(0, len(raw), TICK_CHUNK))


def text_of(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def answer_of(reply: Any, now: float) -> Claimed:
    """Of a tick that was refused, not taken, or whose job was not sent."""
    if isinstance(reply, Exception):
        return Claimed(now, refused=reply)
    if isinstance(reply, list):
        return Claimed(now, found=reply[0] or b"")
    return Claimed(now, taken=True, holder=reply.decode("utf-8", "replace"))


def calls_of(prefix: str, claims: Sequence[Claim]) -> list[ScriptCall]:
    groups: dict[str, list[int]] = {}
    for place, claim in enumerate(claims):
        groups.setdefault(claim.queue, []).append(place)
    return [
        call_of(prefix, queue, claims, places[at : at + TICK_CHUNK])
        for queue, places in groups.items()
        for at in range(0, len(places), TICK_CHUNK)
    ]


def call_of(prefix: str, queue: str, claims: Sequence[Claim], places: Sequence[int]) -> ScriptCall:
    kinds = (keys.ready, keys.delayed, keys.notify, keys.keyed) if queue else ()
    known, args, its = [keys.TICKS, *[kind(queue) for kind in kinds]], list[Arg](), script("tick")
    for place in places:
        _, field, before, after, at, job = claims[place]
        args += (field, before, after, at)
        args += words_of(job)
        if job is not None and job.lock and not job.key:
            known.append(keys.unique(job.lock))
    return ScriptCall(its, [prefix + name for name in known], args, places)


def words_of(job: Outgoing | None) -> tuple[Arg, ...]:
    if job is None:
        return ("none",)
    if job.key:
        return ("keyed", *keyed_words(job))
    if job.lock:
        return ("single", *single_words(job))
    return ("push", job.delay or 0, job.payload)
