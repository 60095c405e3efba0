"""qd batch: batches are listed, shown and cancelled, and their failed jobs are sent again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from qd.cli import batch
from qd.store import base
from tests.cli.conftest import Run, document, done
from tests.cli.test_peek import page
from tests.support.project import Project
from tests.support.redis import Client

pytestmark = [pytest.mark.leaves("*"), pytest.mark.usefixtures("clean_redis")]
JOBS = """
@app.job("import.rows")
def rows(start: int) -> None:
    if start < 2 and not Path("mended").exists():
        raise ValueError(f"no row {start}")

@app.job("import.ready")
def ready() -> None:
    print("all rows", flush=True)

@app.job("import.broken")
def broken() -> None: ...

def send(jobs: int, name: str = "import") -> None:
    calls = [rows.bind(start) for start in range(jobs)]
    print(app.batch(*calls, then=ready.bind(), catch=broken.bind(), name=name).dispatch().id)
"""


@pytest.fixture
def shop(project: Callable[..., Project]) -> Project:
    found = project(jobs=JOBS)
    found.allowed |= {"mended", "jobs.sqlite"}
    return found


@pytest.fixture
def send(shop: Project) -> Callable[..., str]:
    """send(3) sends a batch of three jobs, and returns its id."""

    def call(jobs: int, name: str = "import") -> str:
        return shop.python(f"import jobs\njobs.send({jobs}, {name!r})").stdout.strip()

    return call


def seen(shop: Project, *words: str) -> dict[str, Any]:
    result = shop.qd("batch", *words, "--json")
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_newest_batches_are_listed_first(shop: Project, send: Callable[..., str], redis: Client) -> None:
    first, second = send(3, "old"), send(5, "new")
    redis.call("HSET", f"qd:batch:{first}", "created_at", 1)
    found = seen(shop, "list")
    assert (found["count"], found["cut"]) == (2, False)
    new, old = found["batches"]
    assert new["id"] == second
    assert old == {
        "id": first, "name": "old", "state": "running", "progress": 0, "total": 3, "pending": 3, "failed": 0,
        "created_at": "1970-01-01T00:00:01.000Z", "cancelled_at": None, "finished_at": None,
    }  # fmt: skip
    limited = shop.qd("batch", "list", "--limit", "1")
    assert limited.stderr == "1 of 2 batches shown\n"
    assert limited.stdout.splitlines()[1].split()[:3] == [second, "new", "running"]


def test_the_page_shows_what_it_prints(qd: Run, redis: Client) -> None:
    key = "qd:batch:7f0c1d52-2c44-4a86-9a4e-6b0d1c2f3a10"
    facts = {"name": "import", "total": 5, "created_at": 1795850813, "cancelled_at": 1795850814}
    redis.call("HSET", key, *[word for pair in facts.items() for word in pair])
    redis.call("HSET", f"{key}:failed", "u-1", "mail 1", "u-2", "mail 2")
    assert page("qd batch list") == done(qd("batch", "list"))


def test_without_a_batch_the_list_says_so(qd: Run) -> None:
    result = qd("batch", "list")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "0 of 0 batches shown\n")


def test_a_long_search_says_that_it_was_cut(qd: Run, redis: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "STEP", 1)
    monkeypatch.setattr(batch, "MOST", 1)
    for number in range(200):
        redis.call("SET", f"qd:job:{number}", "x")
    assert ", among the first 1 keys of the server" in qd("batch", "list").stderr
    assert document(qd("batch", "list", "--json"))["cut"]


def test_failed_jobs_are_shown_and_sent_again(shop: Project, send: Callable[..., str]) -> None:
    id = send(5)
    shop.work_off()
    found = seen(shop, "show", id)
    assert (found["state"], found["progress"], found["failed"], found["dropped"]) == ("cancelled", 100, 2, 0)
    then, catch = found["callbacks"]
    assert (then["callback"], then["job"], then["queue"], then["sent_at"]) == ("then", "import.ready", "default", None)
    assert catch["sent_at"] is not None
    assert {each["reason"] for each in found["failures"]} == {"no row 0", "no row 1"}
    text = shop.qd("batch", "show", id, "--limit", "1").stdout
    assert "progress      100 %\n" in text
    assert text.count("ValueError") == 1
    (shop.root / "mended").touch()
    result = shop.qd("batch", "retry", id)
    assert (result.returncode, result.stdout) == (0, "2 jobs sent again\n")
    shop.work_off()
    found = seen(shop, "show", id)
    assert (found["state"], found["failed"], found["failures"]) == ("done", 0, [])
    assert found["callbacks"][0]["sent_at"] is not None
    assert shop.qd("batch", "retry", id).returncode == 1
    events = [json.loads(line) for line in shop.qd("events", "--json").stdout.splitlines()]
    (event,) = [each["object"] for each in events if each["what"] == "batch retry"]
    assert event == {"batch": id, "connection": "redis", "jobs": 2}


def test_failed_jobs_without_a_record_are_counted(shop: Project, send: Callable[..., str]) -> None:
    id = send(5)
    shop.work_off()
    assert shop.qd("failed", "forget", "--all", "--yes").returncode == 0
    assert seen(shop, "show", id)["dropped"] == 2
    result = shop.qd("batch", "retry", id)
    assert (result.returncode, result.stdout) == (1, "0 jobs sent again\n")
    assert "2 of its failed jobs cannot be retried" in result.stderr


def test_a_batch_is_cancelled_once(shop: Project, send: Callable[..., str]) -> None:
    id = send(3)
    assert shop.qd("batch", "cancel", id).stdout == f"cancelled batch {id}; 3 jobs left\n"
    again = shop.qd("batch", "cancel", id)
    assert (again.returncode, again.stderr) == (1, f"nothing to cancel: batch {id} is cancelled\n")
    assert seen(shop, "show", id)["cancelled_at"] is not None


@pytest.mark.parametrize("command", ["show", "cancel", "retry"])
@pytest.mark.parametrize("id", ["nowhere", "x:failed", "../x", "😀\x1b[2J", ""])
def test_an_unknown_batch_is_one_line(qd: Run, redis: Client, command: str, id: str) -> None:
    redis.call("HSET", "qd:batch:x:failed", "u-1", "mail 1")
    result = qd("batch", command, id)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert "\x1b" not in result.stderr


def test_names_cannot_write_to_the_terminal(qd: Run, redis: Client) -> None:
    redis.call("HSET", "qd:batch:b", "name", "a\x1b[2J\u202e", "total", 1, "created_at", 1)
    assert "a\\x1b[2J\\u202e" in done(qd("batch", "list"))
    assert "a\\x1b[2J\\u202e" in done(qd("batch", "show", "b"))


@pytest.mark.parametrize("kind", ["sqlite", "cluster", "beanstalkd"])
def test_batches_of_other_connections(
    shop: Project, send: Callable[..., str], request: pytest.FixtureRequest, kind: str
) -> None:
    url = "sqlite:///jobs.sqlite" if kind == "sqlite" else request.getfixturevalue(kind).url
    with (shop.root / "qd.toml").open("a") as file:
        file.write(f'[connections.other]\nurl = "{url}"\n')
    text = (shop.root / "qd.toml").read_text()
    assert "[qd]\n" in text, text
    (shop.root / "qd.toml").write_text(text.replace("[qd]\n", '[qd]\ndefault = "other"\ncontrol = "redis"\n'))
    if kind == "sqlite":
        assert shop.qd("migrate").returncode == 0
    id = send(3)
    assert [each["id"] for each in seen(shop, "list")["batches"]] == [id]
    shop.work_off()
    assert seen(shop, "show", id)["failed"] == 2
    assert shop.qd("batch", "retry", id).stdout == "2 jobs sent again\n"
    assert shop.qd("batch", "cancel", id).returncode == 1


def test_a_key_that_is_no_batch_hides_no_other(qd: Run, redis: Client) -> None:
    redis.call("HSET", "qd:batch:strange", "total", "x")
    redis.call("HSET", "qd:batch:b1", "name", "import", "total", "1", "created_at", "1000")
    assert [each["id"] for each in document(qd("batch", "list", "--json"))["batches"]] == ["b1"]
    shown = qd("batch", "show", "strange")
    assert (shown.exit_code, "or is on another connection or server; `qd batch list`" in shown.stderr) == (1, True)
