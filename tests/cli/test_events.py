"""`qd events`: which command leaves which event, what is printed, and that a failure to record changes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from qd.cli import events
from qd.options.drivers import DRIVERS
from qd.store import audit
from tests.cli.conftest import Run, done
from tests.support.payloads import push, push_laravel, store_failed_job
from tests.support.project import MakeProject
from tests.support.redis import Client
from tests.support.servers.cluster import Cluster
from tests.support.servers.redis import Server

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "cli" / "qd-events.md").read_text()


@pytest.fixture(autouse=True)
def actor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QD_ACTOR", "ana")


def recorded(qd: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done(qd("events", "--json")).splitlines()]


COMMANDS: list[tuple[str, list[tuple[str, dict[str, Any]]]]] = [
    ("restart --rolling", [("restart", {"rolling": "yes"})]),
    (
        "pause mail web --for 30m --reason upgrade",
        [("pause", {"queue": name, "connection": "redis", "for": "30m"}) for name in ("mail", "web")],
    ),
    ("resume", [("resume", {"queue": "held", "connection": "redis"})]),
    ("down --allow a,b --reason upgrade", [("down", {"allow": "a, b"})]),
    ("clear default --yes", [("clear", {"queue": "default", "connection": "redis", "jobs": 2})]),
    ("cancel id-a", [("cancel", {"id": "id-a", "connection": "redis"})]),
    ("failed retry --job fails", [("failed retry", {"connection": "redis", "job": "fails", "jobs": 1})]),
    ("failed forget --all --yes", [("failed forget", {"connection": "redis", "jobs": 1})]),
    ("schedule pause --reason upgrade", [("schedule pause", {"entry": "*"})]),
    ("up", []),
    ("clear empty --yes", []),
    ("cancel unknown", []),
    ("failed retry --all --dry-run", []),
    ("schedule resume", []),
]


@pytest.mark.parametrize(("words", "expected"), COMMANDS, ids=[words for words, _ in COMMANDS])
def test_a_command_leaves_an_event_for_what_it_changed(
    qd: Run, redis: Client, words: str, expected: list[tuple[str, dict[str, Any]]]
) -> None:
    redis.call("SET", "queues:held:paused", "{}")
    push_laravel(redis, "a")
    push(redis, "b")
    store_failed_job(redis, "f1", queue="default", job="fails")
    qd(*words.split())
    found = recorded(qd)
    assert [(one["what"], one["object"]) for one in found] == expected
    assert {one["reason"] for one in found} <= {"upgrade" if "--reason" in words else ""}
    assert {one["actor"] for one in found} <= {"ana"}


def test_the_actor_is_user_and_host_without_the_variable(
    qd: Run, redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QD_ACTOR")
    done(qd("restart"))
    assert re.fullmatch(r"[^@]+@[^@]+", recorded(qd)[0]["actor"])


def test_a_refused_event_does_not_fail_the_command(qd: Run, redis: Client) -> None:
    redis.call("SET", "qd:events", "of another program")
    result = qd("restart")
    assert (result.exit_code, result.stdout.splitlines()[0]) == (0, "restart requested: no master reports")
    assert result.stderr.startswith("qd: done, but `qd events` does not show it: ")
    assert redis.call("EXISTS", "qd:restart") == 1


def test_an_unreachable_control_connection_does_not_fail_the_command(
    qd: Run, redis: Client, configured: Callable[[str], None], tmp_path: Path
) -> None:
    configured(f'[connections.away]\nurl = "unix://{tmp_path}/none.sock"\n[qd]\ndefault = "redis"\ncontrol = "away"\n')
    push(redis, "a")
    result = qd("clear", "default", "--yes")
    assert (result.exit_code, result.stdout) == (0, "default: 1 deleted\n")
    assert (result.stderr.count("\n"), "`qd events` does not show it" in result.stderr) == (1, True)
    assert qd("events").exit_code == 69


def test_limit_and_since_choose_the_newest(qd: Run, redis: Client) -> None:
    for word in ("down", "up"):
        done(qd(word))
    assert [line.split()[3] for line in done(qd("events", "--limit", "1")).splitlines()] == ["up"]
    assert done(qd("events", "--limit", "0")) == ""
    assert len(done(qd("events", "--since", "1m")).splitlines()) == 2
    assert done(qd("events", "--since", "2999-01-01")) == ""


def test_follow_prints_what_is_new_also_after_an_outage_or_a_deleted_list(
    qd: Run, redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(qd("down"))
    steps: list[Callable[[], object]] = [
        lambda: qd("up"),
        lambda: None,
        lambda: [redis.call("CLIENT", "KILL", "ID", id) for id in connections(redis)],
        lambda: (redis.call("DEL", "qd:events"), qd("restart")),
    ]

    def sleep(_: float) -> None:
        if not steps:
            raise KeyboardInterrupt
        steps.pop(0)()

    monkeypatch.setattr("qd.cli.events.time.sleep", sleep)
    result = qd("events", "--follow")
    assert result.exit_code == 130
    assert [line.split()[3] for line in result.stdout.splitlines()] == ["down", "up", "restart"]


def connections(redis: Client) -> list[str]:
    """The id of the connection that follows."""
    found: list[str] = re.findall(r"^id=(\d+) .* cmd=(?:lindex|lrange) ", redis.text("CLIENT", "LIST"), re.MULTILINE)
    assert found
    return found


def test_control_characters_and_secrets_are_not_printed(qd: Run, redis: Client, server: Server) -> None:
    done(qd("down", "--reason", "\x1b[31mred redis://:Secret77@h/0"))
    assert "\x1b" not in done(qd("events"))
    assert b"Secret77" not in redis.call("LINDEX", "qd:events", 0)


@pytest.mark.xdist_group("cluster")
def test_a_cluster_keeps_the_events(cluster: Cluster, project: MakeProject) -> None:
    shop = project(url=cluster.url)
    for _ in range(2):
        assert shop.qd("up").returncode == shop.qd("down").returncode == 0
    found = [json.loads(line) for line in shop.qd("events", "--json").stdout.splitlines()]
    assert [(event["what"], event["count"]) for event in found] == [("up", 1), ("down", 2)]


# -- docs/reference/cli/qd-events.md


def test_the_events_on_the_page_are_printed_so(qd: Run, redis: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qd.cli.events.audit.read", lambda *_, **__: [])
    block = [line[4:] for line in PAGE.splitlines() if re.match(r"    \d{4}-", line)]
    entries = list[audit.Entry]()
    for number, line in enumerate(block):
        at, actor, text = re.fullmatch(r"(\S+ \S+)  (\S+) +(.*)", line).groups()  # type: ignore[union-attr]
        what, _, rest = re.fullmatch(r"(([a-z]+ ?)+)(?= \w+=)(.*)", text).groups()  # type: ignore[union-attr]
        times = re.search(r" x (\d+) since (\S+)$", rest)
        words = {key: plain or full for key, full, plain in re.findall(r'(\w+)=(?:"([^"]*)"|(\S+))', rest)}
        moment = datetime.fromisoformat(at).timestamp()
        first = datetime.fromisoformat(f"{at[:10]} {times[2]}").timestamp() if times else moment
        reason = words.pop("reason", "")
        entries.append(audit.Entry(number, first, moment, int(times[1]) if times else 1, actor, what, words, reason))
    monkeypatch.setattr("qd.cli.events.audit.read", lambda *_, **__: entries)
    assert done(qd("events", "--since", "2h")).splitlines() == block
    (document,) = [json.loads(line) for line in PAGE.splitlines() if line.startswith('    {"schema"')]
    (printed,) = [one for one in map(json.loads, done(qd("events", "--json")).splitlines()) if one["count"] > 1]
    assert list(printed) == list(document)
    assert {**printed, **{key: document[key] for key in ("number", "at", "first_at")}} == document


def test_the_page_has_every_event(qd: Run) -> None:
    rows = re.findall(r"^\| (`.*?`) \| .* \| .* \|$", PAGE.partition("| event |")[2], re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    source = Path(events.__file__).parents[1]
    texts = [path.read_text() for path in [*source.glob("cli/**/*.py"), source / "keeper" / "report.py"]]
    written = {name for text in texts for name in re.findall(r'context\.record\(\s*[\w.()]+, "([\w ]+)"', text)}
    written |= {"failed retry", "failed forget"}
    written |= set(re.findall(r'"((?:master|new|crash|lease) \w+)"', texts[-1]))
    assert len(written) > 12
    assert written <= listed


@pytest.mark.parametrize("driver", [*DRIVERS, "sentinel", "cluster"])
def test_the_page_says_on_which_connections_it_works(
    qd: Run, configured: Callable[[str], None], server: Server, driver: str
) -> None:
    (row,) = [line for line in PAGE.splitlines() if line.startswith("| `") and re.search(f"`{driver}`.*works", line)]
    if "else refused" in row:
        url = {"beanstalkd": 'url = "beanstalkd://h"', "sqs": 'url = "sqs://eu-west-1"'}.get(
            driver, f'driver = "{driver}"'
        )
        configured(f'[connections.x]\n{url}\n[qd]\ndefault = "x"\ncontrol = "x"\n')
        result = qd("events")
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (78, "", 1)
        configured(f'[connections.x]\n{url}\n[qd]\ndefault = "x"\ncontrol = "redis"\n')
        assert done(qd("events")) == ""
