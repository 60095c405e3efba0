"""Django's open transaction as a connection of SQLAlchemy, for joined.py.

Statements run on the driver's connection that is inside `django.db.connection`. Only Django begins, commits, rolls back and
closes: the dialect here does nothing at these points.
"""

from __future__ import annotations

from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sql
from sqlalchemy.pool import StaticPool

from qd.drivers.base import Connector
from qd.errors import ConfigError

DIALECTS = {
    "psycopg": "postgresql+psycopg",
    "psycopg2": "postgresql+psycopg2",
    "pymysql": "mysql+pymysql",
    "MySQLdb": "mysql+mysqldb",
    "sqlite3": "sqlite+pysqlite",
}
"""The package of the driver's connection -> the dialect."""
ENDS = ("do_begin", "do_commit", "do_rollback", "do_close", "do_terminate")


class DjangoTransaction:
    """The open transaction of one of `django.db.connections`, also after the next one was begun there."""

    def __init__(self, django: Any) -> None:
        self.django = django
        self.queues: dict[int, Connector] = {}  # those inside it, by the id of the queue outside
        self._engine: sql.Engine | None = None
        self._connection: sql.Connection | None = None
        self._raw: Any = None

    def connection(self) -> sql.Connection:
        """Raises ConfigError without a transaction, and what Django raises after an error in an atomic() block."""
        if not self.django.in_atomic_block and self.django.get_autocommit():
            raise ConfigError(
                f"no transaction is open on Django's connection '{self.django.alias}': write `with transaction.atomic():`"
                " around app.transaction()"
            )
        self.django.validate_no_broken_transaction()
        raw = self.django.connection
        if self._connection is None or self._connection.invalidated or raw is not self._raw:
            self._raw, dialect = raw, dialect_of(driver_of(raw), self.django.alias)
            pool = StaticPool(lambda: raw, dialect=dialect, reset_on_return=None)
            self._engine = sql.Engine(pool, dialect, sql.make_url(f"{DIALECTS[driver_of(raw)]}://"))
            self._connection = self._engine.connect()
            if dialect.server_version_info is None:
                dialect.initialize(self._connection)  # it queries the server's version
        return self._connection

    def broken(self) -> None:
        """A statement has failed: Django rolls back its innermost atomic() block, also if the error is caught inside it."""
        if self.django.in_atomic_block:
            self.django.needs_rollback = True


_known: WeakKeyDictionary[Any, DjangoTransaction] = WeakKeyDictionary()


def transaction_of(django: Any) -> DjangoTransaction:
    """django: `django.db.connection`, or one of `django.db.connections`."""
    proxied = vars(django).get("_connections")
    wrapper = proxied[django.alias] if proxied is not None else django
    if wrapper not in _known:
        _known[wrapper] = DjangoTransaction(wrapper)
    return _known[wrapper]


def driver_of(raw: Any) -> str:
    """A key of DIALECTS. Raises ConfigError."""
    packages = [kind.__module__.partition(".")[0] for kind in type(raw).__mro__]
    if (found := next((package for package in packages if package in DIALECTS), None)) is None:
        raise ConfigError(f"qd cannot join transactions of the driver '{packages[0]}' (known: {', '.join(DIALECTS)})")
    return found


@cache
def dialect_of(driver: str, alias: str) -> sql.Dialect:
    kind: Any = sql.make_url(f"{DIALECTS[driver]}://").get_dialect()
    options = {"use_native_hstore": False} if DIALECTS[driver].startswith("postgresql") else {}  # it registers types
    dialect: sql.Dialect = kind(dbapi=kind.import_dbapi(), **options)
    for end in ENDS:
        setattr(dialect, end, lambda *_: None)
    return dialect
