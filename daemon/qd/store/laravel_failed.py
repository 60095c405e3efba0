"""Laravel's table failed_jobs: a copy of what fails here, for `php artisan queue:failed` and its sisters, and a source of
what PHP has failed. Loaded only where `[failed] database` names one; SQLAlchemy does the rest.

The table is Laravel's own (Queue/Failed/DatabaseUuidFailedJobProvider.php, since 8): uuid, connection, queue, payload,
exception, failed_at (UTC). The last line of an exception of ours names the record: that is how both are known as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any

from qd.connectors.database.target import with_hosts_as_options
from qd.errors import ConfigError, ConnectionLost
from qd.masks import masked

WAIT = 2  # seconds for a connection, and for an answer where the driver can say so
PAGE = 500  # rows read at once
DRIVERS = {
    "mysql": (("mysql+pymysql", "pymysql"), ("mysql+mysqldb", "MySQLdb")),
    "mariadb": (("mariadb+pymysql", "pymysql"), ("mariadb+mysqldb", "MySQLdb")),
    "postgresql": (("postgresql+psycopg", "psycopg"), ("postgresql+psycopg2", "psycopg2")),
    "postgres": (("postgresql+psycopg", "psycopg"), ("postgresql+psycopg2", "psycopg2")),
}
_NUMBERED = re.compile(r"row-([0-9]{1,18})")
_OURS = re.compile(r"`qd failed show (\S+)`\s*$")


@dataclass(frozen=True, slots=True)
class Row:
    """A failed job as Laravel keeps it. name: its uuid, or "row-7" where Laravel keeps none (its older driver, `database`).
    failed_at: unix seconds."""

    name: str
    connection: str
    queue: str
    payload: str
    exception: str
    failed_at: float

    @property
    def record(self) -> str | None:
        """The id of the record that it is a copy of; None: PHP wrote it."""
        found = _OURS.search(self.exception)
        return found[1] if found else None


def signed_off(exception: str, id: str) -> str:
    """The text of an exception, with the line that names its record."""
    return f"{exception.rstrip()}\n\n`qd failed show {id}`"


class DatabaseError(ConnectionLost):
    """The database is away, or refuses: in one line, without passwords."""


class FailedJobs:
    """The table in the database at `url`; it connects on first use. Every call may raise DatabaseError.

    Raises ConfigError when SQLAlchemy or the driver is not installed. It belongs to one process."""

    def __init__(self, url: str) -> None:
        if find_spec("sqlalchemy") is None:
            raise ConfigError("[failed] database needs SQLAlchemy: pip install 'qd-worker[database]'")
        import sqlalchemy as sql
        from sqlalchemy.pool import NullPool

        self.sql = sql
        url, options = with_driver(url)
        try:
            self.engine = sql.create_engine(url, poolclass=NullPool, connect_args=options)
        except ValueError:  # of its port, which may be a part of the password
            raise ConfigError("[failed] database cannot be used: its url has no number as port") from None
        except (sql.exc.ArgumentError, ImportError) as error:
            raise ConfigError(f"[failed] database cannot be used: {masked(str(error))}") from None
        columns = [sql.Column(name, sql.Text) for name in ("uuid", "connection", "queue", "payload", "exception")]
        self.table = sql.Table(
            "failed_jobs", sql.MetaData(), sql.Column("id", sql.BigInteger, primary_key=True), *columns,
            sql.Column("failed_at", sql.DateTime),
        )  # fmt: skip
        # As the driver gives it: what another program has written there may be no moment.
        at = sql.type_coerce(self.table.c.failed_at, sql.types.NullType()).label("failed_at")
        self.all = sql.select(*[column for column in self.table.c if column.name != "failed_at"], at)

    def _run(self, *statements: Any) -> list[Any]:
        """All in one transaction; the rows of the last."""
        try:
            with self.engine.begin() as connection:
                for statement in statements:
                    result = connection.execute(statement)
                return list(result) if result.returns_rows else []
        except self.sql.exc.SQLAlchemyError as error:
            told = str(getattr(error, "orig", None) or error)
            raise DatabaseError(f"the database of [failed]: {masked(' '.join(told.split()))[:250]}") from None

    def add(self, row: Row) -> None:
        """Write it, in place of a row of the same job."""
        at = datetime.fromtimestamp(row.failed_at, UTC).replace(tzinfo=None, microsecond=0)
        values = {name: getattr(row, name) for name in ("connection", "queue", "payload", "exception")}
        self._run(self._delete([row.name]), self.table.insert().values(uuid=row.name, **values, failed_at=at))

    def take(self, names: Sequence[str]) -> None:
        """Delete these rows."""
        if names:
            self._run(self._delete(names))

    def _delete(self, names: Sequence[str]) -> Any:
        return self.table.delete().where(self._named(names))

    def _named(self, names: Sequence[str]) -> Any:
        column, numbers = self.table.c, [int(found[1]) for name in names if (found := _NUMBERED.fullmatch(name))]
        without = self.sql.and_(column.id.in_(numbers), self.sql.or_(column.uuid.is_(None), column.uuid == ""))
        return self.sql.or_(column.uuid.in_([name for name in names if name]), without)

    def there(self, uuids: Sequence[str]) -> set[str]:
        """Those of these jobs that have a row."""
        asked = self.sql.select(self.table.c.uuid).where(self.table.c.uuid.in_(list(uuids)))
        return {row[0] for row in self._run(asked)} if uuids else set()

    def queues(self, connection: str) -> list[str]:
        """Those of `connection` that rows tell of."""
        column = self.table.c.queue
        asked = self.sql.select(column).where(self.table.c.connection == connection).distinct()
        return sorted(text_of(row[0]) for row in self._run(asked) if row[0])

    def rows(self, connection: str, queue: str, *, newest: bool = True) -> Iterator[Row]:
        """Those of the queue, in the order in which they were written, a page at a time."""
        column, last = self.table.c.id, None
        while True:
            asked = self.all.limit(PAGE).order_by(column.desc() if newest else column)
            asked = asked.where(self.table.c.connection == connection, self.table.c.queue == queue)
            if last is not None:
                asked = asked.where(column < last if newest else column > last)
            page = self._run(asked)
            for row in page:
                yield row_of(row)
            if len(page) < PAGE:
                return
            last = page[-1].id

    def of(self, names: Sequence[str]) -> list[Row]:
        """The rows of these names."""
        return [row_of(row) for row in self._run(self.all.where(self._named(names)))]


def row_of(row: Any) -> Row:
    connection, queue, payload, exception = map(text_of, (row.connection, row.queue, row.payload, row.exception))
    return Row(text_of(row.uuid) or f"row-{row.id}", connection, queue, payload, exception, moment_of(row.failed_at))


def text_of(value: object) -> str:
    """SQLite keeps whatever it is given in any column."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)


def moment_of(value: object) -> float:
    """Unix seconds; 0 for what is no moment."""
    try:
        at = value if isinstance(value, datetime) else datetime.fromisoformat(text_of(value))
        return at.replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def with_driver(url: str) -> tuple[str, dict[str, Any]]:
    """The url with the driver that is installed, where it names none, and what that driver is told of waiting."""
    kind, colon, rest = with_hosts_as_options(url).partition(":")
    found = next((name for name, module in DRIVERS.get(kind, ()) if find_spec(module)), kind)
    options: dict[str, Any] = {"timeout": WAIT} if kind == "sqlite" else {"connect_timeout": WAIT}
    if found.endswith("pymysql"):
        options |= {"read_timeout": WAIT, "write_timeout": WAIT}
    elif "psycopg" in found:
        options["options"] = f"-c statement_timeout={WAIT * 1000}"
    return found + colon + rest, options
