"""The failed jobs of a connection: read one page at a time, retried or forgotten.

    queues:NAME:failed       id -> record              retry     moves the payload to ready, atomically
    queues:NAME:failed_at    id -> when it failed      forget    deletes the record

A record is one line of JSON, a newline, and the payload's own bytes. Its score in the index is the time it failed, by the
server's clock. Bytes that another program wrote count as a record, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from heapq import merge
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg, checked, chunked, chunked_by_size, script
from qd.drivers.types import NO_JOB
from qd.errors import Malformed
from qd.payload.build import sent_again
from qd.payload.format import HOLD, Payload, Relations, read, readable
from qd.store import masters
from qd.store.base import KeyspaceStore, decoded

PAGE = 500  # ids read at once
# by reply of retry.lua
REFUSALS: dict[int, str | None] = {1: None, 0: "", -1: "another job has the lock of its unique name"}
LIGHT = 4 << 20  # bytes of records in memory at once, unless one record is larger


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a record. copied: whether it has a row in failed_jobs."""

    uuid: str | None = None
    job: str | None = None
    error: str = ""
    reason: str = ""
    attempts: int = 0
    crashes: int = 0
    trace: str | None = None
    death: dict[str, Any] | None = None
    copied: bool = False


class Record(_Line, frozen=True, kw_only=True):
    """A failed job. id: of the record; operators see job_id. failed_at: unix seconds by the server's clock."""

    id: str
    queue: str
    failed_at: float
    payload: bytes = b""

    @property
    def known(self) -> Payload | None:
        """Its payload; None if that is no job."""
        return readable(self.payload)

    @property
    def job_id(self) -> str:
        """The job's id, which log lines show; else its uuid, else the id of the record."""
        return (known.id if (known := self.known) else None) or self.uuid or self.id

    @property
    def failures(self) -> tuple[int, float]:
        """How often the job has failed permanently, including this time, and when first (unix seconds)."""
        count, first = known.failed_before if (known := self.known) else (0, None)
        return count + 1, self.failed_at if first is None else first

    @property
    def batch(self) -> str | None:
        """The id of the batch that its job belongs to."""
        known = self.known if b'"batch":' in self.payload else None
        return known.qd.batch if known is not None and known.qd is not None else None

    def text(self) -> str | None:
        """The payload as text; None if it is not UTF-8."""
        try:
            return self.payload.decode()
        except UnicodeDecodeError:
            return None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter of records. job and error may have wildcards; text is searched in reason, traceback and payload, ignoring
    case; since and until: unix seconds, inclusive."""

    job: str | None = None
    error: str | None = None
    text: str | None = None
    since: float | None = None
    until: float | None = None

    def fits(self, record: Record) -> bool:
        """Without since and until, which the index answers."""
        if self.job is not None and not fnmatchcase(record.job or "", self.job):
            return False
        if self.error is not None and not fnmatchcase(record.error, self.error):
            return False
        places = (record.reason, record.trace or "", record.payload.decode("utf-8", "replace")) if self.text else ()
        return not self.text or any(self.text.casefold() in place.casefold() for place in places)


class Fill(NamedTuple):
    """The size of the failed store of a queue. dropped: records deleted to make room for newer ones; dropped_at: unix
    seconds of the last one."""

    bytes: int = 0
    dropped: int = 0
    dropped_at: float | None = None


EVERY = Wanted()
NO_RELATIONS = Relations()
_decoder = msgspec.json.Decoder(_Line)


def record_of(queue: str, id: str, failed_at: float, raw: bytes) -> Record:
    """The record stored as `raw`. If its first line is unreadable, the reason is a note of that; if its payload was not
    read, the reason is what is wrong in it."""
    line, _, body = raw.partition(b"\n")
    fields = decoded(_decoder, line) or _Line(reason="(its record cannot be read)")
    if fields.reason == NO_JOB:
        try:
            read(body)
        except Malformed as error:
            fields = msgspec.structs.replace(fields, reason=str(error))
    return Record(id=id, queue=queue, failed_at=failed_at, payload=body, **msgspec.structs.asdict(fields))


class FailedStore:
    """The failed stores of the queues on one connection. Every method may raise ConnectionLost or ServerRefused."""

    def __init__(self, store: KeyspaceStore) -> None:
        self.store, self.space = store, store.space

    def _key(self, name: str) -> str:
        return self.store.prefix + name

    def queues(self, also: Iterable[str] = ()) -> list[str]:
        """The queues with failed jobs, of those found on the server and of `also`."""
        names = sorted({*masters.queues_found(self.store), *also})
        kinds = self.space.call_many([("TYPE", self._key(keys.failed_at(name))) for name in names]) if names else []
        return [name for name, kind in zip(names, kinds, strict=True) if kind in (b"zset", "zset")]

    # -- reading

    def records(self, queues: Sequence[str], wanted: Wanted = EVERY, *, newest: bool = True) -> Iterator[Record]:
        """The records of these queues that fit, by the time they failed."""
        streams = [self.of_queue(queue, wanted, newest=newest) for queue in queues]
        return merge(*streams, key=lambda record: record.failed_at, reverse=newest)

    def of_queue(self, queue: str, wanted: Wanted = EVERY, *, newest: bool = True) -> Iterator[Record]:
        for page in self.pages(queue, wanted.since, wanted.until, newest=newest):
            yield from filter(wanted.fits, self.read(queue, page))

    def pages(
        self, queue: str, since: float | None = None, until: float | None = None, *, newest: bool = True
    ) -> Iterator[list[tuple[str, float]]]:
        """Ids and times of failure, one page at a time. Records may be added or deleted meanwhile: the next page starts at
        the time of the last record, and skips the records of that time that it has already returned."""
        low = b"(0" if since is None else repr(since).encode()
        high = b"+inf" if until is None else repr(until).encode()
        command, edge, seen, size = "ZREVRANGEBYSCORE" if newest else "ZRANGEBYSCORE", b"", set[bytes](), PAGE
        while True:
            bounds = (edge or high, low) if newest else (edge or low, high)
            name = self._key(keys.failed_at(queue))
            flat = self.space.call(command, name, *bounds, "WITHSCORES", "LIMIT", 0, size)
            pairs = list(zip(flat[::2], flat[1::2], strict=True))
            new = [(id, score) for id, score in pairs if id not in seen]
            if not new:
                if len(pairs) < size:
                    return
                size *= 2  # a whole page failed at the same time
                continue
            yield [(id.decode("utf-8", "surrogateescape"), float(score)) for id, score in new]
            if new[-1][1] != edge:
                edge, seen, size = new[-1][1], set(), PAGE
            seen.update(id for id, score in new if score == edge)

    def read(self, queue: str, page: Sequence[tuple[str, float]]) -> Iterator[Record]:
        """The records of these ids; deleted ones are left out."""
        name = self._key(keys.failed(queue))
        sizes = checked(self.space.call_many([("HSTRLEN", name, _raw(id)) for id, _ in page]))
        for chunk in chunked_by_size(list(zip(page, sizes, strict=True)), itemgetter(1), PAGE, LIGHT):
            raws = self.space.call("HMGET", name, *[_raw(id) for (id, _), _ in chunk])
            for ((id, at), _), raw in zip(chunk, raws, strict=True):
                if raw is not None:
                    yield record_of(queue, id, at, raw)

    def of_ids(self, queue: str, ids: Sequence[str]) -> list[Record]:
        """The records of these ids (at most 100); deleted ones are left out."""
        name = self._key(keys.failed_at(queue))
        scores = self.space.call_many([("ZSCORE", name, _raw(id)) for id in ids]) if ids else []
        page = [(id, float(score)) for id, score in zip(ids, scores, strict=True) if isinstance(score, bytes)]
        return list(self.read(queue, page))

    def find(self, queues: Sequence[str], words: Sequence[str]) -> dict[str, list[Record]]:
        """For each word: the record with this id; else, after reading all records, those whose id, job id (or a prefix of
        either) or uuid it is."""
        found = {word: self._of_id(queues, word) for word in words}
        left = [word for word in words if not found[word]]
        if left:
            for record in self.records(queues):
                for word in left:
                    if means(record, word):
                        found[word].append(record)
        return found

    def count(self, queues: Sequence[str]) -> int:
        """How many records there are."""
        counts = self.space.call_many([("HLEN", self._key(keys.failed(queue))) for queue in queues]) if queues else []
        return sum(count for count in counts if isinstance(count, int))

    def fills(self, queues: Sequence[str]) -> list[Fill]:
        """For each queue, in one round trip. An index of another type counts as empty."""
        members = ("bytes", "dropped", "dropped_at")
        commands = [("ZSCORE", self._key(keys.failed_at(queue)), member) for queue in queues for member in members]
        replies = self.space.call_many(commands) if commands else []
        found = [-float(each) if isinstance(each, bytes) else None for each in replies]  # negative: see failed.lua
        return [Fill(int(size or 0), int(dropped or 0), at) for size, dropped, at in chunked(found, len(members))]

    # -- changing

    def refused(self, records: Sequence[Record], now: float, *, force: bool = False) -> list[str | None]:
        """For each record why `retry` would not move it, None if it would, as far as record and copy show."""
        return [cannot_run(record, now) for record in records]

    def retry(
        self, queue: str, records: Sequence[Record], now: float, *, force: bool = False, resumes: str | None = None
    ) -> list[str | None]:
        """Move these (at most 100) from the store to ready, each atomically. now: by the server's clock. force: also those
        that artisan has retried. resumes: id of a batch to resume once one is moved.

        Returns None for each that was moved, "" for one that no longer exists, else the reason why it stays. After
        ConnectionLost it is unknown which were moved; the others are still in the store.
        """
        names = [kind(queue) for kind in (keys.failed, keys.failed_at, keys.ready, keys.notify)]
        names.append(keys.batch(resumes or ""))
        args, refusals = list[Arg](), list[str | None]()

        def place(name: str | None) -> int:
            if name is None:
                return 0
            names.append(name)
            return len(names)

        for record in records:
            try:
                again = sent_again(record.payload, now, record.failed_at)
                old = read(record.payload)
            except Malformed as error:
                refusals.append(f"it cannot be run: {error}")
                continue
            relations = old.qd or NO_RELATIONS
            lock = None if relations.unique is None else keys.unique(relations.unique)
            kept = None if relations.result is None else keys.kept(old.id or old.uuid or "")
            args += [_raw(record.id), again, old.uuid or "", relations.hold or HOLD, place(lock), place(kept)]
            batch = relations.batch
            if batch and ":" in batch:  # it would be the key of something else
                batch = None
            args += [place(batch and keys.batch(batch)), f"{queue} {record.id}"]
            if batch:
                place(keys.batch_pending(batch)), place(keys.batch_failed(batch))
            refusals.append(None)
        found = [self._key(name) for name in names]
        replies = iter(script("retry").call(self.space, found, int(resumes is not None), *args) if args else ())
        return [REFUSALS[next(replies)] if why is None else why for why in refusals]

    def forget(self, queue: str, records: Sequence[Record]) -> list[str | None]:
        """Delete these (at most 100). Returns None for each."""
        names = [self._key(keys.failed(queue)), self._key(keys.failed_at(queue))]
        script("forget").call(self.space, names, *[_raw(record.id) for record in records])
        return [None] * len(records)

    def uncopied(self, queue: str, ids: Sequence[str]) -> None:
        """Note that these (at most 100) no longer have a row in failed_jobs."""
        script("copied").call(self.space, [self._key(keys.failed(queue))], "0", *map(_raw, ids))

    def gone(self, queue: str, jobs: Mapping[str, str]) -> set[str]:
        """jobs: uuid -> id of its record. Returns the uuids whose record is gone."""
        name, found = self._key(keys.failed(queue)), set[str]()
        for page in chunked(list(jobs), PAGE):
            sizes = self.space.call_many([("HSTRLEN", name, _raw(jobs[uuid])) for uuid in page])
            there = (isinstance(size, int) and size > 0 for size in sizes)
            found.update(uuid for uuid, kept in zip(page, there, strict=True) if not kept)
        return found

    def _of_id(self, queues: Sequence[str], id: str) -> list[Record]:
        commands = [("ZSCORE", self._key(keys.failed_at(queue)), _raw(id)) for queue in queues]
        scores = self.space.call_many(commands) if commands else []
        there = [(queue, score) for queue, score in zip(queues, scores, strict=True) if isinstance(score, bytes)]
        return [record for queue, score in there for record in self.read(queue, [(id, float(score))])]


def _raw(id: str) -> bytes:
    return id.encode("utf-8", "surrogateescape")


def cannot_run(record: Record, now: float) -> str | None:
    try:
        sent_again(record.payload, now), read(record.payload)
    except Malformed as error:
        return f"it cannot be run: {error}"
    return None


def means(record: Record, word: str) -> bool:
    if not word:
        return False  # an unset shell variable
    if record.id.startswith(word) or record.uuid == word:
        return True
    known = record.known if word.encode() in record.payload else None
    return known is not None and (known.id or "").startswith(word)
