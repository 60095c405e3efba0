"""Batch.retry_failed(): what has failed of a batch is taken out of the failed store and sent again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from qd.connectors.base import Connector
from qd.events import JobRetryRequested
from qd.listeners import Listeners
from qd.process.shield import shield
from qd.store.failed import FailedStore, Record
from qd.store.keyspace import beside

if TYPE_CHECKING:
    from qd.config import Settings

MOST = 100  # records that are moved by one call


def retry_failed(id: str, queue: Connector, settings: Settings, connection: str, listeners: Listeners) -> int:
    """How many were sent again. With the first of them the batch goes on: a cancelled one is not cancelled any more."""
    with shield:
        failures = queue.batches.failures(id)
    by_queue: dict[str, list[str]] = {}
    for name, record in failures.values():
        by_queue.setdefault(name, []).append(record)
    kept = failed_store(queue, settings, connection)
    count = 0
    for name, ids in by_queue.items():
        for at in range(0, len(ids), MOST):
            moved = retried(kept, name, ids[at : at + MOST], id)
            tell_retried(listeners, connection, moved)
            count += len(moved)
    return count


def retried(kept: FailedStore, queue: str, ids: Sequence[str], batch: str) -> list[Record]:
    """The records of these ids that were sent again."""
    with shield:
        records = list(kept.read(queue, [(each, 0.0) for each in ids]))
        said = kept.retry(queue, records, kept.store.now(), resumes=batch) if records else []
    return [record for record, why in zip(records, said, strict=True) if why is None]


def tell_retried(listeners: Listeners, connection: str, records: Iterable[Record]) -> None:
    """`qd failed retry` tells here, too."""
    if listeners.has(JobRetryRequested):
        for record in records:
            listeners.emit(JobRetryRequested(connection, record.queue, record.job, record.id, record.payload))


def failed_store(queue: Connector, settings: Settings, connection: str) -> FailedStore:
    store = beside(queue)
    if not settings.failed.database:
        return FailedStore(store)
    from qd.store.failed_both import BothStores
    from qd.store.laravel_failed import FailedJobs

    return BothStores(store, FailedJobs(settings.failed.database), connection)
