"""`qd doctor` on a database: its tables, its persistence, and an unreachable server."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest

from tests.cli.conftest import Run, done

Found = dict[str, tuple[str, str]]


def found(qd: Run) -> Found:
    """Name of the check -> sign and value."""
    checks = json.loads(qd("doctor", "--json").stdout)["checks"]
    return {each["what"]: (each["sign"], each["value"]) for each in checks}


def use_database(configured: Callable[[str], None], url: str) -> None:
    configured(f'[connections.db]\nurl = "{url}"\n[qd]\ndefault = "db"\ncontrol = "db"\n')


@pytest.mark.parametrize("kind", ["sqlite", "postgres_url", "mariadb_url"])
def test_a_healthy_database(kind: str, configured: Callable[[str], None], qd: Run, request: pytest.FixtureRequest):
    use_database(configured, "sqlite:///jobs.sqlite" if kind == "sqlite" else request.getfixturevalue(kind))
    lacks = found(qd)
    assert lacks["db.tables"][0] == "fail"
    assert "qd_names" in lacks["db.tables"][1]
    assert "db.latency" not in lacks
    done(qd("migrate"))
    well = found(qd)
    assert well["db.tables"] == ("ok", "qd's tables and 'jobs' exist")
    assert well["db.answers"][0] == "ok"
    assert ("db.clock" in well) == (kind != "sqlite")
    assert "db.latency" in well
    # The servers of the tests run without fsync, for speed.
    assert well["db.persistence"][0] == {"sqlite": "ok"}.get(kind, "warn"), well["db.persistence"]


def test_an_unreachable_database(configured: Callable[[str], None], qd: Run) -> None:
    use_database(configured, "postgresql://shop:s3cretw0rd@127.0.0.1:9/db")
    result = qd("doctor")
    assert result.exit_code in (69, 78)  # 78: there is no app
    assert "fail  db.answers: the database at postgresql://shop@127.0.0.1:9/db " in result.stdout, result.stdout
    assert "s3cretw0rd" not in result.output


def test_tables_of_a_newer_version(configured: Callable[[str], None], qd: Run) -> None:
    use_database(configured, "sqlite:///jobs.sqlite")
    done(qd("migrate"))
    with closing(sqlite3.connect("jobs.sqlite")) as db:
        db.execute("UPDATE qd_schema SET version = 99")
        db.commit()
    assert found(qd)["db.tables"][0] == "fail"
    assert "update qd on this host" in found(qd)["db.tables"][1]


def test_an_error_of_postgresql_does_not_show_the_statement(
    postgres_url: str, configured: Callable[[str], None], qd: Run
) -> None:
    use_database(configured, postgres_url)
    result = qd("status")
    assert result.exit_code == 69
    assert result.stderr.endswith('run `qd migrate`: relation "qd_names" does not exist\n'), result.stderr


def test_a_database_that_is_read_only(postgres_url: str, configured: Callable[[str], None], qd: Run) -> None:
    use_database(configured, postgres_url)
    done(qd("migrate"))
    use_database(configured, f"{postgres_url}?options=-c%20default_transaction_read_only%3Don")
    said = qd("doctor").stdout
    assert "in a read-only transaction -> it is a replica, or a failover is under way: point the url at" in said, said
