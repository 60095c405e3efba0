"""qd failed summary: failed jobs counted by name and exception."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qd import config
from qd.cli import failed, main
from qd.drivers.connections import open_memory
from qd.store.base import KeyspaceStore
from tests.cli.conftest import Run, document, done
from tests.support.payloads import store_failed_job
from tests.support.redis import Client

PAGE = (Path(main.__file__).resolve().parents[3] / "docs" / "reference" / "cli" / "qd-failed.md").read_text()
NOW = 1_700_000_000.0


@pytest.fixture
def now(redis: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyspaceStore, "now", lambda store: NOW)


@pytest.fixture
def three(redis: Client, now: None) -> None:
    store_failed_job(redis, "a", at=NOW - 600)
    store_failed_job(redis, "b", at=NOW - 192, queue="trial")
    store_failed_job(redis, "c", at=NOW - 4800, queue="reports", job="report", error="DeadlineLost")


@pytest.mark.usefixtures("three")
def test_the_page_shows_what_it_prints(qd: Run) -> None:
    text = "".join(f"    {line}\n" for line in done(qd("failed", "summary")).splitlines())
    assert f"    $ qd failed summary\n{text}" in PAGE


@pytest.mark.usefixtures("three")
def test_groups_in_json_have_utc_times(qd: Run) -> None:
    found = document(qd("failed", "summary", "--json"))
    groups = found.pop("groups")
    assert found == {
        "schema": 1, "read_at": "2023-11-14T22:13:20.000Z", "connection": "redis", "total": 3, "looked": 3,
        "complete": True,
    }  # fmt: skip
    assert groups[0] == {
        "job": "mail.welcome", "error": "ValueError", "count": 2, "queues": ["mail", "trial"],
        "first_failed_at": "2023-11-14T22:03:20.000Z", "last_failed_at": "2023-11-14T22:10:08.000Z",
    }  # fmt: skip
    assert [group["job"] for group in groups] == ["mail.welcome", "report"]


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize(
    ("words", "counts"),
    [
        (["-q", "mail"], [1]), (["--job", "rep*"], [1]), (["--error", "ValueError"], [2]), (["--since", "5m"], [1]),
        (["--text", "no such"], [2, 1]), (["--older-than", "9m"], [1, 1]), (["--job", "x"], []),
    ],
)  # fmt: skip
def test_only_records_that_match_are_counted(qd: Run, words: list[str], counts: list[int]) -> None:
    groups = document(qd("failed", "summary", "--json", *words))["groups"]
    assert sorted([group["count"] for group in groups], reverse=True) == counts


def test_only_the_newest_are_read_without_all(qd: Run, redis: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed, "NEWEST", 3)
    for n in range(5):
        store_failed_job(redis, f"r{n}", at=time.time() - 100 + n, job=f"job-{n}")
    some = qd("failed", "summary")
    assert sorted(line.split()[1] for line in some.stdout.splitlines()[1:]) == ["job-2", "job-3", "job-4"]
    assert some.stderr == "the newest 3 of 5 failed jobs looked at; --all reads all\n"
    assert len(done(qd("failed", "summary", "--all")).splitlines()) == 6
    cut = document(qd("failed", "summary", "--json"))
    assert (cut["looked"], cut["total"], cut["complete"]) == (3, 5, False)


def test_an_empty_store_and_an_empty_result_are_told_apart(qd: Run, redis: Client) -> None:
    assert qd("failed", "summary").stderr == "nothing has failed\n"
    store_failed_job(redis, "a")
    assert qd("failed", "summary", "--job", "x").stderr == "no failed job matches\n"


def test_unreadable_records_and_control_characters_are_harmless(qd: Run, redis: Client) -> None:
    store_failed_job(redis, "a", job="x\x1b[2J", error="\u202eE")
    redis.call("HSET", "queues:mail:failed", "odd", b"\xff")
    redis.call("ZADD", "queues:mail:failed_at", 1, "odd")
    output = done(qd("failed", "summary"))
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", output)
    assert "x\\x1b[2J" in output
    assert {group["job"] for group in document(qd("failed", "summary", "--json"))["groups"]} == {"x\x1b[2J", None}


@pytest.mark.parametrize("kind", ["sqlite", "beanstalkd"])
def test_failed_jobs_of_other_connections_are_counted(
    qd: Run, configured: Callable[[str], None], redis: Client, request: pytest.FixtureRequest, kind: str
) -> None:
    """Those of a broker are stored on the control connection."""
    url = "sqlite:///jobs.sqlite" if kind == "sqlite" else request.getfixturevalue(kind).url
    configured(f'[connections.other]\nurl = "{url}"\n[qd]\ncontrol = "redis"\n')
    assert qd("migrate").exit_code == 0 or kind != "sqlite"
    space, prefix = open_memory(config.load(Path("qd.toml"), environ={}), "other")
    for id in ("a", "b"):
        line = json.dumps({"job": "mail.welcome", "error": "ValueError"}).encode()
        space.call("HSET", f"{prefix}queues:mail:failed", id, line + b"\n{}")
        space.call("ZADD", f"{prefix}queues:mail:failed_at", NOW, id)
    space.close()
    found = document(qd("failed", "summary", "-c", "other", "--json"))
    (group,) = found["groups"]
    assert (found["connection"], group["job"], group["error"], group["count"]) == (
        "other",
        "mail.welcome",
        "ValueError",
        2,
    )
