"""Laravel's table failed_jobs as a copy of the failed store, with the real artisan commands."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qd.payload.build import make
from qd.payload.format import read
from tests.php.laravel import PREFIX, Laravel
from tests.support.project import Project
from tests.support.redis import Client
from tests.support.waiting import eventually

JOBS = """
@app.job("fails", tries=1)
def fails(n: int) -> None:
    if not (Path(__file__).parent / "fixed").exists():
        raise ValueError(f"number {n}")
"""


@pytest.fixture
def table(laravel: Laravel) -> Path:
    """The SQLite file in which Laravel has created its table."""
    file = laravel.folder / "failed.sqlite"
    file.touch()
    laravel.artisan("migrate", database=file)
    return file


@pytest.fixture
def shop(project: Callable[..., Project], table: Path) -> Project:
    made = project(jobs=JOBS, config=f'prefix = "{PREFIX}"\n\n[failed]\ndatabase = "sqlite:///{table}"\n')
    made.allowed.add("fixed")
    return made


def rows(table: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(table)) as database:
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute("SELECT * FROM failed_jobs ORDER BY id")]


def listed(shop: Project) -> list[dict[str, Any]]:
    done = shop.qd("failed", "list", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def fail(shop: Project, count: int) -> None:
    shop.python(f"from jobs import fails\nfor n in range({count}): fails.dispatch(n)")
    shop.work_off()


def waiting(redis: Client, queue: str = "default") -> list[bytes]:
    found: list[bytes] = redis.call("LRANGE", f"{PREFIX}queues:{queue}", 0, -1)
    return found


def test_failed_jobs_of_qd_are_listed_retried_and_forgotten_by_artisan(
    shop: Project, laravel: Laravel, table: Path, redis: Client
) -> None:
    fail(shop, 3)
    first, second, third = rows(table)
    assert (first["connection"], first["queue"]) == ("redis", "default")
    assert "ValueError: number 0" in first["exception"]
    assert abs((read(first["payload"].encode()).createdAt or 0) - shop_now(redis)) < 60
    shown = laravel.artisan("queue:failed", database=table)
    assert all(row["uuid"] in shown for row in (first, second, third))
    assert "pushed back" in laravel.artisan("queue:retry", first["uuid"], database=table)
    assert "deleted" in laravel.artisan("queue:forget", second["uuid"], database=table)
    (again,) = waiting(redis)
    assert (read(again).uuid, read(again).attempts, read(again).crashes) == (first["uuid"], 0, 0)
    (shop.root / "fixed").touch()
    shop.work_off()
    assert waiting(redis) == []


def shop_now(redis: Client) -> float:
    return float(redis.text("TIME")[0])


def test_a_job_retried_by_artisan_is_not_retried_again_by_qd(
    shop: Project, laravel: Laravel, table: Path, redis: Client
) -> None:
    fail(shop, 2)
    laravel.artisan("queue:retry", rows(table)[0]["uuid"], database=table)
    done = shop.qd("failed", "retry", "--all")
    assert (done.returncode, done.stdout) == (1, "1 job sent again\n")
    assert "retried or forgotten with artisan" in done.stderr
    assert len(waiting(redis)) == 2
    assert rows(table) == []
    assert len({read(payload).uuid for payload in waiting(redis)}) == 2
    assert shop.qd("failed", "retry", "--all", "--force").stdout == "1 job sent again\n"
    assert listed(shop) == []


def test_a_job_retried_by_artisan_that_fails_again_is_retried_once(
    shop: Project, laravel: Laravel, table: Path, redis: Client
) -> None:
    fail(shop, 1)
    laravel.artisan("queue:retry", rows(table)[0]["uuid"], database=table)
    shop.work_off()
    second, first = listed(shop)
    assert second["uuid"] == first["uuid"] == rows(table)[0]["uuid"]
    done = shop.qd("failed", "retry", "--all")
    assert (done.returncode, done.stdout) == (1, "1 job sent again\n")
    assert "its row in failed_jobs is gone" in done.stderr
    assert len(waiting(redis)) == 1
    assert [record["record"] for record in listed(shop)] == [first["record"]]
    shop.work_off()
    assert shop.qd("failed", "forget", first["record"]).returncode == 0
    assert len(rows(table)) == 1, "the row of the last failure"
    assert shop.qd("failed", "retry", "--all").stdout == "1 job sent again\n"
    assert rows(table) == []


def test_a_payload_that_was_pushed_twice_is_retried_twice(
    shop: Project, laravel: Laravel, table: Path, redis: Client
) -> None:
    raw = make("fails", b'{"n":7}', created_at=1, uuid="pushed-twice")
    redis.call("RPUSH", f"{PREFIX}queues:default", raw, raw)
    shop.work_off()
    (row,) = rows(table)
    newest, oldest = (record["record"] for record in listed(shop))
    assert row["exception"].endswith(f"\n\n`qd failed show {newest}`\n`qd failed show {oldest}`")
    assert shop.qd("failed", "retry", oldest).returncode == 0
    assert shop.qd("failed", "retry", "--all").stdout == "1 job sent again\n"
    assert len(waiting(redis)) == 2
    assert rows(table) == []


def test_a_missing_table_is_named_with_its_database_and_fix(shop: Project, table: Path, redis: Client) -> None:
    with closing(sqlite3.connect(table)) as database:
        database.execute("DROP TABLE failed_jobs")
        database.commit()
    shop.python("from jobs import fails\nfails.dispatch(1)")
    work = shop.work("-w", "1", "--stop-when-empty")
    work.ends_clean()
    fact = f"the database of [failed], sqlite:///{table}: no such table: failed_jobs"
    (line,) = [line for line in work.lines if "failed.not_copied" in line]
    assert fact in line
    assert 'hint="`php artisan migrate` creates it' in line
    for words in (("retry", "--all"), ("forget", "--all", "--yes")):
        done = shop.qd("failed", *words)
        assert (done.returncode, done.stdout) == (69, "")
        assert done.stderr.startswith(f"qd: nothing was changed: {fact}; `php artisan migrate` creates it")
    assert len(listed(shop)) == 1


def test_jobs_retried_or_forgotten_by_qd_are_gone_for_artisan(
    shop: Project, laravel: Laravel, table: Path, redis: Client
) -> None:
    fail(shop, 2)
    first, second = (row["uuid"] for row in rows(table))
    assert shop.qd("failed", "retry", first).returncode == 0
    assert "Unable to find" in laravel.artisan("queue:retry", first, database=table)
    assert shop.qd("failed", "forget", second).returncode == 0
    assert rows(table) == []
    assert len(waiting(redis)) == 1


def test_jobs_that_failed_in_php_stay_in_the_table(shop: Project, laravel: Laravel, table: Path) -> None:
    raw = make("fails", b'{"n":7}', created_at=1, uuid="from-php")
    laravel.artisan("fail", "redis", "mail", raw.decode(), database=table)
    assert listed(shop) == []
    assert shop.qd("failed", "retry", "--all").stdout == "0 jobs sent again\n"
    assert shop.qd("failed", "forget", "--all", "--yes").stdout == "0 jobs forgotten\n"
    assert [row["uuid"] for row in rows(table)] == ["from-php"]


@pytest.mark.parametrize(("zone", "left"), [("UTC", 1), ("America/New_York", 1), ("Asia/Tokyo", 0)])
def test_rows_are_in_utc_and_artisan_compares_them_with_its_own_time(
    shop: Project, laravel: Laravel, table: Path, zone: str, left: int
) -> None:
    """Nine hours ahead, Tokyo takes a row of this minute for one of nine hours ago."""
    fail(shop, 1)
    laravel.settings |= {"RIG_TIMEZONE": zone}
    laravel.artisan("queue:prune-failed", "--hours=2", database=table)
    assert len(rows(table)) == left


def test_a_job_that_fails_again_has_one_row(shop: Project, table: Path) -> None:
    fail(shop, 1)
    assert shop.qd("failed", "retry", "--all").returncode == 0
    shop.work_off()
    assert len(rows(table)) == 1
    (record,) = listed(shop)
    assert record["uuid"] == rows(table)[0]["uuid"]


def test_an_unreachable_database_loses_no_job_and_is_logged_once(shop: Project, table: Path, redis: Client) -> None:
    table.rename(table.with_suffix(".away"))
    table.mkdir()
    shop.python("from jobs import fails\nfor n in range(3): fails.dispatch(n)")
    work = shop.work("-w", "1", "--stop-when-empty")
    work.ends_clean()
    assert len(work.matches("failed.not_copied")) == 1
    assert redis.call("HLEN", f"{PREFIX}queues:default:failed") == 3
    done = shop.qd("failed", "list", "--json")
    assert (done.returncode, done.stderr, len(json.loads(done.stdout))) == (0, "", 3)
    assert shop.qd("failed", "retry", "--all").returncode == 69
    table.rmdir()
    table.with_suffix(".away").rename(table)
    assert shop.qd("failed", "retry", "--all").stdout == "3 jobs sent again\n"
    eventually(lambda: len(waiting(redis)) == 3)
