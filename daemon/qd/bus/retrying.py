"""Batch.retry_failed() takes the failed jobs of a batch out of the failed store and sends them again. Batch.dropped counts
those whose record is gone."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from qd.connectors.base import Connector
from qd.connectors.batches import Batches
from qd.events import JobRetryRequested
from qd.listeners import Listeners
from qd.process.shield import shield
from qd.store.failed import FailedStore, Record
from qd.store.keyspace import beside

if TYPE_CHECKING:
    from qd.config import Settings

MOST = 100  # records that are moved by one call


def retry_failed(id: str, queue: Connector, settings: Settings, connection: str, listeners: Listeners) -> int:
    """How many were sent again. With the first of them the batch goes on: a cancelled one is not cancelled any more. Those
    that can never be retried are logged."""
    kept, count = failed_store(queue, settings, connection), 0
    for name, jobs in failures(id, queue.batches).items():
        ids = list(jobs.values()) if name else []
        for at in range(0, len(ids), MOST):
            moved = retried(kept, name, ids[at : at + MOST], id)
            tell_retried(listeners, connection, moved)
            count += len(moved)
    if gone := lost(id, queue.batches, kept):
        logging.getLogger("qd.batches").warning(told(id, gone))
    return count


def told(id: str, gone: int) -> str:
    return f"batch {id}: {gone} of its failed jobs cannot be retried, no record of them is kept: `then` will not run"


def dropped(id: str, queue: Connector, settings: Settings, connection: str) -> int:
    """How many failed jobs of the batch can never be retried."""
    return lost(id, queue.batches, failed_store(queue, settings, connection))


def lost(id: str, batches: Batches, kept: FailedStore) -> int:
    """As `dropped`, for `qd failed retry`, which has the store already."""
    with shield:
        by_queue = failures(id, batches)
        return sum(len(kept.gone(name, jobs) if name else jobs) for name, jobs in by_queue.items())


def failures(id: str, batches: Batches) -> dict[str, dict[str, str]]:
    """Queue -> uuid -> id of the record; under "" those that never had one."""
    by_queue: dict[str, dict[str, str]] = {}
    with shield:
        for uuid, (name, record) in batches.failures(id).items():
            by_queue.setdefault(name, {})[uuid] = record
    return by_queue


def retried(kept: FailedStore, queue: str, ids: Sequence[str], batch: str) -> list[Record]:
    """The records of these ids that were sent again."""
    with shield:
        records = kept.of_ids(queue, ids)
        said = kept.retry(queue, records, kept.store.now(), resumes=batch) if records else []
    return [record for record, why in zip(records, said, strict=True) if why is None]


def tell_retried(listeners: Listeners, connection: str, records: Iterable[Record]) -> None:
    """`qd failed retry` tells here, too."""
    if listeners.has(JobRetryRequested):
        for record in records:
            listeners.emit(JobRetryRequested(connection, record.queue, record.job, record.job_id, record.payload))


def failed_store(queue: Connector, settings: Settings, connection: str) -> FailedStore:
    store = beside(queue)
    if not settings.failed.database:
        return FailedStore(store)
    from qd.store.failed_both import BothStores
    from qd.store.laravel_failed import FailedJobs

    return BothStores(store, FailedJobs(settings.failed.database), connection)
