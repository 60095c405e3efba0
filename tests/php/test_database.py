"""One table of jobs for PHP's database driver and qd: real Illuminate classes push and work on the other side."""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

from tests.php.laravel import JOBS, Laravel, Ran
from tests.support.project import Project
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

pytestmark = pytest.mark.xdist_group("databases")
SLOW = (
    JOBS
    + """
@app.job("stuck.in.python", tries=3)
def stuck(**data):
    witness(data)
    time.sleep(120)
"""
)


def php_config(url: sql.URL) -> dict[str, object]:
    """The settings as in config/database.php."""
    driver = {"postgresql": "pgsql", "mysql": "mysql", "sqlite": "sqlite"}[url.get_backend_name()]
    if driver == "sqlite":
        return {"driver": driver, "database": url.database}
    found: dict[str, object] = {
        "driver": driver,
        "host": url.host,
        "port": url.port,
        "database": url.database,
        "username": url.username,
    }
    return found | {"password": "", "charset": "utf8" if driver == "pgsql" else "utf8mb4"}


class Shared:
    """A database with the table created by Laravel, and both sides that use it."""

    def __init__(self, server: Server, folder: Path, url: str, lease: int) -> None:
        self.url = sql.make_url(url)
        (folder / "laravel").mkdir()
        settings = {"RIG_DATABASES": json.dumps(php_config(self.url)), "RIG_RETRY_AFTER": str(lease)}
        self.php = Laravel(server, folder / "laravel", **settings)
        self.php.table()
        self.shop = Project(folder, "", SLOW)
        self.shop.allowed |= {"laravel", "jobs.sqlite", "jobs.sqlite-wal", "jobs.sqlite-shm"}
        (folder / "qd.toml").write_text(
            '[qd]\napp = "jobs:app"\ndefault = "db"\ncontrol = "db"\n\n'
            f'[connections.db]\ndriver = "database"\nurl = "{url}"\nretry_after = {lease}\n'
        )
        assert self.shop.quick("migrate").exit_code == 0

    def rows(self, columns: str = "id, attempts, reserved_at, payload") -> list[Any]:
        engine = sql.create_engine(self.url, poolclass=sql.NullPool)
        with engine.connect() as connection:
            return list(connection.execute(sql.text(f"SELECT {columns} FROM jobs ORDER BY id")))

    def work(self, *words: str) -> Any:
        return self.shop.work("q", *words, **self.php.qd_env)


Share = Callable[..., Shared]


@pytest.fixture(params=["postgres", "mariadb", "sqlite"])
def share(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> Iterator[Share]:
    made: list[Shared] = []

    def make(lease: int = 30) -> Shared:
        url = f"sqlite:///{tmp_path / 'jobs.sqlite'}"
        (tmp_path / "jobs.sqlite").touch()  # Laravel does not create the file
        if request.param != "sqlite":
            url = request.getfixturevalue(f"{request.param}_url")
        made.append(Shared(server, tmp_path, url, lease))
        return made[-1]

    yield make
    for each in made:
        each.php.close()
        each.shop.close()


def numbers(ran: list[Ran]) -> Counter[int]:
    return Counter(each.data["n"] for each in ran)


def note(count: int, **more: object) -> dict[str, object]:
    return {"name": "shared.note", "queue": "q", "count": count, "number": "n", **more}


def test_qd_runs_jobs_of_php_with_their_data_and_delay(share: Share):
    both = share()
    both.php.push(note(20, data={"list": [], "text": "\u00e9\u4e16"}), note(1, data={"late": True}, delay=2))
    before = both.rows("created_at, available_at")[-1]
    work = both.work("-w", "1")
    ran = both.php.wait_ran(21)
    assert [each.data["n"] for each in ran] == [*range(20), 0]
    assert ran[0].data == {"n": 0, "list": [], "text": "\u00e9\u4e16"}
    assert {each.attempt for each in ran} == {1}
    assert before.available_at >= before.created_at + 2
    work.stop()
    assert both.rows() == []


def test_php_runs_jobs_of_qd_from_the_table(share: Share):
    both = share()
    for n in range(3):
        assert both.shop.qd("dispatch", "shared.note", f"n={n}", "--queue", "q", **both.php.qd_env).returncode == 0
    php = both.php.worker("q", stop_when_empty=True)
    ran = both.php.wait_ran(3)
    php.ends_clean()
    assert ([each.data["n"] for each in ran], {each.attempt for each in ran}) == ([0, 1, 2], {1})
    assert both.rows() == []


def test_both_share_one_table_and_each_job_runs_once(share: Share):
    both = share()
    if both.url.get_backend_name() == "sqlite":
        both.php.push(note(100))
        both.work("-w", "2", "--stop-when-empty").ends_clean()
        assert numbers(both.php.ran()) == Counter(range(100))
        return  # PHP's driver fails if another process has locked the file
    work, php = both.work("-w", "2"), both.php.worker("q")
    rounds, ran = 0, list[Ran]()
    while rounds < 5 or (rounds < 30 and len({each.pid == php.pid for each in ran}) < 2):  # until both sides ran some
        rounds += 1
        both.php.push(note(100))
        ran = both.php.wait_ran(100 * rounds, 60)
    eventually(lambda: both.rows() == [], what="the end of the last job")
    work.stop()
    php.stop()
    assert numbers(ran) == Counter(dict.fromkeys(range(100), rounds))
    assert {each.attempt for each in ran} == {1}
    assert len({each.pid == php.pid for each in ran}) == 2


def test_php_does_not_take_a_job_that_qd_runs_longer_than_a_lease(share: Share):
    both = share(lease=3)
    both.php.push({"name": "stuck.in.python", "queue": "q", "data": {"n": 1}})
    work = both.work("-w", "1")
    both.php.wait_ran(1)
    first = both.rows()[0].reserved_at
    php = both.php.worker("q", sleep=0.2)
    eventually(lambda: both.rows()[0].reserved_at >= first + 5, 30, what="a lease renewed beyond its first end")
    php.stop()
    assert len(both.php.ran()) == 1
    work.signal(signal.SIGTERM)
    work.wait_line("master.stopping")
    threading.Event().wait(1.1)  # within a second the two signals would count as one
    work.signal(signal.SIGTERM)
    assert work.wait() == 0
    assert both.rows("attempts, reserved_at") == [(0, None)]


def test_qd_runs_the_job_of_a_killed_php_worker_after_its_lease(share: Share):
    both = share(lease=3)
    both.php.push({"name": "stuck.in.php", "queue": "q", "data": {"n": 1}})
    php = both.php.worker("q")
    both.php.wait_ran(1)
    php.kill()
    (both.shop.root / "jobs.py").write_text(SLOW.replace("stuck.in.python", "stuck.in.php").replace("120", "0"))
    work = both.work("-w", "1", "--tries", "3")
    ran = both.php.wait_ran(2, 40)
    eventually(lambda: both.rows() == [], what="the end of the job")
    work.stop()
    assert [(each.data["n"], each.attempt) for each in ran] == [(1, 1), (1, 2)]
