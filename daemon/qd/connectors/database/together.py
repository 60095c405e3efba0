"""Several statements in one round trip, as PyMySQL can send them, and what the server says to each. link.py uses it.

The first one that fails ends them: those behind it are not run.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sql
from sqlalchemy.exc import DBAPIError

Statement = tuple[sql.TextClause, Mapping[str, Any]]
SEVERAL, FOUND_ROWS = 1 << 16, 1 << 1  # flags of a connection; the second is what SQLAlchemy counts rows by


class Said(NamedTuple):
    """rows: with the names of their columns. changed: how many it has."""

    rows: list[Any]
    changed: int


def together(connection: sql.Connection, asked: Sequence[Statement]) -> list[Said]:
    """Raises DBAPIError."""
    cursor: Any = connection.connection.cursor()
    try:
        cursor.execute(";".join(written(cursor, connection.dialect, *each) for each in asked))
        found = list(heard(cursor))
    except UnicodeEncodeError:
        raise
    except Exception as error:
        raise DBAPIError(None, None, error) from None
    cursor.close()
    return found


def written(cursor: Any, dialect: sql.Dialect, statement: sql.TextClause, values: Mapping[str, Any]) -> str:
    said: str = cursor.mogrify(compiled(statement, dialect), dict(values))
    return said


@cache
def compiled(statement: sql.TextClause, dialect: sql.Dialect) -> str:
    """As the driver takes it."""
    return str(statement.compile(dialect=dialect))


def heard(cursor: Any) -> Iterator[Said]:
    there = True
    while there:
        rows = cursor.fetchall() if cursor.description else ()
        named = row_of(tuple(each[0] for each in cursor.description or ()))
        yield Said([named(*row) for row in rows], cursor.rowcount)
        there = cursor.nextset()


@cache
def row_of(names: tuple[str, ...]) -> Any:
    return namedtuple("Row", names, rename=True)
