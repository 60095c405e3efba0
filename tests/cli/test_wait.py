"""qd wait: returns once a queue is empty, twice in a row, or at its timeout."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qd.cli import main, waiting
from qd.drivers.redis.queue import RedisQueue
from qd.drivers.types import Sizes
from tests.cli.conftest import Run, done, elsewhere, report
from tests.support.redis import Client

PAGE = (Path(main.__file__).resolve().parents[3] / "docs" / "reference" / "cli" / "qd-wait.md").read_text()


def answers(monkeypatch: pytest.MonkeyPatch, *ready: int) -> Iterator[int]:
    """The queue has this many ready jobs, look by look; the last number stays. Returns the looks that are left."""
    monkeypatch.setattr(waiting, "STEP", 0.001)
    left = iter(ready)
    last = [0]

    def sizes(queue: RedisQueue, name: str) -> Sizes:
        last[0] = next(left, last[0])
        return Sizes(last[0], 0, 0, 3, None)

    monkeypatch.setattr(RedisQueue, "sizes", sizes)
    return left


@pytest.mark.parametrize("words", [("wait", "mial", "--empty"), ("peek", "mial", "--state", "delayed")])
def test_an_unknown_queue_is_noted_with_the_closest_name(qd: Run, redis: Client, words: tuple[str, ...]) -> None:
    redis.call("RPUSH", "queues:mail", "{}")
    result = qd(*words)
    assert (result.exit_code, result.stderr.count("unknown queue 'mial' (did you mean 'mail'?)")) == (0, 1)
    assert "the app was not asked: a queue that only its jobs name is not known here" in result.stderr
    redis.call("DEL", "queues:mail")
    report(redis, queues=["mial"])
    assert "unknown" not in qd(*words).stderr


def test_the_page_shows_what_wait_prints(qd: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, 2, 1, 0)
    assert (
        f"    $ qd wait mail --empty --timeout 1h\n    {done(qd('wait', 'mail', '--empty', '--timeout', '1h'))}" in PAGE
    )


def test_wait_needs_two_empty_looks_in_a_row(qd: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    left = answers(monkeypatch, 1, 0, 1, 0, 0)
    done(qd("wait", "mail", "--empty"))
    assert list(left) == []


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (("RPUSH", "queues:mail", "{}"), "1 ready, 0 delayed, 0 reserved"),
        (("ZADD", "queues:mail:delayed", 9e9, "{}"), "0 ready, 1 delayed, 0 reserved"),
        (("ZADD", "queues:mail:reserved", 9e9, "{}"), "0 ready, 0 delayed, 1 reserved"),
    ],
)
def test_wait_ends_with_1_at_its_timeout(qd: Run, redis: Client, command: tuple[Any, ...], text: str) -> None:
    redis.call(*command)
    result = qd("wait", "mail", "--empty", "--timeout", "0.1s")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"mail is not empty after 0.1s: {text}\n")
    found = qd("wait", "mail", "--empty", "--timeout", "0.1s", "--json")
    assert (found.exit_code, json.loads(found.stdout)["empty"]) == (1, False)


def test_wait_without_a_condition_is_refused(qd: Run) -> None:
    result = qd("wait", "mail")
    assert (result.exit_code, result.stderr) == (2, "qd wait: name what to wait for: --empty; see `qd wait --help`\n")


@pytest.mark.parametrize("kind", ["sqlite", "beanstalkd"])
def test_wait_on_other_connections(
    qd: Run, configured: Callable[[str], None], redis: Client, request: pytest.FixtureRequest, kind: str
) -> None:
    elsewhere(qd, configured, request, kind)
    found = json.loads(qd("wait", "mail", "--empty", "--json").stdout)
    found.pop("waited_s")
    sizes = {"ready": 0, "delayed": 0, "reserved": 0}
    assert found == {"schema": 1, "connection": "other", "queue": "mail", "empty": True, **sizes}
    assert qd("dispatch", "x", "--queue", "mail").exit_code == 0
    assert qd("wait", "mail", "--empty", "--timeout", "0.1s").exit_code == 1
