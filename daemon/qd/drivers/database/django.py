"""Django's open transaction as a connection of SQLAlchemy, for joined.py. Statements run on the driver's connection that is
inside `django.db.connection`. Only Django begins, commits and closes: the dialect here does nothing at these points."""

from __future__ import annotations

from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sql
from sqlalchemy.pool import StaticPool

from qd.errors import ConfigError

# The package of the driver's connection -> the dialect.
DIALECTS = {"psycopg": "postgresql+psycopg", "psycopg2": "postgresql+psycopg2", "sqlite3": "sqlite+pysqlite"}
DIALECTS |= {"pymysql": "mysql+pymysql", "MySQLdb": "mysql+mysqldb"}
ENDS = ("do_begin", "do_commit", "do_rollback", "do_close", "do_terminate")


class DjangoTransaction:
    """The transaction that is open on one of `django.db.connections`; the next one, too."""

    def __init__(self, django: Any) -> None:
        self.django = django
        self._connection: sql.Connection | None = None
        self._raw: Any = None

    def connection(self) -> sql.Connection:
        """Raises ConfigError without a transaction, and what Django raises after an error in an atomic() block."""
        if not self.django.in_atomic_block and self.django.get_autocommit():
            where = f"Django's connection '{self.django.alias}'"
            raise ConfigError(f"no transaction is open on {where}: write `with transaction.atomic():` around it")
        self.django.validate_no_broken_transaction()
        raw = self.django.connection
        if self._connection is None or self._connection.invalidated or raw is not self._raw:
            kind: Any = type(raw)
            dialect = dialect_of(kind, self.django.alias)
            pool = StaticPool(lambda: raw, dialect=dialect, reset_on_return=None)
            url = sql.URL.create(f"{dialect.name}+{dialect.driver}")
            self._raw, self._connection = raw, sql.Engine(pool, dialect, url).connect()
            if dialect.server_version_info is None:
                dialect.initialize(self._connection)  # it queries the server's version
        return self._connection


_known: WeakKeyDictionary[Any, DjangoTransaction] = WeakKeyDictionary()


def transaction_of(django: Any) -> DjangoTransaction:
    """django: `django.db.connection`, or one of `django.db.connections`."""
    proxied = vars(django).get("_connections")
    wrapper = proxied[django.alias] if proxied is not None else django
    return _known.get(wrapper) or _known.setdefault(wrapper, DjangoTransaction(wrapper))


@cache
def dialect_of(kind: type, alias: str) -> sql.Dialect:
    """kind: of the driver's connection. Raises ConfigError."""
    packages = [each.__module__.partition(".")[0] for each in kind.__mro__]
    if (name := next((DIALECTS[each] for each in packages if each in DIALECTS), None)) is None:
        raise ConfigError(f"qd cannot join transactions of the driver '{packages[0]}' (known: {', '.join(DIALECTS)})")
    made: Any = sql.URL.create(name).get_dialect()
    options = {"use_native_hstore": False} if "postgresql" in name else {}  # hstore would change the connection
    dialect: sql.Dialect = made(dbapi=made.import_dbapi(), **options)
    for end in ENDS:
        setattr(dialect, end, lambda *_: None)
    return dialect
