"""The tables of a database: qd's own, and Laravel's `jobs` as its own migration makes it (Laravel 11 to 13).

    qd_names      a name of the keyspace: its kind, size and expiry; the value of a string
    qd_items      the items of a name: fields of a hash, members of a set or sorted set, items of a list
    qd_locks      rows to lock, for servers without locks on names (MySQL, MariaDB)
    qd_schema     the version of these tables
    qd_reserved   the reservations of a table of jobs, which also gets indexes to find the next job

Names, fields and members are bytes; `key_of` makes their keys.

`qd migrate` creates the tables; several may do so at once, and again. The version of the tables, and the rights on them, are
checked before the first worker and by `qd doctor`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import sqlalchemy as sql
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

from qd.drivers.database.connection import DatabaseConnection, again
from qd.drivers.database.dialects import BUCKETS, ForeignTable, MissingTable, NoRight
from qd.drivers.database.sql import reservations_of
from qd.errors import ConfigError, ServerRefused

if TYPE_CHECKING:
    from qd.config.settings import ConnectionSettings

VERSION = 1  # of qd's tables; `qd migrate` and the start of `qd work` report another one
LONGEST = 200  # bytes of a name, field or member that is its own key
PROBE = b"qd:probe:"  # a name that only its own transaction sees
PAGES = 16_000  # bytes that do not fit into a page of PostgreSQL
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


# -- qd migrate

PATIENCE = 60.0  # seconds that one statement may take
LOCK = b"qd migrate"  # locked meanwhile, in PostgreSQL
NONE = sql.false()


def emptied(at: ConnectionSettings, patience: float) -> None:
    """Delete all jobs and all else that qd stores in this database, for tests. Without tables there is nothing to do."""
    connection = DatabaseConnection(at.url or "", title="qd: test", connect_timeout=patience, timeout=PATIENCE)

    def empty() -> None:
        with connection.transaction():
            for table in (jobs(at.table), reservations(at.table), names, items):
                connection.execute(sql.delete(table)).close()

    try:
        again(connection, empty)
    except MissingTable:
        pass
    finally:
        connection.close()


def migrated(at: ConnectionSettings, patience: float, *, dry: bool = False) -> list[str]:
    """`migrate` for a connection of the settings."""
    connection = DatabaseConnection(at.url or "", title="qd: migrate", connect_timeout=patience, timeout=PATIENCE)
    try:
        return migrate(connection, at.table, dry=dry)
    finally:
        connection.close()


def migrate(connection: DatabaseConnection, jobs_table: str, *, dry: bool = False) -> list[str]:
    """What was created, or (dry) the statements for it. Raises ConfigError if a newer qd has created the tables."""
    check_version(version_of(connection))
    check_columns(connection, jobs_table)
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
    own, queue = [*ours.sorted_tables, reservations(jobs_table)], jobs(jobs_table)
    tables = [*own, queue]
    lacks, found = connection.lacks(tables), dict[str, str]()
    wanted = [(table, [*table.indexes] if table in lacks or table in own else []) for table in tables]
    for table, needed in [*wanted, (queue, indexes(connection.kind, jobs_table))]:
        if table in lacks:
            found[f"table {table.fullname}"] = written(connection, CreateTable(table, if_not_exists=True))
        has = connection.indexes(table) if needed and table not in lacks else ()
        found |= {
            f"index {each.name}": written(connection, CreateIndex(each)) for each in needed if each.name not in has
        }
    return found


def written(connection: DatabaseConnection, made_of: ExecutableDDLElement) -> str:
    lines = str(made_of.compile(dialect=connection.dialect)).strip().splitlines()
    return " ".join(line.strip() for line in lines)


def create(connection: DatabaseConnection, name: str, text: str) -> None:
    """Another process may create it at the same moment."""
    try:
        connection.query(text).close()
    except ForeignTable:
        raise
    except ServerRefused as error:
        if connection.kind != "mysql" or not any(code in str(error) for code in ("(1050,", "(1061,")):
            raise ServerRefused(f"cannot create {name}: {error}") from None


def fill(connection: DatabaseConnection) -> None:
    """Insert the rows that must exist. Another process may do so at the same moment."""
    have = set(connection.execute(sql.select(locks.c.bucket)).scalars())
    new = [{"bucket": number} for number in range(BUCKETS) if number not in have]
    if new and connection.kind == "mysql":
        connection.execute(locks.insert().prefix_with("IGNORE"), new)
    if connection.execute(sql.select(schema.c.version)).first() is None:
        first = schema.insert().prefix_with("IGNORE", dialect="mysql").prefix_with("IGNORE", dialect="mariadb")
        connection.execute(first, [{"id": 1, "version": VERSION}])


def version_of(connection: DatabaseConnection) -> int | None:
    """The version of qd's tables, or None if there are none."""
    try:
        found = connection.execute(sql.select(schema.c.version)).scalar()
    except MissingTable:
        return None
    return None if found is None else int(found)


