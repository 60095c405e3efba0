"""Whether the user of a database may do on its tables what qd does there: asked before any worker, and by `qd doctor`."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sql

from qd.connectors.database import jobtables, tables
from qd.connectors.database.link import Link
from qd.connectors.database.servers import NoRight

NONE = sql.false()


def check(link: Link, jobs_table: str) -> None:
    """Raises NoRight with the first thing that it may not do, NotWritable where a file is not its own. Nothing is changed;
    the tables are there."""
    jobs = tables.jobs(jobs_table)
    with link.transaction():
        for table in (tables.names, tables.items, jobs, jobtables.reservations(jobs_table)):
            for statement in touching(table):
                link.execute(statement).close()
        if link.kind == "mysql":
            link.execute(sql.select(tables.locks.c.bucket).where(NONE).with_for_update()).close()
    if link.kind == "postgresql":
        check_numbers(link, jobs)


def check_writes(link: Link) -> None:
    """Raises what the server answers where it takes no writes now (a standby). Nothing is changed."""
    link.execute(sql.delete(tables.names).where(NONE)).close()


def touching(table: sql.Table) -> Iterator[sql.Executable]:
    """Everything that is done to its rows, done to none of them."""
    *_, column = table.columns
    yield sql.insert(table).from_select([*table.columns.keys()], sql.select(table).where(NONE))
    yield sql.update(table).values({column.name: column}).where(NONE)
    yield sql.delete(table).where(NONE)


def check_numbers(link: Link, jobs: sql.Table) -> None:
    """An INSERT takes the next number of a job from a sequence, which has rights of its own."""
    name = link.dialect.identifier_preparer.format_table(jobs)
    found = link.execute(sql.select(sql.func.pg_get_serial_sequence(name, "id"))).scalar()
    if found and not link.execute(sql.select(sql.func.has_sequence_privilege(found, "USAGE"))).scalar():
        raise NoRight(f"the user of the database at {link.place} may not use the sequence {found}: GRANT USAGE ON it")
