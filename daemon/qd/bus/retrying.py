"""Batch.retry_failed(): what has failed of a batch is taken out of the failed store and sent again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qd.connectors.base import Queue
from qd.process.shield import shield
from qd.store.failed import FailedStore
from qd.store.redis import beside

if TYPE_CHECKING:
    from qd.config import Settings

MOST = 100  # records that are moved by one call


def retry_failed(id: str, queue: Queue, settings: Settings, connection: str) -> int:
    """How many were sent again. The batch goes on: a cancelled one is not cancelled any more."""
    with shield:
        failures = queue.batches.failures(id)
        queue.batches.resume(id)
    by_queue: dict[str, list[str]] = {}
    for name, record in failures.values():
        by_queue.setdefault(name, []).append(record)
    kept = failed_store(queue, settings, connection)
    return sum(retried(kept, name, ids) for name, ids in by_queue.items())


def retried(kept: FailedStore, queue: str, ids: Sequence[str]) -> int:
    count = 0
    for at in range(0, len(ids), MOST):
        with shield:
            records = list(kept.read(queue, [(each, 0.0) for each in ids[at : at + MOST]]))
            count += kept.retry(queue, records, kept.store.now()).count(None) if records else 0
    return count


def failed_store(queue: Queue, settings: Settings, connection: str) -> FailedStore:
    store = beside(queue)
    if not settings.failed.database:
        return FailedStore(store)
    from qd.store.failed_both import BothStores
    from qd.store.laravel_failed import FailedJobs

    return BothStores(store, FailedJobs(settings.failed.database), connection)