def check_version(found: int | None) -> None:
    """Raises ConfigError if a newer qd has created the tables."""
    if found is not None and found > VERSION:
        raise ConfigError(f"the tables of qd have version {found}, this qd supports {VERSION}: update qd on this host")


def check(connection: DatabaseConnection, jobs_table: str) -> None:
    """Raises ConfigError, with `qd migrate` as the fix, if a table is missing or of an older qd; ForeignTable."""
    found = version_of(connection)
    check_version(found)
    check_columns(connection, jobs_table)
    needed = (*ours.sorted_tables, jobs(jobs_table), reservations(jobs_table))
    lacks = [table.fullname for table in connection.lacks(needed)]
    if lacks:
        seen = "" if found is None else ", or none that its user may see"
        raise ConfigError(f"the database at {connection.place} has no table {', '.join(lacks)}{seen}: run `qd migrate`")
    if found is None or found < VERSION:
        raise ConfigError(f"the tables of qd at {connection.place} are of version {found or 0}: run `qd migrate`")


def check_columns(connection: DatabaseConnection, jobs_table: str) -> None:
    """Raises ForeignTable if the table has no columns of Laravel's jobs."""
    with suppress(MissingTable, NoRight):  # `check` reports the first, check_rights the other
        connection.execute(sql.select(jobs(jobs_table)).where(NONE)).close()


def check_rights(connection: DatabaseConnection, jobs_table: str) -> None:
    """Raises NoRight for the first missing right, NotWritable for a file of another user. The tables must exist; nothing is
    changed."""
    queue = jobs(jobs_table)
    with connection.transaction():
        for table in (names, items, queue, reservations(jobs_table)):
            for statement in touching(table):
                connection.execute(statement).close()
        if connection.kind == "mysql":
            connection.execute(sql.select(locks.c.bucket).where(NONE).with_for_update()).close()
    if connection.kind == "postgresql":  # an INSERT reads the next id from a sequence, which has rights of its own
        named = connection.dialect.identifier_preparer.format_table(queue)
        found = connection.execute(sql.select(sql.func.pg_get_serial_sequence(named, "id"))).scalar()
        if found and not connection.execute(sql.select(sql.func.has_sequence_privilege(found, "USAGE"))).scalar():
            way = "GRANT USAGE ON it"
            raise NoRight(f"the user of the database at {connection.place} may not use the sequence {found}: {way}")


def check_writes(connection: DatabaseConnection) -> None:
    """Raises the server's error if it accepts no writes now (a standby, a full disk). Nothing is changed: a row that needs
    pages of its own is inserted and deleted in one transaction."""
    row = {"name": PROBE + os.urandom(8), "kind": "string", "size": 1, "value": os.urandom(PAGES)}
    with connection.transaction():
        connection.execute(names.insert(), row).close()
        connection.execute(sql.delete(names).where(names.c.name == row["name"])).close()


def touching(table: sql.Table) -> Iterator[sql.Executable]:
    """Every kind of write to its rows, applied to no row."""
    *_, column = table.columns
    yield sql.insert(table).from_select([*table.columns.keys()], sql.select(table).where(NONE))
    yield sql.update(table).values({column.name: column}).where(NONE)
    yield sql.delete(table).where(NONE)
