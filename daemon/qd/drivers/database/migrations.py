"""Makes the tables, and says what it did. `qd migrate` calls it; two at once do no harm, and once more does nothing.

Whether the user of a database may do on its tables what qd does there: asked before any worker, and by `qd doctor`.
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
LOCK = b"qd migrate"  # the name that is locked meanwhile, where there are locks on names


def migrated(at: ConnectionSettings, patience: float, *, dry: bool) -> list[str]:
    """As `migrate`, of a connection. Making an index of a large table takes its time."""
    link = DatabaseConnection(at.url or "", title="qd: migrate", connect_timeout=patience, timeout=PATIENCE)
    try:
        return migrate(link, at.table, dry=dry)
    finally:
        link.close()


def migrate(link: DatabaseConnection, jobs_table: str, *, dry: bool = False) -> list[str]:
    """What was done, or (dry) the statements that would do it. Raises ConfigError when a newer qd has made the tables."""
    check_version(version_of(link))
    if dry:
        return [f"{text};" for text in missing(link, jobs_table).values()]
    with link.transaction():  # MySQL has none for tables: there it is one statement after the other
        if link.kind == "postgresql":
            link.lock([LOCK])
        found = missing(link, jobs_table)
        for name, text in found.items():
            made(link, name, text)
        filled(link)
    return [f"made {name}" for name in found]


def missing(link: DatabaseConnection, jobs_table: str) -> dict[str, str]:
    """What is not there ("table qd_names") -> the statement that makes it. Of Laravel's tables only whole ones: it may
    have indexes of its own there."""
    ours, theirs = [*schema.ours.sorted_tables, schema.reservations(jobs_table)], schema.laravels(jobs_table)
    lacks, found = {table.fullname for table in link.lacks([*ours, *theirs])}, dict[str, str]()
    for table in [*ours, *theirs]:
        if table.fullname in lacks:
            found[f"table {table.fullname}"] = written(link, CreateTable(table, if_not_exists=True))
        if table.fullname in lacks or table in ours:
            found |= lacking(link, table, table.indexes, lacks)
    jobs = theirs[0]
    return found | lacking(link, jobs, schema.indexes(link.kind, jobs_table), lacks)


def lacking(link: DatabaseConnection, table: sql.Table, wanted: Iterable[sql.Index], lacks: set[str]) -> dict[str, str]:
    """The indexes of a table that are not there. lacks: the tables that are not."""
    has = set[str]() if table.fullname in lacks else link.indexes(table)
    return {f"index {index.name}": written(link, CreateIndex(index)) for index in wanted if index.name not in has}


def written(link: DatabaseConnection, made_of: ExecutableDDLElement) -> str:
    lines = str(made_of.compile(dialect=link.dialect)).strip().splitlines()
    return " ".join(line.strip() for line in lines)


def made(link: DatabaseConnection, name: str, text: str) -> None:
    """Another may make it at the same moment."""
    try:
        link.say(text).close()
    except ServerRefused as error:
        if link.kind != "mysql" or not any(code in str(error) for code in ("(1050,", "(1061,")):
            raise ServerRefused(f"{name} cannot be made: {error}") from None


def filled(link: DatabaseConnection) -> None:
    """The rows that are always there. Another may write them at the same moment."""
    have = set(link.execute(sql.select(schema.locks.c.bucket)).scalars())
    new = [{"bucket": number} for number in range(BUCKETS) if number not in have]
    if new and link.kind == "mysql":
        link.execute(schema.locks.insert().prefix_with("IGNORE"), new)
    if link.execute(sql.select(schema.schema.c.version)).first() is None:
        first = schema.schema.insert().prefix_with("IGNORE", dialect="mysql").prefix_with("IGNORE", dialect="mariadb")
        link.execute(first, [{"id": 1, "version": schema.VERSION}])


def version_of(link: DatabaseConnection) -> int | None:
    """Of qd's tables. None: there are none."""
    try:
        found = link.execute(sql.select(schema.schema.c.version)).scalar()
    except MissingTable:
        return None
    return None if found is None else int(found)


def check_version(found: int | None) -> None:
    """Raises ConfigError when they are of another qd."""
    if found is not None and found > schema.VERSION:
        raise ConfigError(
            f"the tables of qd are of version {found}, this qd knows {schema.VERSION}: update qd here, too"
        )


def check(link: DatabaseConnection, jobs_table: str) -> None:
    """Raises ConfigError naming `qd migrate` where a table is missing or of an older qd."""
    found = version_of(link)
    check_version(found)
    needed = (*schema.ours.sorted_tables, schema.jobs(jobs_table), schema.reservations(jobs_table))
    lacks = [table.fullname for table in link.lacks(needed)]
    if lacks:
        seen = "" if found is None else ", or none that its user may see"
        raise ConfigError(f"the database at {link.place} has no table {', '.join(lacks)}{seen}: run `qd migrate`")
    if found is None or found < schema.VERSION:
        raise ConfigError(f"the tables of qd at {link.place} are of version {found or 0}: run `qd migrate`")


NONE = sql.false()


def check_rights(link: DatabaseConnection, jobs_table: str) -> None:
    """Raises NoRight with the first thing that it may not do, NotWritable where a file is not its own. Nothing is changed;
    the tables are there."""
    jobs = schema.jobs(jobs_table)
    with link.transaction():
        for table in (schema.names, schema.items, jobs, schema.reservations(jobs_table)):
            for statement in touching(table):
                link.execute(statement).close()
        if link.kind == "mysql":
            link.execute(sql.select(schema.locks.c.bucket).where(NONE).with_for_update()).close()
    if link.kind == "postgresql":
        check_numbers(link, jobs)


def check_writes(link: DatabaseConnection) -> None:
    """Raises what the server answers where it takes no writes now (a standby). Nothing is changed."""
    link.execute(sql.delete(schema.names).where(NONE)).close()


def touching(table: sql.Table) -> Iterator[sql.Executable]:
    """Everything that is done to its rows, done to none of them."""
    *_, column = table.columns
    yield sql.insert(table).from_select([*table.columns.keys()], sql.select(table).where(NONE))
    yield sql.update(table).values({column.name: column}).where(NONE)
    yield sql.delete(table).where(NONE)


def check_numbers(link: DatabaseConnection, jobs: sql.Table) -> None:
    """An INSERT takes the next number of a job from a sequence, which has rights of its own."""
    name = link.dialect.identifier_preparer.format_table(jobs)
    found = link.execute(sql.select(sql.func.pg_get_serial_sequence(name, "id"))).scalar()
    if found and not link.execute(sql.select(sql.func.has_sequence_privilege(found, "USAGE"))).scalar():
        raise NoRight(f"the user of the database at {link.place} may not use the sequence {found}: GRANT USAGE ON it")
