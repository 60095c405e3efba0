"""Copies of failed jobs in Laravel's table failed_jobs, for `php artisan queue:failed` and similar commands. Loaded only if
`[failed] database` names a database.

The table is Laravel's own (Queue/Failed/DatabaseUuidFailedJobProvider.php, since 8): uuid, connection, queue, payload,
exception, failed_at (UTC). qd does not change rows that PHP wrote.

A row of qd names its record in its exception. If artisan retries a job and it fails again, its new row has the same uuid,
but does not name the first record: that one must not be retried, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from qd.drivers.urls import with_hosts_as_options
from qd.errors import ConfigError, ConnectionLost
from qd.options.drivers import extra_of_url
from qd.options.extras import to_install
from qd.redaction import mask_url, redact
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


_NAMES = re.compile(r"(?:^`qd failed show \S+`\n?)+\Z", re.MULTILINE)
MOST = 100  # records that a row names: if PHP pushed a payload more often, the others need --force


def named_in(exception: str) -> list[str]:
    """The ids of the records that a row names, the newest first."""
    found = _NAMES.search(exception)
    return [line.split()[-1].strip("`") for line in found[0].splitlines()] if found else []


class DatabaseError(ConnectionLost):
    """The database is unreachable or refuses a statement. fact: one line without passwords."""

    def __init__(self, fact: str, fix: str) -> None:
        super().__init__(f"{fact}; {fix}")
        self.fact, self.fix = fact, fix


NO_FILE = "create it with `php artisan migrate`, or correct database below [failed]"
MIGRATE = "`php artisan migrate` creates it (before Laravel 11, `php artisan queue:failed-table` first)"
FIXES = (
    (re.compile(r"^no file|unable to open"), NO_FILE),
    (re.compile(r"no such column|Unknown column|column .* does not exist"), "it needs the columns of Laravel 8"),
    (re.compile(r"no such table|Table .* doesn't exist|relation .* does not exist"), MIGRATE),
    (re.compile(r"readonly database"), "let its user write the file and its folder"),
    (re.compile(r"denied .*(table|failed_jobs)"), "give its user SELECT, INSERT and DELETE on failed_jobs"),
)
CORRECT = "start it, or correct database below [failed]"


class FailedJobs:
    """The table in the database at `url`; connects on first use; for one process. Every method may raise DatabaseError.

    Raises ConfigError if SQLAlchemy or the driver is not installed."""

    def __init__(self, url: str) -> None:
        if find_spec("sqlalchemy") is None:
            raise ConfigError(f"[failed] database needs SQLAlchemy: {library_of(url)}")
        import sqlalchemy as sql
        from sqlalchemy.pool import NullPool

        self.sql, self.title = sql, f"the database of [failed], {mask_url(url)}"
        given, (url, options) = url, with_driver(url)
        try:
            self.engine = sql.create_engine(url, poolclass=NullPool, connect_args=options)
        except ValueError:  # its text shows the port, which may be a part of the password
            raise ConfigError("[failed] database cannot be used: the port in its url is not a number") from None
        except ImportError as error:
            if given.partition(":")[0] not in DRIVERS:
                raise ConfigError(f"[failed] database cannot be used: {redact(str(error))}") from None
            raise ConfigError(f"[failed] database needs a library for its server: {library_of(given)}") from None
        except sql.exc.ArgumentError as error:
            raise ConfigError(f"[failed] database cannot be used: {redact(str(error))}") from None
        kinds = {name: sql.DateTime if name == "failed_at" else sql.Text for name in FailedRow._fields}
        self.table = sql.table("failed_jobs", *[sql.column(name, kind) for name, kind in kinds.items()])

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        try:
            with self.engine.begin() as connection:
                yield connection
        except self.sql.exc.SQLAlchemyError as error:
            raise self._error(redact(" ".join(str(getattr(error, "orig", None) or error).split()))[:250]) from None

    def _error(self, text: str) -> DatabaseError:
        fix = next((fix for pattern, fix in FIXES if pattern.search(text)), CORRECT)
        return DatabaseError(f"{self.title}: {text}", fix)

    def check(self) -> None:
        """Raises DatabaseError if the table, a column or a right is missing. Changes nothing, and creates no file."""
        url = self.engine.url
        if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
            raise self._error(f"no file {url.database}")
        with self._transaction() as connection:
            none = self.sql.select(self.table).where(self.sql.false())
            connection.execute(none)
            connection.execute(self.table.insert().from_select(FailedRow._fields, none))
            connection.execute(self.table.delete().where(self.sql.false()))

    def add(self, row: FailedRow) -> None:
        """Write a row, replacing that of the same uuid. If there is one, PHP pushed the payload several times: the new row
        names the records of all."""
        at, columns = datetime.fromtimestamp(row.failed_at, UTC).replace(tzinfo=None, microsecond=0), self.table.c
        with self._transaction() as connection:
            old = connection.execute(self.sql.select(columns.exception).where(columns.uuid == row.uuid)).scalar()
            ids = [id for id in named_in(old or "")[: MOST - 1] if id not in named_in(row.exception)]
            exception = "\n".join([row.exception, *(f"`qd failed show {id}`" for id in ids)])
            connection.execute(self.table.delete().where(columns.uuid == row.uuid))
            connection.execute(self.table.insert().values({**row._asdict(), "exception": exception, "failed_at": at}))

    def delete(self, uuids: Sequence[str]) -> None:
        """Delete the rows of these jobs."""
        if uuids:
            with self._transaction() as connection:
                connection.execute(self.table.delete().where(self.table.c.uuid.in_(list(uuids))))

    def names(self, uuids: Sequence[str]) -> dict[str, list[str]]:
        """For each of these jobs that has a row, the ids of the records that the row names, the newest first."""
        if not uuids:
            return {}
        columns = self.table.c
        query = self.sql.select(columns.uuid, columns.exception).where(columns.uuid.in_(list(uuids)))
        with self._transaction() as connection:
            return {uuid: named_in(exception or "") for uuid, exception in connection.execute(query)}


def library_of(url: str) -> str:
    """The command that installs what the url needs."""
    return to_install(extra_of_url(url) or "database")


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
        gone = set() if force else gone_of(records, self._names(records))
        reasons = zip(records, super().refused(records, now), strict=True)
        return [GONE if record.id in gone else why for record, why in reasons]

    def retry(
        self, queue: str, records: Sequence[Record], now: float, *, force: bool = False, resumes: str | None = None
    ) -> list[str | None]:
        names = self._names(records)
        gone = set() if force else gone_of(records, names)
        sent = [record for record in records if record.id not in gone]
        if copied := [record.id for record in sent if record.copied]:
            self.uncopied(queue, copied)
        self._delete(sent, names)
        refusals = iter(super().retry(queue, sent, now, resumes=resumes) if sent else ())
        return [GONE if record.id in gone else next(refusals) for record in records]

    def forget(self, queue: str, records: Sequence[Record]) -> list[str | None]:
        self._delete(records, self._names(records))
        return super().forget(queue, records)

    def _names(self, records: Sequence[Record]) -> dict[str, list[str]]:
        return self.table.names(list({record.uuid for record in records if record.uuid}))

    def _delete(self, records: Sequence[Record], names: dict[str, list[str]]) -> None:
        """Delete the rows whose newest record is among these: that of an older one belongs to another failure."""
        uuids = [record.uuid for record in records if record.uuid]
        newest = {names[uuid][0] for uuid in uuids if names.get(uuid)}
        self.table.delete([record.uuid for record in records if record.uuid and record.id in newest])


def gone_of(records: Sequence[Record], names: dict[str, list[str]]) -> set[str]:
    """The ids of the records whose row artisan has deleted. names: of the rows that are there."""
    copied = [(record.id, record.uuid) for record in records if record.copied and record.uuid]
    return {id for id, uuid in copied if id not in names.get(uuid, ())}


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
