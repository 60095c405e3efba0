"""qd peek: the jobs that wait are shown and counted, in short reads and only at the ends of a long queue."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import pytest

from qd.cli import main
from qd.drivers.redis_driver import opened
from qd.payload.build import make
from qd.redaction import register_secrets
from qd.store import waiting
from qd.store.base import KeyspaceStore
from tests.cli.conftest import Run, document, done
from tests.support.payloads import push_raw
from tests.support.redis import Client
from tests.support.servers.beanstalkd import Beanstalkd
from tests.support.servers.redis import Server

CLI = Path(main.__file__).resolve().parents[3] / "docs" / "reference" / "cli"


def payload(
    job: str = "mail.welcome", id: str = "", tags: tuple[str, ...] = (), age: float = 0, **data: object
) -> bytes:
    raw = make(job, json.dumps(data, separators=(",", ":")).encode(), uuid=f"u-{id}", id=id, created_at=int(1e9 - age))
    return raw[:-1] + b',"tags":' + json.dumps(tags).encode() + b"}" if tags else raw


@pytest.fixture
def now(redis: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's clock, as commands read it, is 1,000,000,000."""
    monkeypatch.setattr(KeyspaceStore, "now", lambda store: 1e9)


@pytest.mark.usefixtures("now")
def test_the_page_shows_what_it_prints(qd: Run, redis: Client) -> None:
    push_raw(
        redis,
        payload(id="mQ7tZ1kq9gL2vXw0", tags=("eu",), age=192, to="ada@example.org"),
        payload("mail.digest", id="T0b8nEwR5uYc3aJd", age=190, week=47),
        payload(id="p4VfHs6iKx1oGz2L", tags=("eu", "trial"), age=12, to="bob@example.org"),
        queue="mail",
    )
    shown = qd("peek", "mail", "--limit", "2")
    assert shown.exit_code == 0
    assert page("qd peek mail --limit 2") == shown.output
    assert shown.stderr == "2 of 3 shown\n"
    counted = qd("peek", "mail", "--count-by", "tag")
    assert page("qd peek mail --count-by tag") == counted.output
    assert counted.stderr == "3 of 3 looked at\n"


def test_a_queue_without_ready_jobs_says_where_its_delayed_ones_are(qd: Run, redis: Client) -> None:
    redis.call("ZADD", "queues:mail:delayed", 2e9, payload(id="a"))
    assert qd("peek", "mail").stderr == "no ready job in mail; 1 delayed: qd peek mail --state delayed\n"
    assert "1 delayed" not in qd("peek", "mail", "--state", "reserved").stderr


def page(command: str) -> str:
    """The output of this command on its page."""
    text = (CLI / f"qd-{command.split()[1]}.md").read_text()
    match = re.search(rf"^    \$ {re.escape(command)}\n((?:    \S.*\n)+)", text, re.MULTILINE)
    assert match, command
    return match[1].replace("\n    ", "\n").removeprefix("    ").partition("$ ")[0]


@pytest.mark.usefixtures("now")
def test_jobs_in_json_have_their_arguments_and_utc_times(qd: Run, redis: Client) -> None:
    push_raw(redis, payload(id="a", tags=("eu",), age=60, to="ada", n=[1, None]), b"not JSON", queue="mail")
    found = document(qd("peek", "mail", "--json"))
    jobs = found.pop("jobs")
    assert found == {
        "schema": 1, "read_at": "2001-09-09T01:46:40.000Z", "connection": "redis", "queue": "mail", "state": "ready",
        "total": 2, "looked": 2,
    }  # fmt: skip
    assert jobs[0] == {
        "id": "a", "uuid": "u-a", "job": "mail.welcome", "arguments": {"to": "ada", "n": [1, None]}, "tags": ["eu"],
        "attempts": 0, "created_at": "2001-09-09T01:45:40.000Z",
    }  # fmt: skip
    assert jobs[1] == dict.fromkeys(("id", "uuid", "job", "arguments", "attempts", "created_at"), None) | {"tags": []}


@pytest.mark.usefixtures("now")
def test_delayed_and_reserved_jobs_are_shown_with_their_times(qd: Run, redis: Client) -> None:
    redis.call("ZADD", "queues:mail:delayed", 1e9 + 90, payload(id="later"), 1e9 + 30, payload(id="soon"))
    redis.call("ZADD", "queues:mail:reserved", 1e9 + 60, payload(id="runs"))
    delayed = done(qd("peek", "mail", "--state", "delayed")).splitlines()
    assert delayed[0].endswith("due in")
    assert [(line.split()[0], line.rpartition("  ")[2]) for line in delayed[1:]] == [
        ("soon", "30s"),
        ("later", "1m 30s"),
    ]
    assert "lease ends in" in done(qd("peek", "mail", "--state", "reserved"))
    (job,) = document(qd("peek", "mail", "--state", "reserved", "--json"))["jobs"]
    assert (job["id"], job["lease_ends_at"]) == ("runs", "2001-09-09T01:47:40.000Z")
    assert (
        document(qd("peek", "mail", "--state", "delayed", "--json"))["jobs"][0]["due_at"] == "2001-09-09T01:47:10.000Z"
    )


