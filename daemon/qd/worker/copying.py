"""The copy of a failed job in Laravel's table failed_jobs, written after its record is kept in Redis.

A database that is away costs two seconds at most, and is not asked again for a while; the job is in the failed store anyway.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from qd.connectors.base import Connector
from qd.errors import ConfigError, ConnectionLost, Malformed, ServerRefused
from qd.log import Log
from qd.retried import as_pushed

if TYPE_CHECKING:
    from qd.store.laravel_failed import FailedJobs

AGAIN = 10.0  # seconds until a database that was away is asked again


class Copier:
    """url: of the database; connection: what Laravel calls the place of the queues."""

    def __init__(self, url: str, connection: str, queue: Connector, log: Log) -> None:
        self.url, self.connection, self.queue, self.log = url, connection, queue, log
        self._table: FailedJobs | None = None
        self._away_until = 0.0
        self._told = False

    def copy(self, record: dict[str, Any], raw: bytes) -> None:
        """Only a job with a uuid, which its payload has since Laravel 5.7, can be in that table. Raises nothing."""
        if not record["uuid"] or time.monotonic() < self._away_until:
            return
        from qd.store.laravel_failed import DatabaseError, FailedJobs, Row, signed_off

        said = record["trace"] or f"{record['error']}: {record['reason']}"
        try:
            text = as_pushed(raw).decode()
            self._table = self._table or FailedJobs(self.url)
            exception = signed_off(said, record["id"])
            self._table.add(Row(record["uuid"], self.connection, record["queue"], text, exception, record["failed_at"]))
            self._told = False
        except (DatabaseError, ConfigError) as error:
            return self._away(error)
        except (Malformed, UnicodeDecodeError):
            return
        try:
            self.queue.copied(record["queue"], record["id"])
        except (ConnectionLost, ServerRefused):
            return  # the row is there and the record does not say so: `qd failed retry` does not check the row

    def _away(self, error: Exception) -> None:
        self._away_until = time.monotonic() + AGAIN
        if not self._told:
            self._told = True
            hint = "failed jobs are kept in Redis, and not copied until it is back"
            self.log.error("failed.not_copied", error=str(error), hint=hint)
