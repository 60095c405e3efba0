"""What qd has beside Laravel's table of jobs: the table of its own reservations, and indexes to find the next job by."""

from __future__ import annotations

import sqlalchemy as sql
from sqlalchemy.dialects import mysql

from qd.connectors.database.jobsql import reservations_of
from qd.connectors.database.tables import BIG, ID, INNODB, jobs


def exact(length: int) -> sql.types.TypeEngine[str]:
    """Text that is compared byte by byte everywhere."""
    own = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    return sql.String(length).with_variant(own, "mysql", "mariadb")


def reservations(table: str) -> sql.Table:
    schema, _, name = reservations_of(table).rpartition(".")
    return sql.Table(
        name,
        sql.MetaData(schema=schema or None),
        sql.Column("job_id", ID, primary_key=True, autoincrement=False),
        sql.Column("queue", sql.String(255), nullable=False),
        sql.Column("owner", exact(100), nullable=False),  # <master token>/<slot>
        sql.Column("mark", exact(150), nullable=False),  # <token>.<slot>.<turn>
        sql.Column(
            "attempts", sql.Integer, nullable=False
        ),  # and reserved_at: as the job's row has them, while it is ours
        sql.Column("reserved_at", BIG, nullable=False),
        sql.Column("leased_until", BIG, nullable=False),  # unix microseconds
        sql.Column("text_sum", BIG),  # of what the job's row holds, once it has saved something
        sql.Index(f"{name}_owner", "owner"),
        **INNODB,
    )


def indexes(kind: str, table: str) -> list[sql.Index]:
    """The next job of a queue without a look at those that are reserved or due later, and those in hand."""
    c, name = jobs(table).c, table.rpartition(".")[2]
    if kind == "mysql":
        return [sql.Index(f"{name}_qd_ready", c.queue, c.reserved_at, c.available_at, c.id)]
    waits, held = sql.text("reserved_at IS NULL"), sql.text("reserved_at IS NOT NULL")
    return [
        sql.Index(f"{name}_qd_ready", c.queue, c.available_at, c.id, postgresql_where=waits, sqlite_where=waits),
        sql.Index(f"{name}_qd_held", c.queue, c.reserved_at, postgresql_where=held, sqlite_where=held),
    ]
