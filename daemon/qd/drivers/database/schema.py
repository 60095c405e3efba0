"""The tables of a database: qd's own, and Laravel's three as its own migrations make them (Laravel 11 to 13).

    qd_names      a name of the keyspace: its kind, size and expiry; the value of a string
    qd_items      the items of a name: fields of a hash, members of a set or sorted set, items of a list
    qd_locks      rows to lock, for servers without locks on names (MySQL, MariaDB)
    qd_schema     the version of these tables
    qd_reserved   the reservations of a table of jobs, which also gets indexes to find the next job

migrations.py creates them. Names, fields and members are bytes; `key_of` makes their keys.
"""

from __future__ import annotations

import hashlib
from typing import Any

import sqlalchemy as sql
from sqlalchemy.dialects import mysql

from qd.drivers.database.sql import reservations_of

VERSION = 1  # of qd's tables; `qd migrate` and the start of `qd work` report another one
LONGEST = 200  # bytes of a name, field or member that is its own key
SECOND = 1_000_000  # of the columns, and of the clock, that count microseconds


def key_of(name: bytes) -> bytes:
    """The key of a name, field or member: itself, or its first 200 bytes and a digest of the whole. At most 232 bytes; keys
    sort like the names if their first 200 bytes differ."""
    return name if len(name) <= LONGEST else name[:LONGEST] + hashlib.blake2b(name, digest_size=32).digest()


KEY = sql.LargeBinary().with_variant(mysql.VARBINARY(240), "mysql", "mariadb")
BYTES = sql.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
BIG = sql.BigInteger().with_variant(sql.Integer(), "sqlite")
ID = BIG.with_variant(mysql.BIGINT(unsigned=True), "mysql", "mariadb")
REAL: sql.types.TypeEngine[float] = sql.Double().with_variant(mysql.DOUBLE(asdecimal=False), "mysql", "mariadb")
LONG = sql.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
MEDIUM = sql.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
UNSIGNED = sql.Integer().with_variant(mysql.INTEGER(unsigned=True), "mysql", "mariadb")
TINY = (
    sql.SmallInteger()
    .with_variant(mysql.TINYINT(unsigned=True), "mysql", "mariadb")
    .with_variant(sql.Integer(), "sqlite")
)
INNODB: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_unicode_ci"}
INNODB |= {name.replace("mysql", "mariadb"): value for name, value in INNODB.items()}

ours = sql.MetaData()

names = sql.Table(
    "qd_names",
    ours,
    sql.Column("name", KEY, primary_key=True),
    sql.Column("whole", BYTES),  # of a long name
    sql.Column("kind", sql.String(8), nullable=False),  # as Redis's TYPE returns it
    sql.Column("size", BIG, nullable=False),  # how many items; 1 of a string
    sql.Column("expires_at", BIG),  # unix microseconds, by the database's clock
    sql.Column("value", BYTES),  # of a string
    sql.Index("qd_names_expires_at", "expires_at"),
    **INNODB,
)

items = sql.Table(
    "qd_items",
    ours,
    sql.Column("name", KEY, primary_key=True),
    sql.Column("item", KEY, primary_key=True),  # key of the field or member; the place in a list
    sql.Column("whole", BYTES),  # of a long field or member
    sql.Column("score", REAL, nullable=False),  # in a sorted set; the place in a list
    sql.Column("value", BYTES),
    sql.Index("qd_items_score", "name", "score", "item"),
    **INNODB,
)

locks = sql.Table("qd_locks", ours, sql.Column("bucket", sql.Integer, primary_key=True, autoincrement=False), **INNODB)

schema = sql.Table(
    "qd_schema",
    ours,
    sql.Column("id", sql.Integer, primary_key=True, autoincrement=False),  # 1: there is one row
    sql.Column("version", sql.Integer, nullable=False),
    **INNODB,
)


def jobs(name: str) -> sql.Table:
    """Laravel's table of jobs, by its name here, with a schema in front if it is in another one."""
    schema, _, bare = name.rpartition(".")
    return sql.Table(
        bare,
        sql.MetaData(schema=schema or None),
        sql.Column("id", ID, primary_key=True, autoincrement=True),
        sql.Column("queue", sql.String(255), nullable=False),
        sql.Column("payload", LONG, nullable=False),
        sql.Column("attempts", TINY, nullable=False),
        sql.Column("reserved_at", UNSIGNED),
        sql.Column("available_at", UNSIGNED, nullable=False),
        sql.Column("created_at", UNSIGNED, nullable=False),
        sql.Index(f"{bare}_queue_index", "queue"),
        sqlite_autoincrement=True,
        **INNODB,
    )


def failed_jobs() -> sql.Table:
    return sql.Table(
        "failed_jobs",
        sql.MetaData(),
        sql.Column("id", ID, primary_key=True, autoincrement=True),
        sql.Column("uuid", sql.String(255), nullable=False),
        sql.Column("connection", sql.Text, nullable=False),
        sql.Column("queue", sql.Text, nullable=False),
        sql.Column("payload", LONG, nullable=False),
        sql.Column("exception", LONG, nullable=False),
        sql.Column("failed_at", sql.TIMESTAMP, nullable=False, server_default=sql.text("CURRENT_TIMESTAMP")),
        sql.Index("failed_jobs_uuid_unique", "uuid", unique=True),
        sqlite_autoincrement=True,
        **INNODB,
    )


def job_batches() -> sql.Table:
    counts = [sql.Column(name, sql.Integer, nullable=False) for name in ("total_jobs", "pending_jobs", "failed_jobs")]
    return sql.Table(
        "job_batches",
        sql.MetaData(),
        sql.Column("id", sql.String(255), primary_key=True),
        sql.Column("name", sql.String(255), nullable=False),
        *counts,
        sql.Column("failed_job_ids", LONG, nullable=False),
        sql.Column("options", MEDIUM),
        sql.Column("cancelled_at", sql.Integer),
        sql.Column("created_at", sql.Integer, nullable=False),
        sql.Column("finished_at", sql.Integer),
        **INNODB,
    )


def exact(length: int) -> sql.types.TypeEngine[str]:
    """Text that every database compares byte by byte."""
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
        sql.Column("attempts", sql.Integer, nullable=False),  # equal to the job's row while the job is ours
        sql.Column("reserved_at", BIG, nullable=False),  # as attempts
        sql.Column("leased_until", BIG, nullable=False),  # unix microseconds
        sql.Column("text_sum", BIG),  # of the text of the job's last checkpoint
        sql.Index(f"{name}_owner", "owner"),
        **INNODB,
    )


def indexes(kind: str, table: str) -> list[sql.Index]:
    """To find the next job of a queue without reading reserved or delayed ones, and to find the reserved ones."""
    c, name = jobs(table).c, table.rpartition(".")[2]
    if kind == "mysql":
        return [sql.Index(f"{name}_qd_ready", c.queue, c.reserved_at, c.available_at, c.id)]
    waits, held = sql.text("reserved_at IS NULL"), sql.text("reserved_at IS NOT NULL")
    return [
        sql.Index(f"{name}_qd_ready", c.queue, c.available_at, c.id, postgresql_where=waits, sqlite_where=waits),
        sql.Index(f"{name}_qd_held", c.queue, c.reserved_at, postgresql_where=held, sqlite_where=held),
    ]
