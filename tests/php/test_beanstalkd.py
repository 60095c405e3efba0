"""One tube for PHP's beanstalkd driver and qd: real Illuminate classes on Pheanstalk push and work on the other side."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import greenstalk
import pytest

from tests.php.laravel import JOBS, Laravel, Ran
from tests.support.processes import Procs
from tests.support.project import Project
from tests.support.servers.beanstalkd import Beanstalkd
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

SHARED = (
    JOBS
    + """
@app.job("shared.again", tries=0)
def again(**data):
    witness(data)


@app.job("shared.buried")
def buried(**data):
    witness(data)


@app.job("stuck.in.php", tries=0)
def stuck(**data):
    witness(data)


@app.job("fails.once", tries=3)
def fails_once(**data):
    witness(data)
    if current_job().attempt == 1:
        raise ValueError("not yet")
"""
)
pytestmark = pytest.mark.leaves("qd:at:tubes:qd:outbox", "qd:at:tubes:*:qd-elsewhere")
NOTE = r"App\Jobs\Report@fire"
RICH = {
    "user": 7,
    "note": 'é/ü "q" \\ \u2028 🙂',
    "empty": [],
    "micros": 1795224705123456,
    "big": 2**53 + 1,
}


class Shared:
    """A beanstalkd and both sides on it."""

    def __init__(self, server: Server, beanstalkd: Beanstalkd, folder: Path) -> None:
        self.beanstalkd = beanstalkd
        (folder / "laravel").mkdir()
        place = beanstalkd.url.removeprefix("beanstalkd://")
        self.php = Laravel(server, folder / "laravel", RIG_BEANSTALKD=place, RIG_RETRY_AFTER="60")
        self.shop = Project(folder, "", SHARED)
        self.shop.allowed |= {"laravel"}
        (folder / "qd.toml").write_text(
            '[qd]\napp = "jobs:app"\ndefault = "tubes"\ncontrol = "control"\n\n'
            f'[connections.tubes]\nurl = "{beanstalkd.url}"\n\n[connections.control]\nurl = "{server.url}"\n'
        )

    def work(self, *words: str) -> Procs:
        return self.shop.work("q", *words, **self.php.qd_env)

    def work_off(self) -> None:
        self.shop.work_off("q", **self.php.qd_env)

    def push(self, name: str, data: object, *words: str) -> None:
        done = self.shop.qd("dispatch", name, "--data", json.dumps(data), "--queue", "q", *words, **self.php.qd_env)
        assert done.returncode == 0, done.stderr

    def there(self) -> dict[str, Any]:
        """The server's statistics of the tube."""
        try:
            with self.beanstalkd.client() as client:
                return dict(client.stats_tube("q"))
        except greenstalk.NotFoundError:
            return {}

    def empty(self) -> bool:
        kinds = ("ready", "delayed", "reserved", "buried")
        return not any(self.there().get(f"current-jobs-{kind}", 0) for kind in kinds)


@pytest.fixture
def share(server: Server, clean_redis: None, beanstalkd: Beanstalkd, tmp_path: Path) -> Iterator[Shared]:
    shared = Shared(server, beanstalkd, tmp_path)
    yield shared
    shared.php.close()
    shared.shop.close()


def numbers(ran: list[Ran]) -> Counter[int]:
    return Counter(each.data["n"] for each in ran)


def test_qd_runs_jobs_of_laravel_once_with_their_data(share: Shared) -> None:
    share.php.push(
        {"name": "shared.note", "data": RICH, "queue": "q"},
        {"name": "shared.note", "data": {"n": 0}, "queue": "q", "delay": 3},
    )
    assert share.there()["current-jobs-delayed"] == 1
    work = share.work("-w", "2")
    ran = share.php.wait_ran(2)
    assert sorted(len(each.data) for each in ran) == [1, len(RICH)]
    assert all(each.data in (RICH, {"n": 0}) and each.attempt == 1 for each in ran)
    eventually(share.empty)
    work.stop()