def test_suspects_are_among_the_ready_jobs(qd: Run, redis: Client) -> None:
    push_raw(redis, payload(id="a"), queue="mail")
    redis.call("RPUSH", "queues:mail:suspects", payload(id="b"))
    found = document(qd("peek", "mail", "--json"))
    assert ([job["id"] for job in found["jobs"]], found["total"]) == (["a", "b"], 2)


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (["--job", "mail.*"], "ac"), (["--job", "mail"], ""), (["--tag", "eu"], "ab"), (["--tag", "e"], ""),
        (["--job", "mail.*", "--tag", "eu"], "a"), (["--limit", "1"], "a"), (["--job", "report", "--limit", "1"], "b"),
    ],
)  # fmt: skip
def test_only_jobs_that_match_are_shown(qd: Run, redis: Client, words: list[str], ids: str) -> None:
    push_raw(
        redis,
        payload(id="a", tags=("eu",)),
        payload("report", id="b", tags=("eu", "us")),
        payload(id="c"),
        queue="mail",
    )
    assert "".join(job["id"] for job in document(qd("peek", "mail", *words, "--json"))["jobs"]) == ids


def test_an_empty_queue_and_an_empty_result_are_told_apart(qd: Run, redis: Client) -> None:
    redis.call("SET", "queues:mail:paused", "{}")
    assert qd("peek", "mail").stderr == "no ready job in mail\n"
    assert qd("peek", "mail", "--count-by", "job").stderr == "no ready job in mail\n"
    push_raw(redis, payload(), queue="mail")
    assert qd("peek", "mail", "--job", "x").stderr == "no ready job matches; 1 of 1 looked at\n"


def test_a_job_counts_once_for_each_of_its_tags(qd: Run, redis: Client) -> None:
    push_raw(redis, payload(tags=("eu", "us")), payload(tags=("eu",)), payload(), b"{", queue="mail")
    tags = document(qd("peek", "mail", "--count-by", "tag", "--json"))["counts"]
    assert sorted((row["count"], str(row["tag"])) for row in tags) == [(1, "us"), (2, "None"), (2, "eu")]
    jobs = document(qd("peek", "mail", "--count-by", "job", "--json"))["counts"]
    assert jobs == [{"job": "mail.welcome", "count": 3}, {"job": None, "count": 1}]


