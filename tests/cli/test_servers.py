"""`qd migrate` and `qd embedded`: tables of a database, and the embedded server."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run, document, done

# --- qd migrate


TABLES = {"qd_names", "qd_items", "qd_locks", "qd_schema", "qd_reserved", "jobs"}
AT = "[connections.db]\nurl = 'sqlite:///jobs.sqlite'\n"


def tables(file: str = "jobs.sqlite") -> set[str]:
    with closing(sqlite3.connect(file)) as db:
        rows = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        return {name for (name,) in rows}


def test_migrate_creates_its_own_tables_and_that_of_jobs_once(configured: Callable[[str], None], qd: Run) -> None:
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
from qd.drivers.database.schema import check, migrate
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


# --- qd embedded


START = "from pathlib import Path; from qd.drivers import embedded; embedded.resolve('embedded:', Path.cwd())"


@pytest.fixture
def alone(project):
    """A project with an embedded server."""
    one = project(url="embedded:")
    one.allowed.add(".qd")
    yield one
    one.qd("embedded", "stop")


def test_embedded_status_without_a_server_fails_and_starts_none(alone):
    done = alone.qd("embedded", "status")
    assert done.returncode == 1
    assert done.stdout == f"the embedded server of {alone.root} is not running; `qd work` starts it\n"
    assert not (alone.root / ".qd").exists()


def test_embedded_status_without_an_embedded_connection(project):
    done = project().quick("embedded", "status")
    assert (done.exit_code, done.stdout) == (1, 'no connection here has `url = "embedded:"`, nothing runs\n')


def test_embedded_status_names_the_running_server(alone):
    alone.python(START)
    done = alone.qd("embedded", "status")
    assert done.returncode == 0
    assert f"data in {alone.root}/.qd/embedded" in done.stdout
    found = json.loads(alone.qd("embedded", "status", "--json").stdout)
    assert found["running"] is True
    assert f"pid {found['pid']}" in done.stdout
    assert found["url"].startswith(f"unix://{alone.run}/qd-")


def test_embedded_stop_ends_the_server_once(alone):
    alone.python(START)
    done = alone.qd("embedded", "stop")
    assert (done.returncode, done.stdout) == (0, f"stopped; the queues are kept in {alone.root}/.qd/embedded\n")
    assert json.loads(alone.qd("embedded", "status", "--json").stdout) == {"running": False}
    done = alone.qd("embedded", "stop")
    assert (done.returncode, done.stdout) == (1, f"the embedded server of {alone.root} was not running\n")


def test_read_only_commands_do_not_start_the_embedded_server(alone):
    alone.python(START)
    assert alone.qd("status").returncode == 0
    alone.qd("embedded", "stop")
    output = alone.qd("embedded", "status").stdout
    for command in ("status", "health"):
        done = alone.qd(command)
        assert (command, done.returncode, done.stdout, done.stderr) == (command, 69, "", f"qd: {output}")
    alone.qd("doctor")
    assert json.loads(alone.qd("embedded", "status", "--json").stdout) == {"running": False}


def test_read_only_commands_do_not_start_an_embedded_control_server(alone, server):
    other = f'[connections.redis]\nurl = "{server.url}"\n\n[connections.own]\nurl = "embedded:"\n'
    (alone.root / "qd.toml").write_text(f'[qd]\napp = "jobs:app"\ncontrol = "own"\n\n{other}')
    assert [alone.qd(command).returncode for command in ("status", "health")] == [69, 69]
    assert "`qd work` starts it" in alone.qd("doctor").stdout
    assert alone.qd("embedded", "status").returncode == 1