def test_laravel_runs_jobs_of_qd_from_a_tube(share: Shared) -> None:
    share.push(NOTE, RICH)
    share.push("shared.note", {"n": 1})
    share.push(NOTE, {"n": 2}, "--delay", "1")
    php = share.php.worker("q")
    ran = share.php.wait_ran(3)
    assert [each.data for each in ran] == [RICH, {"n": 1}, {"n": 2}]
    assert {(each.attempt, each.pid) for each in ran} == {(1, php.pid)}
    eventually(share.empty)
    php.stop()


def test_both_share_one_tube_and_each_job_runs_once(share: Shared) -> None:
    share.php.push({"name": "stuck.in.php", "data": {"n": -1}, "queue": "q"})
    work = share.work("-w", "1")
    share.php.wait_ran(1)
    php = share.php.worker("q")
    share.php.push({"name": "shared.note", "queue": "q", "count": 1000, "number": "n"})
    ran = share.php.wait_ran(1001, 60)[1:]
    eventually(share.empty)
    php.stop()
    work.stop()
    assert numbers(ran) == Counter(range(1000))
    assert len({each.pid for each in ran}) > 1
    assert {each.attempt for each in ran} == {1}


def test_a_release_by_php_counts_as_an_attempt_in_qd(share: Shared) -> None:
    share.php.push({"name": "shared.again", "data": {"n": 1}, "queue": "q"})
    share.php.worker("q", max_jobs=2, tries=0).ends_clean()
    assert [each.attempt for each in share.php.ran()] == [1, 2]
    share.work_off()
    assert [each.attempt for each in share.php.ran()] == [1, 2, 3]
    assert share.empty()


def test_the_job_of_a_killed_php_worker_runs_in_qd_and_counts_a_crash(share: Shared) -> None:
    share.php.push({"name": "stuck.in.php", "data": {"n": 1}, "queue": "q"})
    php = share.php.worker("q")
    share.php.wait_ran(1)
    php.process.kill()
    php.sweep()
    share.work_off()
    _, here = share.php.ran()
    assert here.attempt == 1  # a crash costs no attempt
    assert share.empty()


def test_a_job_retried_by_qd_is_a_new_job_for_laravel(share: Shared) -> None:
    """Any keeper of qd forwards it, even one of another queue."""
    share.php.push({"name": "fails.once", "data": {"n": 1}, "queue": "q"})
    share.work("--once", "-w", "1", "--backoff", "1").ends_clean()
    work = share.shop.work("other", "-w", "1", **share.php.qd_env)
    eventually(lambda: share.there().get("current-jobs-ready"))
    work.stop()
    with share.beanstalkd.client() as client:
        client.use("q")
        payload = json.loads(client.peek_ready().body)
    assert (payload["attempts"], payload["job"], payload["data"]) == (1, "fails.once", {"n": 1})
    php = share.php.worker("q")
    first, second = share.php.wait_ran(2)
    php.stop()
    assert (first.attempt, second.attempt, second.pid) == (1, 1, php.pid)


def test_an_object_job_is_released_for_php_without_an_attempt(share: Shared) -> None:
    share.php.push({"queue": "q", "data": {"n": 1}}, {"name": "shared.note", "data": {"n": 2}, "queue": "q"})
    work = share.work("-w", "1")
    share.php.wait_ran(1)
    work.wait_line("job.released .*PHP runs it")
    php = share.php.worker("q")
    ran = share.php.wait_ran(2)
    work.stop()
    php.stop()
    assert [(each.data["n"], each.attempt) for each in ran] == [(2, 1), (1, 1)]
    assert ran[1].pid == php.pid
    eventually(share.empty)


def test_jobs_buried_by_php_are_reported_and_run_in_qd_after_a_kick(share: Shared) -> None:
    """Neither a bury nor a kick counts as an attempt or a crash."""
    share.php.push({"name": "shared.buried", "queue": "q", "count": 3, "number": "n"})
    php = share.php.worker("q")
    share.php.wait_ran(3)
    eventually(lambda: share.there()["current-jobs-buried"] == 3)
    php.stop()
    work = share.work("-w", "1")
    work.wait_line("connection.warning .*3 jobs that another program has buried.*`kick 3`")
    with share.beanstalkd.client() as client:
        client.use("q")
        assert client.kick(3) == 3
    here = share.php.wait_ran(6)[3:]
    assert [(each.data["n"], each.attempt) for each in here] == [(0, 1), (1, 1), (2, 1)]
    work.stop()
