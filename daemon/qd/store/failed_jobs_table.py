"""Copies of failed jobs in Laravel's table failed_jobs, for `php artisan queue:failed` and similar commands. Loaded only if
`[failed] database` names a database.

The table is Laravel's own (Queue/Failed/DatabaseUuidFailedJobProvider.php, since 8): uuid, connection, queue, payload,
exception, failed_at (UTC). qd neither reads nor changes rows that PHP wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from qd.drivers.urls import with_hosts_as_options
from qd.errors import ConfigError, ConnectionLost
from qd.options.extras import to_install
from qd.redaction import redact
from qd.store.base import KeyspaceStore
from qd.store.failed import FailedStore, Record

WAIT = 2  # seconds for a connection, and for a reply if the driver has such an option
DRIVERS = {
    "mysql": (("mysql+pymysql", "pymysql"), ("mysql+mysqldb", "MySQLdb")),
    "mariadb": (("mariadb+pymysql", "pymysql"), ("mariadb+mysqldb", "MySQLdb")),
    "postgresql": (("postgresql+psycopg", "psycopg"), ("postgresql+psycopg2", "psycopg2")),
    "postgres": (("postgresql+psycopg", "psycopg"), ("postgresql+psycopg2", "psycopg2")),
}
GONE = "its row in failed_jobs is gone: it was retried or forgotten with artisan (--force sends it anyway)"


class FailedRow(NamedTuple):
    """A row of failed_jobs. failed_at: unix seconds."""

    uuid: str
    connection: str
    queue: str
    payload: str
    exception: str
    failed_at: float


def signed_off(exception: str, id: str) -> str:
    """The text of an exception, with a line that names its record."""
    return f"{exception.rstrip()}\n\n`qd failed show {id}`"


class DatabaseError(ConnectionLost):
    """The database is unreachable or refuses a statement. The message is one line without passwords."""


class FailedJobs:
    """The table in the database at `url`; connects on first use; for one process. Every method may raise DatabaseError.

    Raises ConfigError if SQLAlchemy or the driver is not installed."""

    def __init__(self, url: str) -> None:
        if find_spec("sqlalchemy") is None:
            raise ConfigError(f"[failed] database needs SQLAlchemy: {to_install('database')}")
        import sqlalchemy as sql
        from sqlalchemy.pool import NullPool

        self.sql = sql
        url, options = with_driver(url)
        try:
            self.engine = sql.create_engine(url, poolclass=NullPool, connect_args=options)
        except ValueError:  # its text shows the port, which may be a part of the password
            raise ConfigError("[failed] database cannot be used: the port in its url is not a number") from None
        except (sql.exc.ArgumentError, ImportError) as error:
            raise ConfigError(f"[failed] database cannot be used: {redact(str(error))}") from None
        kinds = {name: sql.DateTime if name == "failed_at" else sql.Text for name in FailedRow._fields}
        self.table = sql.table("failed_jobs", *[sql.column(name, kind) for name, kind in kinds.items()])

    def _run(self, *statements: Any) -> list[Any]:
        """Run all in one transaction. Returns the rows of the last."""
        try:
            with self.engine.begin() as connection:
                for statement in statements:
                    result = connection.execute(statement)
                return list(result) if result.returns_rows else []
        except self.sql.exc.SQLAlchemyError as error:
            text = str(getattr(error, "orig", None) or error)
            raise DatabaseError(f"the database of [failed]: {redact(' '.join(text.split()))[:250]}") from None

    def check(self) -> None:
        """Read a row: raises DatabaseError if the table or a column is missing. Creates no file."""
        url = self.engine.url
        if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
            raise DatabaseError(f"the database of [failed]: no file {url.database}")
        self._run(self.sql.select(self.table).limit(1))

    def add(self, row: FailedRow) -> None:
        """Write a row, replacing that of the same job."""
        at = datetime.fromtimestamp(row.failed_at, UTC).replace(tzinfo=None, microsecond=0)
        self._run(self._delete([row.uuid]), self.table.insert().values({**row._asdict(), "failed_at": at}))

    def delete(self, uuids: Sequence[str]) -> None:
        """Delete the rows of these jobs."""
        if uuids:
            self._run(self._delete(uuids))

    def _delete(self, uuids: Sequence[str]) -> Any:
        return self.table.delete().where(self.table.c.uuid.in_(list(uuids)))

    def there(self, uuids: Sequence[str]) -> set[str]:
        """The jobs among these that have a row."""
        query = self.sql.select(self.table.c.uuid).where(self.table.c.uuid.in_(list(uuids)))
        return {row[0] for row in self._run(query)} if uuids else set()


def with_copies(store: KeyspaceStore, database: str) -> FailedStore:
    """The failed store; with a `database` (url), a CopiedStore. Raises ConfigError."""
    return CopiedStore(store, FailedJobs(database)) if database else FailedStore(store)


class CopiedStore(FailedStore):
    """A failed store whose records have copies in `table`: qd deletes the row of a job that it retries or forgets, and does
    not retry a job that artisan has retried. Methods that change something may raise DatabaseError.

    A retry notes "no row" in the record, deletes the row, and moves the job to ready. If it is killed in between, the next
    retry completes it.
    """

    def __init__(self, store: KeyspaceStore, table: FailedJobs) -> None:
        super().__init__(store)
        self.table = table

    def refused(self, records: Sequence[Record], now: float, *, force: bool = False) -> list[str | None]:
        gone = set() if force else self._gone(records)
        reasons = zip(records, super().refused(records, now), strict=True)
        return [GONE if record.id in gone else why for record, why in reasons]

    def retry(
        self, queue: str, records: Sequence[Record], now: float, *, force: bool = False, resumes: str | None = None
    ) -> list[str | None]:
        gone = set() if force else self._gone(records)
        sent = [record for record in records if record.id not in gone]
        if copied := [record.id for record in sent if record.copied]:
            self.uncopied(queue, copied)
        self.table.delete([record.uuid for record in sent if record.uuid])
        refusals = iter(super().retry(queue, sent, now, resumes=resumes) if sent else ())
        return [GONE if record.id in gone else next(refusals) for record in records]

    def forget(self, queue: str, records: Sequence[Record]) -> list[str | None]:
        self.table.delete([record.uuid for record in records if record.uuid])
        return super().forget(queue, records)

    def _gone(self, records: Sequence[Record]) -> set[str]:
        """The ids of the records whose row artisan has deleted."""
        copied = [(record.id, record.uuid) for record in records if record.copied and record.uuid]
        there = self.table.there([uuid for _, uuid in copied])
        return {id for id, uuid in copied if uuid not in there}


def with_driver(url: str) -> tuple[str, dict[str, Any]]:
    """The url, with an installed driver if it names none, and the driver's timeout options."""
    kind, colon, rest = with_hosts_as_options(url).partition(":")
    found = next((name for name, module in DRIVERS.get(kind, ()) if find_spec(module)), kind)
    options: dict[str, Any] = {"timeout": WAIT} if kind == "sqlite" else {"connect_timeout": WAIT}
    if found.endswith("pymysql"):
        options |= {"read_timeout": WAIT, "write_timeout": WAIT}
    elif "psycopg" in found:
        options["options"] = f"-c statement_timeout={WAIT * 1000}"
    return found + colon + rest, options