@pytest.mark.parametrize("state", ["ready", "delayed"])
def test_of_a_long_queue_only_the_ends_are_read(
    qd: Run, redis: Client, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr(waiting, "EDGE", 5)
    for n in range(14):
        raw = payload(f"job-{n:02}", id=str(n))
        if state == "ready":
            push_raw(redis, raw, queue="mail")
        else:
            redis.call("ZADD", "queues:mail:delayed", n, raw)
    counted = qd("peek", "mail", "--state", state, "--count-by", "job")
    named = [line.split()[0] for line in counted.stdout.splitlines()[1:]]
    assert sorted(named) == [f"job-{n:02}" for n in (0, 1, 2, 3, 4, 9, 10, 11, 12, 13)]
    assert counted.stderr == "10 of 14 looked at\n"


def test_at_most_10000_jobs_are_read(qd: Run, redis: Client) -> None:
    some = [payload(id=str(n)) for n in range(1000)]
    for _ in range(12):
        redis.call("RPUSH", "queues:mail", *some)
    assert qd("peek", "mail", "--count-by", "job").stderr == "10,000 of 12,000 looked at\n"


def test_no_read_has_more_than_200_payloads_or_256_kb(
    redis: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = opened(server.url, name="test", patience=5.0)
    push_raw(redis, *[payload(id=str(n)) for n in range(900)], queue="small")
    push_raw(redis, *[payload(id=str(n), text="x" * 50_000) for n in range(40)], queue="large")
    sizes: list[tuple[int, int]] = []
    call = space.call

    def recorded(*words: bytes | str | float) -> object:
        reply = call(*words)
        if words[0] == "LRANGE":
            sizes.append((len(reply), sum(map(len, reply))))
        return reply

    monkeypatch.setattr(space, "call", recorded)
    store = KeyspaceStore(space)
    assert len(list(waiting.waiting(store, "small", "ready"))) == 900
    assert max(count for count, _ in sizes) == 200
    sizes.clear()
    assert len(list(waiting.waiting(store, "large", "ready"))) == 40
    assert max(size for _, size in sizes[1:]) <= 256 << 10
    space.close()


def test_names_and_arguments_cannot_write_to_the_terminal_or_show_secrets(qd: Run, redis: Client) -> None:
    register_secrets(["hunter2-secret"])
    odd = "a\x1b[2J\u202eb"
    push_raw(
        redis, payload(odd, id="\x07", tags=("\x9b",), to=odd, key="hunter2-secret", url="redis://u:pw@h"), queue="mail"
    )
    for words in ([], ["--count-by", "job"], ["--count-by", "tag"]):
        output = qd("peek", "mail", *words).output
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", output)
    assert "a\\x1b[2J\\u202eb" in done(qd("peek", "mail"))
    for words in ([], ["--json"]):
        output = done(qd("peek", "mail", *words))
        assert "hunter2" not in output
        assert "u:pw@" not in output


def test_a_long_text_of_another_program_is_cut_with_its_length(qd: Run, redis: Client) -> None:
    push_raw(
        redis, payload("n" * 3_000_000, id="i" * 3_000_000, tags=("t" * 3_000_000,), to="a" * 3_000_000), queue="mail"
    )
    for words in ([], ["--count-by", "job"], ["--count-by", "tag"]):
        output = qd("peek", "mail", *words).stdout
        assert "... (3000000 characters)" in output
        assert len(output) < 5_000
    assert document(qd("peek", "mail", "--json"))["jobs"][0]["job"] == "n" * 3_000_000


@pytest.mark.parametrize(
    "words", [("peek", "mail"), ("clear", "mail", "--yes"), ("dispatch", "mail.welcome", "--queue", "mail")]
)
def test_a_key_of_another_type_is_one_clear_error(qd: Run, redis: Client, words: Sequence[str]) -> None:
    redis.call("SET", "queues:mail", "x")
    result = qd(*words)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "qd: queues:mail is a string and not a list; delete or rename it, or change `prefix`\n"


# -- other connections


@pytest.mark.parametrize("kind", ["sqlite", "postgres_url", "mariadb_url"])
def test_the_jobs_of_a_database_are_shown(
    qd: Run,
    configured: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    kind: str,
) -> None:
    url = "sqlite:///jobs.sqlite" if kind == "sqlite" else request.getfixturevalue(kind)
    configured(f'[connections.db]\nurl = "{url}"\n[qd]\ndefault = "db"\n')
    monkeypatch.setattr(waiting, "EDGE", 5)
    assert qd("migrate", "-c", "db").exit_code == 0
    assert qd("dispatch", "mail.welcome", "to=ada", "--queue", "mail", "--count", "12").exit_code == 0
    assert qd("dispatch", "mail.later", "--queue", "mail", "--delay", "1h").exit_code == 0
    found = qd("peek", "mail", "--count-by", "job", "--json")
    counted = json.loads(found.stdout)
    assert (counted["connection"], counted["total"], counted["looked"]) == ("db", 12, 10)
    assert counted["counts"] == [{"job": "mail.welcome", "count": 10}]
    assert document(qd("peek", "mail", "--json"))["jobs"][0]["arguments"] == {"to": "ada"}
    due_at = document(qd("peek", "mail", "--state", "delayed", "--json"))["jobs"][0]["due_at"]
    assert 3000 < datetime.fromisoformat(due_at).timestamp() - time.time() < 3700


def test_a_broker_that_cannot_list_jobs_refuses_with_one_line(
    qd: Run, configured: Callable[[str], None], beanstalkd: Beanstalkd
) -> None:
    configured(
        f'[connections.tubes]\nurl = "{beanstalkd.url}"\n[connections.sqs]\nurl = "sqs://eu-west-1"\n'
        '[connections.none]\ndriver = "null"\n[qd]\ncontrol = "redis"\n'
    )
    for name in ("tubes", "sqs", "none"):
        result = qd("peek", "mail", "-c", name)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
        assert f"connection '{name}' cannot list the jobs of a queue" in result.stderr


@pytest.mark.parametrize("score", ["inf", "1e300"])
def test_a_job_that_is_never_due_is_shown(qd: Run, redis: Client, score: str) -> None:
    redis.call("ZADD", "queues:mail:delayed", score, make("mail.welcome", b"{}", id="never1", created_at=1))
    for words in (("peek", "mail", "--state", "delayed"), ("why", "never1"), ("job", "never1")):
        text = done(qd(*words))
        assert "never1" in text or "delayed" in text
        assert len(text) < 1000


def test_a_name_that_is_not_utf_8_is_one_line(qd: Run) -> None:
    for words in (("peek", "\udcff"), ("why", "\udcff\udcfe"), ("pause", "\udcff")):
        result = qd(*words)
        assert (result.exit_code, "is not UTF-8" in result.stderr) == (2, True), result.output
