"""Rows of failed_jobs that Laravel's older driver wrote, or nobody's: read, retried and forgotten as far as that goes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from qd.payload import make, read
from tests.support.project import Project
from tests.support.resp import Client

pytestmark = pytest.mark.usefixtures("clean_redis")

TABLE = "CREATE TABLE failed_jobs (id INTEGER PRIMARY KEY, uuid, connection, queue, payload, exception, failed_at)"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "failed.sqlite"
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(TABLE)
    return file


@pytest.fixture
def shop(project: Callable[..., Project], table: Path) -> Project:
    return project(config=f'\n[failed]\ndatabase = "sqlite:///{table}"\n')


def insert(table: Path, *rows: tuple[object, ...]) -> None:
    with closing(sqlite3.connect(table)) as database, database:
        database.executemany("INSERT INTO failed_jobs VALUES (NULL, ?, 'redis', ?, ?, ?, ?)", rows)


def count(table: Path) -> int:
    with closing(sqlite3.connect(table)) as database:
        return int(database.execute("SELECT count(*) FROM failed_jobs").fetchone()[0])


def payload(id: str) -> str:
    return make("shop.pay", b"{}", id=id, created_at=1795225685).decode()


def listed(shop: Project) -> list[str]:
    said = shop.qd("failed", "list", "--json")
    assert (said.returncode, said.stderr) == (0, "")
    return sorted(record["id"] for record in json.loads(said.stdout))


@pytest.mark.parametrize("none", [None, ""])
def test_rows_without_a_uuid_are_sent_again_each_once(
    shop: Project, table: Path, redis: Client, none: str | None
) -> None:
    insert(table, *[(none, "mail", payload(f"i{n}"), "RuntimeException: no", "2026-11-21 10:00:00") for n in (1, 2, 3)])
    assert listed(shop) == ["row-1", "row-2", "row-3"]
    assert shop.qd("failed", "forget", "row-3").stdout.startswith("1 job ")
    for said in ("2 jobs ", "0 jobs "):
        assert said in shop.qd("failed", "retry", "--all").stdout
    assert [read(raw).id for raw in redis.call("LRANGE", "queues:mail", 0, -1)] == ["i1", "i2"]
    assert (listed(shop), count(table)) == ([], 0)
    redis.call("DEL", "queues:mail", "queues:mail:notify")


def test_what_is_no_row_of_laravel_s_is_listed_as_it_is(shop: Project, table: Path) -> None:
    odd = [5, "", "yesterday", None, b"\xff"]
    insert(table, *[(f"u{n}", "mail", payload("i"), "no", at) for n, at in enumerate(odd)])
    insert(table, ("u5", "mail", b"\xff", b"\xff\xfe", "2026-11-21 10:00:00"), ("u6", None, None, None, None))
    assert listed(shop) == [f"u{n}" for n in range(6)], "u6 is of no queue"
    assert shop.qd("failed", "show", "u5").returncode == 0
    assert shop.qd("failed", "forget", *(f"u{n}" for n in range(6))).stdout.startswith("6 jobs ")
    assert count(table) == 1


def test_an_id_that_another_begins_with_means_itself(shop: Project, table: Path) -> None:
    insert(table, *[(uuid, "mail", payload("i"), "no", "2026-11-21 10:00:00") for uuid in ("u1", "u10")])
    assert shop.qd("failed", "forget", "u1").stdout.startswith("1 job ")
    assert listed(shop) == ["u10"]
