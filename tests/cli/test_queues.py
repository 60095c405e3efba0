"""qd queues: sizes of queues, and who paused them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qd.cli import main
from tests.cli.conftest import Run, document, done, elsewhere, report
from tests.support.redis import Client

PAGE = (Path(main.__file__).resolve().parents[3] / "docs" / "reference" / "cli" / "qd-queues.md").read_text()


@pytest.fixture
def two(redis: Client, still: None) -> float:
    """mail has two workers, reports is paused. Returns the server's time."""
    now = float(redis.text("TIME")[0])
    jobs = [f'{{"job":"x","createdAt":{int(now) - 192}}}'.encode()] * 1204
    redis.call("RPUSH", "queues:mail", *jobs)
    redis.call("RPUSH", "queues:reports", *[f'{{"job":"x","createdAt":{int(now) - 2463}}}'] * 12)
    redis.call("ZADD", "queues:mail:delayed", *[word for n in range(17) for word in (now + 60, f"later-{n}")])
    redis.call("ZADD", "queues:mail:reserved", now + 60, "runs")
    redis.call("HSET", "queues:mail:failed", *[word for n in range(6) for word in (f"f{n}", "x")])
    note = {"by": "ana@app-1", "reason": "db upgrade", "at": now - 2400, "until": None}
    redis.call("SET", "queues:reports:paused", json.dumps(note))
    for back in range(6):
        minute, at = int(now // 60) - back, now - 60 * back
        redis.call("HSET", f"qd:{{stats}}:m:{minute}", "redis\x1fmail\x1fx", "1 0:180 1:180" if back < 5 else "1")
        redis.call("HSET", f"qd:{{stats}}:q:{minute}", "redis\x1fmail", f"2 {1222 + 120 * back} 0 0 6 12 {at}")
    report(redis, workers=[{"slot": n, "pid": 414 + n, "state": "waiting"} for n in range(2)])
    return now


@pytest.mark.usefixtures("two")
def test_the_page_shows_what_queues_prints(qd: Run, configured: Callable[[str], None]) -> None:
    configured('queue = "mail"\n')
    text = "".join(f"    {line}\n" for line in done(qd("queues")).splitlines())
    assert f"    $ qd queues\n{text}\n" in PAGE


def test_queues_in_json_have_utc_times(qd: Run, two: float) -> None:
    found = document(qd("queues", "--json"))
    assert (found["schema"], found["away"], found["read_at"][-1]) == (1, {}, "Z")
    queues = {queue["name"]: queue for queue in found["queues"]}
    assert {name: queue["ready"] for name, queue in queues.items()} == {"mail": 1204, "reports": 12, "default": 0}
    assert queues["mail"]["oldest_age_s"] == 192
    paused = queues["reports"]["paused"]
    assert paused["paused_at"] == time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(two - 2400))
    assert (paused["by"], paused["reason"], paused["until_at"]) == ("ana@app-1", "db upgrade", None)


@pytest.mark.usefixtures("two")
def test_a_name_shows_that_queue_only(qd: Run) -> None:
    assert [line.split()[0] for line in done(qd("queues", "reports")).splitlines()] == ["queue", "reports"]
    assert [queue["name"] for queue in document(qd("queues", "default", "--json"))["queues"]] == ["default"]


@pytest.mark.usefixtures("two")
def test_an_unknown_queue_is_reported_with_the_nearest_name(qd: Run) -> None:
    result = qd("queues", "mial")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert "unknown queue 'mial' (did you mean 'mail'?)" in result.stderr
    assert qd("queues", "mial", "--json").exit_code == 1


def test_a_reason_cannot_write_to_the_terminal(qd: Run, redis: Client) -> None:
    redis.call("SET", "queues:a\x1b[2J:paused", json.dumps({"by": "\u202e", "reason": "\x1b]0;x\x07", "at": 1}))
    redis.call("RPUSH", "queues:a\x1b[2J", "{}")
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", done(qd("queues")))


def test_an_unreachable_connection_is_exit_69(qd: Run, configured: Callable[[str], None]) -> None:
    configured('[connections.x]\nurl = "unix:///nowhere.sock"\n[qd]\ncontrol = "redis"\ndefault = "x"\n')
    result = qd("queues")
    assert (result.exit_code, result.stderr.count("\n")) == (69, 1)


@pytest.mark.parametrize("kind", ["sqlite", "beanstalkd"])
def test_queues_of_other_connections_are_shown(
    qd: Run, configured: Callable[[str], None], redis: Client, request: pytest.FixtureRequest, kind: str
) -> None:
    elsewhere(qd, configured, request, kind)
    assert qd("dispatch", "x", "--queue", "mail", "--count", "3").exit_code == 0
    (queue,) = document(qd("queues", "mail", "--json"))["queues"]
    assert (queue["connection"], queue["ready"]) == ("other", 3)
