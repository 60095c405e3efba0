"""Batches on Redis: made and added to here, counted by the scripts that answer jobs (batch.lua).

qd:batch:ID            name, total, allow, created_at, cancelled_at, finished_at, skipped; open while jobs are being
                       sent; and for each callback: NAME its payload, NAME:queue, NAME:delay, NAME:moments, NAME:sent
qd:batch:ID:pending    uuids of those that have not ended
qd:batch:ID:failed     uuid -> queue and id of the failed record, "" if there is none, RETRIED once it was sent again
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from qd.connectors.batches import BatchState, Entry, NewBatch
from qd.connectors.keyspace import keys
from qd.connectors.keyspace.base import Arg, Keyspace, script
from qd.errors import BatchFinished, ConnectionLost, UnknownBatch

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
