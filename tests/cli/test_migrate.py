"""`qd migrate`: the first process creates the tables, and a wrong version is an error."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run, document, done

TABLES = {"qd_names", "qd_items", "qd_locks", "qd_schema", "qd_reserved", "jobs", "failed_jobs", "job_batches"}
AT = "[connections.db]\nurl = 'sqlite:///jobs.sqlite'\n"


def tables(file: str = "jobs.sqlite") -> set[str]:
    with closing(sqlite3.connect(file)) as db:
        rows = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        return {name for (name,) in rows}


def test_migrate_creates_the_tables_once(configured: Callable[[str], None], qd: Run) -> None:
    configured(AT)
    assert "db: made table qd_names" in done(qd("migrate")).splitlines()
    assert tables() == TABLES
    assert done(qd("migrate")) == "db: nothing to do\n"


def test_a_dry_run_prints_sql_that_creates_the_tables(configured: Callable[[str], None], qd: Run, folder: Path) -> None:
    configured(AT)
    sql = done(qd("migrate", "--dry-run"))
    assert tables() == set()
    with closing(sqlite3.connect(folder / "by_hand.sqlite")) as db:
        db.executescript(sql)
    assert tables("by_hand.sqlite") == TABLES
    assert document(qd("migrate", "--dry-run", "--json"))["connections"]["db"] == [
        line.removesuffix("\n") for line in sql.splitlines()
    ]


def test_the_jobs_table_has_the_configured_name(configured: Any, qd: Run) -> None:
    configured(AT + "table = 'work'\n")
    done(qd("migrate"))
    assert tables() == TABLES - {"jobs", "qd_reserved"} | {"work", "qd_reserved_work"}


def test_an_existing_table_of_laravel_is_not_changed(configured: Any, qd: Run) -> None:
    configured(AT)
    with closing(sqlite3.connect("jobs.sqlite")) as db:
        columns = "queue, payload, attempts, reserved_at, available_at, created_at, mine"
        db.execute(f"CREATE TABLE jobs (id INTEGER PRIMARY KEY, {columns})")
    assert "table jobs" not in done(qd("migrate"))


def test_tables_of_a_newer_version_are_not_changed(configured: Any, qd: Run) -> None:
    configured(AT)
    done(qd("migrate"))
    with closing(sqlite3.connect("jobs.sqlite")) as db:
        db.execute("UPDATE qd_schema SET version = 99")
        db.commit()
    result = qd("migrate")
    assert (result.exit_code, result.stdout) == (78, "")
    assert "version 99" in result.stderr
    assert "update qd" in result.stderr


def test_migrate_rejects_a_connection_that_is_not_a_database(configured: Any, qd: Run) -> None:
    configured(AT)
    result = qd("migrate", "-c", "redis")
    assert (result.exit_code, result.stderr) == (
        2,
        "qd: connection 'redis' is not a database (redis): it needs no tables\n",
    )


def test_migrate_without_a_database_does_nothing(configured: Any, qd: Run) -> None:
    assert done(qd("migrate")) == "no connection is a database: nothing to do\n"


CONCURRENT = """
import sys
from qd.drivers.database.connection import DatabaseConnection as Link
from qd.drivers.database.migrations import check, migrate
link = Link(sys.argv[1], timeout=30)
sys.stdin.readline()
migrate(link, "jobs")
check(link, "jobs")
"""


@pytest.mark.parametrize("kind", ["postgres_url", "mariadb_url", "sqlite"])
def test_two_concurrent_migrations_both_succeed(kind: str, request: pytest.FixtureRequest, folder: Path) -> None:
    url = "sqlite:///jobs.sqlite" if kind == "sqlite" else request.getfixturevalue(kind)
    command = [sys.executable, "-c", CONCURRENT, url]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for each in both:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    ends = [each.communicate(timeout=60) for each in both]
    assert [each.returncode for each in both] == [0, 0], ends
