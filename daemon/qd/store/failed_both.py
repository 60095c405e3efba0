"""The failed store together with Laravel's table failed_jobs, as if they were one: what qd lists, retries and forgets where
`[failed] database` names a database.

A record and its copy are one. A row without a record (PHP wrote it, or the record has made way for newer ones) stands for
itself; to be retried it is taken into the store first. No step loses or doubles a job, wherever it is ended:

    retry   record: note "no row" - delete the row - move to ready      row: record it - delete the row - move to ready
    forget  delete the row - delete the record
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice

from msgspec.structs import replace

from qd import payload
from qd.errors import Malformed
from qd.store.failed import EVERY, PAGE, FailedStore, Record, Wanted
from qd.store.keyspace import KeyspaceStore
from qd.store.laravel_failed import FailedJobs, Row

GONE = "its row in failed_jobs is gone: it was retried or forgotten with artisan (--force sends it all the same)"


class BothStores(FailedStore):
    """connection: the name under which Laravel and qd know the place of the queues. Calls may raise DatabaseError, too."""

    def __init__(self, store: KeyspaceStore, table: FailedJobs, connection: str) -> None:
        super().__init__(store)
        self.table, self.connection = table, connection

    def queues(self, also: Iterable[str] = ()) -> list[str]:
        return sorted({*super().queues(also), *self.table.queues(self.connection)})

    def of_queue(self, queue: str, wanted: Wanted = EVERY, *, newest: bool = True) -> Iterator[Record]:
        mine = self._looked_up(super().of_queue(queue, wanted, newest=newest))
        rows = self._rows(queue, wanted, newest=newest)
        return merge(mine, rows, key=lambda record: record.failed_at, reverse=newest)

    def _looked_up(self, records: Iterator[Record]) -> Iterator[Record]:
        """The same; those whose row is gone say so."""
        while page := list(islice(records, PAGE)):
            copied = [record.uuid for record in page if record.copied and record.uuid]
            there = self.table.there(copied)
            for record in page:
                yield replace(record, elsewhere=record.copied and record.uuid not in there)

    def _rows(self, queue: str, wanted: Wanted, *, newest: bool) -> Iterator[Record]:
        rows = self.table.rows(self.connection, queue, newest=newest)
        while page := list(islice(rows, PAGE)):
            known = self.kept(queue, [row.record or "" for row in page])
            for row, has_record in zip(page, known, strict=True):
                record = of_row(row)
                if not has_record and in_time(record, wanted) and wanted.fits(record):
                    yield record

    def find(self, queues: Sequence[str], words: Sequence[str]) -> dict[str, list[Record]]:
        found = super().find(queues, words)
        for row in self.table.of(words):
            if not found[row.name]:
                found[row.name] = [of_row(row)]
        return found

    def count(self, queues: Sequence[str]) -> int | None:
        return None  # rows and records are told apart as they are read

    def gone(self, queue: str, jobs: Mapping[str, str]) -> set[str]:
        """One whose record was dropped can still be retried by its row."""
        gone = sorted(super().gone(queue, jobs))
        rows = [self.table.there(gone[at : at + PAGE]) for at in range(0, len(gone), PAGE)]
        return set(gone).difference(*rows)

    # -- changing

    def unfit(self, record: Record, now: float, *, force: bool = False) -> str | None:
        return GONE if record.elsewhere and not force else super().unfit(record, now)

    def retry(
        self, queue: str, records: Sequence[Record], now: float, *, force: bool = False, resumes: str | None = None
    ) -> list[str | None]:
        sent = [record for record in records if force or not record.elsewhere]
        rows = [record for record in sent if record.row]
        if rows:
            self.adopt(queue, rows)
        if copied := [record.id for record in sent if record.copied]:
            self.uncopied(queue, copied)
        self.table.take([record.uuid for record in sent if record.uuid])
        answers = iter(super().retry(queue, sent, now, resumes=resumes) if sent else ())
        return [GONE if record.elsewhere and not force else next(answers) for record in records]

    def forget(self, queue: str, records: Sequence[Record]) -> list[str | None]:
        self.table.take([record.uuid for record in records if record.uuid])
        mine = [record for record in records if not record.row]
        if mine:
            super().forget(queue, mine)
        return [None] * len(records)


def of_row(row: Row) -> Record:
    """A record of a row; its id is the row's name: the uuid, as for artisan."""
    raw = row.payload.encode()
    try:
        read = payload.read(raw)
        job, attempts = read.display if read.is_laravel_object else read.job, read.attempts
    except Malformed:
        job, attempts = None, 0
    head = row.exception.partition("\n")[0]
    error, _, reason = head.partition(": ")
    name = error.rpartition("\\")[2] if reason else ""
    return Record(
        id=row.name, queue=row.queue, failed_at=row.failed_at, uuid=row.name, job=job, error=name, row=True,
        reason=reason or head, attempts=attempts, trace=row.exception, payload=raw,
    )  # fmt: skip


def in_time(record: Record, wanted: Wanted) -> bool:
    at = record.failed_at
    return (wanted.since is None or at >= wanted.since) and (wanted.until is None or at <= wanted.until)
