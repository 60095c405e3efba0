"""`qd migrate`: creates the tables; several may do so at once, and again. The version of the tables, and the rights on them,
which are checked before the first worker and by `qd doctor`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import sqlalchemy as sql
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

from qd.drivers.database import schema
from qd.drivers.database.connection import DatabaseConnection
from qd.drivers.database.dialects import BUCKETS, MissingTable, NoRight
from qd.errors import ConfigError, ServerRefused

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings


PATIENCE = 60.0  # seconds that one statement may take
LOCK = b"qd migrate"  # locked meanwhile, in PostgreSQL
NONE = sql.false()


def migrated(at: ConnectionSettings, patience: float, *, dry: bool) -> list[str]:
    """`migrate` for a connection of the settings."""
    connection = DatabaseConnection(at.url or "", title="qd: migrate", connect_timeout=patience, timeout=PATIENCE)
    try:
        return migrate(connection, at.table, dry=dry)
    finally:
        connection.close()


def migrate(connection: DatabaseConnection, jobs_table: str, *, dry: bool = False) -> list[str]:
    """What was created, or (dry) the statements for it. Raises ConfigError if a newer qd has created the tables."""
    check_version(version_of(connection))
    if dry:
        return [f"{text};" for text in missing(connection, jobs_table).values()]
    with connection.transaction():  # in MySQL each statement on tables commits
        if connection.kind == "postgresql":
            connection.lock([LOCK])
        found = missing(connection, jobs_table)
        for name, text in found.items():
            create(connection, name, text)
        fill(connection)
    return [f"made {name}" for name in found]


def missing(connection: DatabaseConnection, jobs_table: str) -> dict[str, str]:
    """What is missing ("table qd_names") -> the statement that creates it. An existing table of Laravel keeps its own
    indexes; only qd's are added to it."""
    ours = [*schema.ours.sorted_tables, schema.reservations(jobs_table)]
    theirs = [schema.jobs(jobs_table), schema.failed_jobs(), schema.job_batches()]
    lacks, found = {table.fullname for table in connection.lacks([*ours, *theirs])}, dict[str, str]()
    for table in [*ours, *theirs]:
        if table.fullname in lacks:
            found[f"table {table.fullname}"] = written(connection, CreateTable(table, if_not_exists=True))
        if table.fullname in lacks or table in ours:
            found |= lacking(connection, table, table.indexes, lacks)
    return found | lacking(connection, theirs[0], schema.indexes(connection.kind, jobs_table), lacks)


def lacking(
    connection: DatabaseConnection, table: sql.Table, wanted: Iterable[sql.Index], lacks: set[str]
) -> dict[str, str]:
    """The missing indexes of a table. lacks: the missing tables."""
    has = set[str]() if table.fullname in lacks else connection.indexes(table)
    return {f"index {index.name}": written(connection, CreateIndex(index)) for index in wanted if index.name not in has}


def written(connection: DatabaseConnection, made_of: ExecutableDDLElement) -> str:
    lines = str(made_of.compile(dialect=connection.dialect)).strip().splitlines()
    return " ".join(line.strip() for line in lines)


def create(connection: DatabaseConnection, name: str, text: str) -> None:
    """Another process may create it at the same moment."""
    try:
        connection.query(text).close()
    except ServerRefused as error:
        if connection.kind != "mysql" or not any(code in str(error) for code in ("(1050,", "(1061,")):
            raise ServerRefused(f"cannot create {name}: {error}") from None


def fill(connection: DatabaseConnection) -> None:
    """Insert the rows that must exist. Another process may do so at the same moment."""
    have = set(connection.execute(sql.select(schema.locks.c.bucket)).scalars())
    new = [{"bucket": number} for number in range(BUCKETS) if number not in have]
    if new and connection.kind == "mysql":
        connection.execute(schema.locks.insert().prefix_with("IGNORE"), new)
    if connection.execute(sql.select(schema.schema.c.version)).first() is None:
        first = schema.schema.insert().prefix_with("IGNORE", dialect="mysql").prefix_with("IGNORE", dialect="mariadb")
        connection.execute(first, [{"id": 1, "version": schema.VERSION}])


def version_of(connection: DatabaseConnection) -> int | None:
    """The version of qd's tables, or None if there are none."""
    try:
        found = connection.execute(sql.select(schema.schema.c.version)).scalar()
    except MissingTable:
        return None
    return None if found is None else int(found)


def check_version(found: int | None) -> None:
    """Raises ConfigError if a newer qd has created the tables."""
    if found is not None and found > schema.VERSION:
        raise ConfigError(
            f"the tables of qd have version {found}, this qd supports {schema.VERSION}: update qd on this host"
        )


def check(connection: DatabaseConnection, jobs_table: str) -> None:
    """Raises ConfigError, with `qd migrate` as the fix, if a table is missing or of an older qd."""
    found = version_of(connection)
    check_version(found)
    needed = (*schema.ours.sorted_tables, schema.jobs(jobs_table), schema.reservations(jobs_table))
    lacks = [table.fullname for table in connection.lacks(needed)]
    if lacks:
        seen = "" if found is None else ", or none that its user may see"
        raise ConfigError(f"the database at {connection.place} has no table {', '.join(lacks)}{seen}: run `qd migrate`")
    if found is None or found < schema.VERSION:
        raise ConfigError(f"the tables of qd at {connection.place} are of version {found or 0}: run `qd migrate`")


def check_rights(connection: DatabaseConnection, jobs_table: str) -> None:
    """Raises NoRight for the first missing right, NotWritable for a file of another user. The tables must exist; nothing is
    changed."""
    jobs = schema.jobs(jobs_table)
    with connection.transaction():
        for table in (schema.names, schema.items, jobs, schema.reservations(jobs_table)):
            for statement in touching(table):
                connection.execute(statement).close()
        if connection.kind == "mysql":
            connection.execute(sql.select(schema.locks.c.bucket).where(NONE).with_for_update()).close()
    if connection.kind == "postgresql":
        check_numbers(connection, jobs)


def check_writes(connection: DatabaseConnection) -> None:
    """Raises the server's error if it accepts no writes now (a standby). Nothing is changed."""
    connection.execute(sql.delete(schema.names).where(NONE)).close()


def touching(table: sql.Table) -> Iterator[sql.Executable]:
    """Every kind of write to its rows, applied to no row."""
    *_, column = table.columns
    yield sql.insert(table).from_select([*table.columns.keys()], sql.select(table).where(NONE))
    yield sql.update(table).values({column.name: column}).where(NONE)
    yield sql.delete(table).where(NONE)


def check_numbers(connection: DatabaseConnection, jobs: sql.Table) -> None:
    """An INSERT reads the next id from a sequence, which has rights of its own."""
    name = connection.dialect.identifier_preparer.format_table(jobs)
    found = connection.execute(sql.select(sql.func.pg_get_serial_sequence(name, "id"))).scalar()
    if found and not connection.execute(sql.select(sql.func.has_sequence_privilege(found, "USAGE"))).scalar():
        raise NoRight(
            f"the user of the database at {connection.place} may not use the sequence {found}: GRANT USAGE ON it"
        )
