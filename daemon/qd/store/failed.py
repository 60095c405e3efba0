"""The failed jobs of a connection: what failed, when, where and why, read a page at a time and never as a whole.

cli/failed/ and Batch.retry_failed ask here. A record is one line of JSON, a newline, and the payload's own bytes
(drivers/keyspace/keys.py); its score in the index is the moment by the server's clock. Bytes that nobody of ours has
written are a record, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from heapq import merge
from typing import Any, NamedTuple

import msgspec

from qd import payload
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg, script
from qd.errors import Malformed
from qd.payload.format import HOLD, Relations
from qd.payload.rewrite import sent_again
from qd.store import masters
from qd.store.base import KeyspaceStore

PAGE = 500  # records whose names are read at once
ANSWERS: dict[int, str | None] = {1: None, 0: "", -1: "another job has the lock of its unique name"}
LIGHT = 4 << 20  # bytes of records that are in memory at once, as far as one record is not larger


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a record; what is missing or of another type there is told as nothing. copied: whether a row of
    failed_jobs was written for it."""

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
    """A failed job. id: the record's own, which no other has; people are shown job_id. failed_at: unix seconds by the
    server's clock; payload: its bytes as they are kept."""

    id: str
    queue: str
    failed_at: float
    payload: bytes = b""

    @property
    def job_id(self) -> str:
        """What people call the job: its id, else its uuid. The record's own id if it has neither."""
        return id_of(self) or self.uuid or self.id

    @property
    def failures(self) -> tuple[int, float]:
        """How often the job has failed permanently, this time included, and when first (unix seconds)."""
        try:
            count, first = payload.read(self.payload).failed_before
        except Malformed:
            count, first = 0, None
        return count + 1, self.failed_at if first is None else first

    @property
    def batch(self) -> str | None:
        """The id of the batch that its job belongs to."""
        try:
            ties = payload.read(self.payload).qd if b'"batch":' in self.payload else None
        except Malformed:
            return None
        return ties.batch if ties is not None else None

    def text(self) -> str | None:
        """The payload as text; None: its bytes are none."""
        try:
            return self.payload.decode()
        except UnicodeDecodeError:
            return None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records. job and error may have wildcards; text stands in reason, traceback or payload, in any case of its
    letters; since and until: unix seconds, both included."""

    job: str | None = None
    error: str | None = None
    text: str | None = None
    since: float | None = None
    until: float | None = None

    def fits(self, record: Record) -> bool:
        """As far as the record itself says; when it failed is asked of the index."""
        return (
            (self.job is None or fnmatchcase(record.job or "", self.job))
            and (self.error is None or fnmatchcase(record.error, self.error))
            and (self.text is None or self._says(record, self.text.casefold()))
        )

    def _says(self, record: Record, text: str) -> bool:
        places = (record.reason, record.trace or "", record.payload.decode("utf-8", "replace"))
        return any(text in place.casefold() for place in places)


class Fill(NamedTuple):
    """How full the failed store of a queue is. dropped: records that were deleted to make room for newer ones since the
    counter began; dropped_at: unix seconds of the last of them."""

    bytes: int = 0
    dropped: int = 0
    dropped_at: float | None = None


EVERY = Wanted()
NO_TIES = Relations()


_decode = msgspec.json.Decoder(_Line).decode


def record_of(queue: str, id: str, failed_at: float, raw: bytes) -> Record:
    """The record kept as `raw`. A line that cannot be read is told so, in place of a reason."""
    line, _, body = raw.partition(b"\n")
    try:
        said = _decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        said = _Line(reason="(its record cannot be read)")
    facts = msgspec.structs.asdict(said)
    return Record(id=id, queue=queue, failed_at=failed_at, payload=body, **facts)


class FailedStore:
    """The failed stores of the queues on one connection. Every call may raise ConnectionLost or ServerRefused."""

    def __init__(self, store: KeyspaceStore) -> None:
        self.store, self.space = store, store.space

    def _key(self, name: str) -> str:
        return self.store.prefix + name

    def queues(self, also: Iterable[str] = ()) -> list[str]:
        """Those in which something has failed, of those found on the server and of `also`."""
        names = sorted({*masters.queues_found(self.store), *also})
        kinds = self.space.call_many([("TYPE", self._key(keys.failed_at(name))) for name in names]) if names else []
        return [name for name, kind in zip(names, kinds, strict=True) if kind in (b"zset", "zset")]

    # -- reading

    def records(self, queues: Sequence[str], wanted: Wanted = EVERY, *, newest: bool = True) -> Iterator[Record]:
        """Those that are wanted, of all these queues, by the moment they failed."""
        streams = [self.of_queue(queue, wanted, newest=newest) for queue in queues]
        return merge(*streams, key=lambda record: record.failed_at, reverse=newest)

    def of_queue(self, queue: str, wanted: Wanted = EVERY, *, newest: bool = True) -> Iterator[Record]:
        for page in self.pages(queue, wanted.since, wanted.until, newest=newest):
            yield from filter(wanted.fits, self.read(queue, page))

    def pages(
        self, queue: str, since: float | None = None, until: float | None = None, *, newest: bool = True
    ) -> Iterator[list[tuple[str, float]]]:
        """Ids and moments, a page at a time. What is taken away or added meanwhile disturbs nothing: the next page begins
        at the moment of the last one, and those of that moment are told once."""
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
                size *= 2  # so many have failed at one moment
                continue
            yield [(id.decode("utf-8", "surrogateescape"), float(score)) for id, score in new]
            if new[-1][1] != edge:
                edge, seen, size = new[-1][1], set(), PAGE
            seen.update(id for id, score in new if score == edge)

    def read(self, queue: str, page: Sequence[tuple[str, float]]) -> Iterator[Record]:
        """The records of these ids; those that are gone are left out."""
        for chunk in self._light(queue, page):
            raws = self.space.call("HMGET", self._key(keys.failed(queue)), *[_raw(id) for id, _ in chunk])
            for (id, at), raw in zip(chunk, raws, strict=True):
                if raw is not None:
                    yield record_of(queue, id, at, raw)

    def _light(self, queue: str, page: Sequence[tuple[str, float]]) -> Iterator[list[tuple[str, float]]]:
        """The page in parts that are no load for the memory."""
        name = self._key(keys.failed(queue))
        sizes = self.space.call_many([("HSTRLEN", name, _raw(id)) for id, _ in page])
        part, total = list[tuple[str, float]](), 0
        for pair, size in zip(page, sizes, strict=True):
            if isinstance(size, Exception):
                raise size
            if part and total + size > LIGHT:
                yield part
                part, total = [], 0
            part.append(pair)
            total += size
        if part:
            yield part

    def of_ids(self, queue: str, ids: Sequence[str]) -> list[Record]:
        """The records of these ids (at most 100); those that are gone are left out."""
        name = self._key(keys.failed_at(queue))
        scores = self.space.call_many([("ZSCORE", name, _raw(id)) for id in ids]) if ids else []
        page = [(id, float(score)) for id, score in zip(ids, scores, strict=True) if isinstance(score, bytes)]
        return list(self.read(queue, page))

    def find(self, queues: Sequence[str], words: Sequence[str]) -> dict[str, list[Record]]:
        """For each word the records it may mean: the record of this id; else those of jobs whose id is this or begins so, or
        whose uuid is this, or whose records begin so. All records are read for that."""
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
        """For each queue, in one round trip. An index of another type counts as an empty one."""
        members = ("bytes", "dropped", "dropped_at")
        commands = [("ZSCORE", self._key(keys.failed_at(queue)), member) for queue in queues for member in members]
        said = self.space.call_many(commands) if commands else []
        found = [-float(each) if isinstance(each, bytes) else None for each in said]  # negative: see failed.lua
        return [
            Fill(int(found[at] or 0), int(found[at + 1] or 0), found[at + 2])
            for at in range(0, len(found), len(members))
        ]

    # -- changing

    def refused(self, records: Sequence[Record], now: float, *, force: bool = False) -> list[str | None]:
        """Why `retry` would not move each of these, None if it would: as far as the records and their copies tell."""
        return [cannot_run(record, now) for record in records]

    def retry(
        self, queue: str, records: Sequence[Record], now: float, *, force: bool = False, resumes: str | None = None
    ) -> list[str | None]:
        """Move these (at most 100) to ready, each in the step that takes it out of the store; now: the server's clock.
        force: also those that artisan has retried; resumes: id of a batch that goes on when one is moved.

        None for each that was moved, "" for one that is not there any more, else the reason why it stays. After
        ConnectionLost nobody knows which were moved: those that were not are still there.
        """
        names = [kind(queue) for kind in (keys.failed, keys.failed_at, keys.ready, keys.notify)]
        names.append(keys.batch(resumes or ""))
        args, said = list[Arg](), list[str | None]()

        def place(name: str | None) -> int:
            if name is None:
                return 0
            names.append(name)
            return len(names)

        for record in records:
            try:
                again = sent_again(record.payload, now, record.failed_at)
                tied = payload.read(record.payload)
            except Malformed as error:
                said.append(f"it cannot be run: {error}")
                continue
            ties = tied.qd or NO_TIES
            lock = None if ties.unique is None else keys.unique(ties.unique)
            kept = None if ties.result is None else keys.kept(tied.id or tied.uuid or "")
            args += [_raw(record.id), again, tied.uuid or "", ties.hold or HOLD, place(lock), place(kept)]
            batch = ties.batch if ties.batch and ":" not in ties.batch else None  # else it would be another's key
            args += [place(batch and keys.batch(batch)), f"{queue} {record.id}"]
            if batch:
                place(keys.batch_pending(batch)), place(keys.batch_failed(batch))
            said.append(None)
        found = [self._key(name) for name in names]
        answers = iter(script("retry").call(self.space, found, int(resumes is not None), *args) if args else ())
        return [ANSWERS[next(answers)] if why is None else why for why in said]

    def forget(self, queue: str, records: Sequence[Record]) -> list[str | None]:
        """Delete these (at most 100). None for each."""
        names = [self._key(keys.failed(queue)), self._key(keys.failed_at(queue))]
        script("forget").call(self.space, names, *[_raw(record.id) for record in records])
        return [None] * len(records)

    def uncopied(self, queue: str, ids: Sequence[str]) -> None:
        """Note that these (at most 100) have no row in failed_jobs any more."""
        script("copied").call(self.space, [self._key(keys.failed(queue))], "0", *map(_raw, ids))

    def gone(self, queue: str, jobs: Mapping[str, str]) -> set[str]:
        """jobs: uuid -> id of its record. Those that can never be retried, for the record is not kept any more."""
        uuids, found = list(jobs), set[str]()
        for at in range(0, len(uuids), PAGE):
            page = uuids[at : at + PAGE]
            there = self.kept(queue, [jobs[uuid] for uuid in page])
            found.update(uuid for uuid, kept in zip(page, there, strict=True) if not kept)
        return found

    def kept(self, queue: str, ids: Sequence[str]) -> list[bool]:
        """Which of these have a record."""
        name = self._key(keys.failed(queue))
        sizes = self.space.call_many([("HSTRLEN", name, _raw(id)) for id in ids]) if ids else []
        return [isinstance(size, int) and size > 0 for size in sizes]

    def _of_id(self, queues: Sequence[str], id: str) -> list[Record]:
        commands = [("ZSCORE", self._key(keys.failed_at(queue)), _raw(id)) for queue in queues]
        scores = self.space.call_many(commands) if commands else []
        there = [(queue, score) for queue, score in zip(queues, scores, strict=True) if isinstance(score, bytes)]
        return [record for queue, score in there for record in self.read(queue, [(id, float(score))])]


def _raw(id: str) -> bytes:
    return id.encode("utf-8", "surrogateescape")


def cannot_run(record: Record, now: float) -> str | None:
    try:
        sent_again(record.payload, now), payload.read(record.payload)
    except Malformed as error:
        return f"it cannot be run: {error}"
    return None


def means(record: Record, word: str) -> bool:
    if not word:
        return False  # an empty variable of a shell
    if record.id.startswith(word) or record.uuid == word:
        return True
    return word.encode() in record.payload and (id_of(record) or "").startswith(word)


def id_of(record: Record) -> str | None:
    """The id that its payload has, which the log tells of."""
    try:
        return payload.read(record.payload).id
    except Malformed:
        return None
