"""A database: are the tables there, does it keep what it was told, does it take a large job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from qd.cli.checks import server
from qd.cli.checks.finding import Finding, fail, ok, warn
from qd.errors import ConfigError, ConnectionLost, NeedsMending
from qd.process.exits import Exit
from qd.units import size_text

if TYPE_CHECKING:
    from qd.config import ConnectionSettings
    from qd.connectors.database.keyspace import DatabaseSpace
    from qd.connectors.database.link import Link

# What workers need, of the kinds of server that have users; docs/database.md has the statements.
GRANTS = {
    "postgresql": "GRANT SELECT ON qd_schema; GRANT SELECT, INSERT, UPDATE, DELETE ON {table}, qd_reserved, qd_names, "
    "qd_items; GRANT USAGE ON SEQUENCE {table}_id_seq",
    "mysql": "GRANT SELECT ON qd_schema; GRANT SELECT, INSERT, UPDATE, DELETE ON {table}, on qd_reserved, on qd_names "
    "and on qd_items; GRANT SELECT, UPDATE ON qd_locks",
}
LARGE = 16 << 20  # bytes that one statement should take: a failed job goes with its payload and its traceback


def tables(space: DatabaseSpace, at: ConnectionSettings) -> Iterator[Finding]:
    """Nothing where it does not answer: that is told by another. A fail: ask it nothing more."""
    from qd.connectors.database.migrate import check  # loaded with the connection

    try:
        check(space.link, at.table)
    except ConfigError as error:
        yield fail(f"{at.name}.tables", error, "qd migrate", Exit.CONFIG)
    except ConnectionLost:
        return
    else:
        yield ok(f"{at.name}.tables", f"qd's and '{at.table}' are there")
        if space.link.kind != "sqlite":
            yield rights(space.link, at)


def rights(link: Link, at: ConnectionSettings) -> Finding:
    from qd.connectors.database.rights import check

    try:
        check(link, at.table)
    except NeedsMending as error:
        return fail(f"{at.name}.rights", error, GRANTS[link.kind].format(table=at.table), Exit.CONFIG)
    return ok(f"{at.name}.rights", "its user may do all that workers do")


def check_server(space: DatabaseSpace, where: str) -> Iterator[Finding]:
    yield server.latency(space, where)
    if space.link.kind != "sqlite":  # its clock is this one
        yield server.skew(space, where)
    yield KINDS[space.link.kind](space.link, f"{where}.persistence")
    if space.link.kind == "mysql":
        yield packet(space.link, f"{where}.packet")


def postgres(link: Link, what: str) -> Finding:
    for name in ("fsync", "synchronous_commit"):
        if said(link, f"SHOW {name}") == "off":
            return warn(
                what, f"{name} is off: a crash of its host loses the last jobs", f"ALTER SYSTEM SET {name} = on"
            )
    return ok(what, "each commit is on disk")


def mysql(link: Link, what: str) -> Finding:
    found = said(link, "SELECT @@innodb_flush_log_at_trx_commit")
    if found != "1":
        way = "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and the same in its configuration"
        return warn(what, f"innodb_flush_log_at_trx_commit is {found}: a crash of its host loses a second of jobs", way)
    return ok(what, "each commit is on disk")


def sqlite(link: Link, what: str) -> Finding:
    found = said(link, "PRAGMA journal_mode")
    if found != "wal":
        way = "keep the file on a disk of this host: on a network's the journal in WAL cannot be had"
        return warn(what, f"its journal is '{found}': who reads and who writes wait for each other", way)
    return ok(what, "a journal in WAL")


def packet(link: Link, what: str) -> Finding:
    most = int(said(link, "SELECT @@max_allowed_packet"))
    if most < LARGE:
        way = f"SET GLOBAL max_allowed_packet = {LARGE}, and the same in its configuration"
        return warn(what, f"max_allowed_packet is {size_text(most)}: a larger job is refused, or cannot be buried", way)
    return ok(what, f"jobs of up to {size_text(most)}")


def said(link: Link, statement: str) -> str:
    return str(link.say(statement).scalar())


KINDS = {"postgresql": postgres, "mysql": mysql, "sqlite": sqlite}
