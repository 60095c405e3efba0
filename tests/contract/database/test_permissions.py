"""A database user with restricted rights: workers need what docs/database.md grants, and a missing right is reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from qd.config.settings import ConnectionSettings
from qd.drivers.database.connection import DatabaseConnection
from qd.drivers.database.migrations import migrate
from qd.drivers.database.queue import start_warnings
from qd.errors import ConfigError
from tests.support.servers.mariadb import MariaDb
from tests.support.servers.postgres import NAME, Postgres

PAGE = Path(__file__).parents[3] / "docs" / "database.md"


def granted(kind: str) -> list[str]:
    """The statements of the page for one kind of database."""
    block = PAGE.read_text(encoding="utf-8").partition(f"    -- {kind}\n")[2].partition("\n\n")[0]
    return [line.strip().rstrip(";") for line in block.splitlines()]


def each_is_needed(owner: str, worker: str, statements: list[str], run: Callable[[str], object], said: str) -> None:
    """The check fails until all statements have run."""
    link = DatabaseConnection(owner)
    migrate(link, "jobs")
    link.close()
    at = ConnectionSettings("db", driver="database", url=worker)
    assert len(statements) > 2
    for statement in statements:
        with pytest.raises(ConfigError, match=said):
            start_warnings(at, [], 1)
        run(statement)
    start_warnings(at, [], 1)


def test_workers_need_the_documented_grants_on_postgres(postgres: Postgres, postgres_url: str) -> None:
    database = postgres_url.rpartition("/")[2]
    postgres.run("CREATE ROLE worker LOGIN")
    try:
        worker = postgres_url.replace(f"//{NAME}@", "//worker@")
        each_is_needed(
            postgres_url,
            worker,
            granted("PostgreSQL"),
            lambda words: postgres.run(words, database),
            "lacks a right|may not use",
        )
    finally:
        postgres.run("DROP OWNED BY worker", database)
        postgres.run("DROP ROLE worker")


def test_workers_need_the_documented_grants_on_mariadb(mariadb: MariaDb, mariadb_url: str) -> None:
    database = mariadb_url.rpartition("/")[2].partition("?")[0]
    mariadb.run("CREATE USER worker")
    try:
        words = [statement.replace(" shop.", f" {database}.") for statement in granted("MySQL, MariaDB")]
        worker, said = mariadb_url.replace("//root@", "//worker@"), "lacks a right|its user may see|refuses this user"
        each_is_needed(mariadb_url, worker, words, mariadb.run, said)
    finally:
        mariadb.run("DROP USER worker")
