"""qd move, qd promote and qd cancel of many: each job ends in exactly one place, on every driver that can list jobs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qd import Handle, Qd
from qd.cli import waiting as command
from qd.drivers.redis_driver import opened
from qd.payload.build import make
from qd.store import waiting
from qd.store.base import KeyspaceStore
from tests.cli.conftest import Run, document, done, elsewhere
from tests.support.payloads import push_raw
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.waiting import eventually


def payload(job: str = "mail.welcome", id: str = "", age: float = 0, now: float = 1e9) -> bytes:
    return make(job, b"{}", uuid=f"u-{id}", id=id, created_at=int(now - age))


@pytest.fixture
def now(redis: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's clock, as commands read it, is 1,000,000,000."""
    monkeypatch.setattr(KeyspaceStore, "now", lambda store: 1e9)


@pytest.fixture
def app(server: Server) -> Qd:
    return Qd(server.url)


def sent_with_key(app: Qd) -> Handle[Any]:
    @app.job("mail.welcome", queue="mail")
    def welcome() -> None: ...

    return welcome.using(delay=60, key="order:42").dispatch()


def ids(redis: Client, queue: str) -> str:
    return "".join(json.loads(text)["id"] for text in redis.call("LRANGE", f"queues:{queue}", 0, -1))


def test_ready_jobs_are_moved_in_their_order_with_a_token_each(qd: Run, redis: Client) -> None:
    push_raw(redis, payload(id="x"), queue="low")
    push_raw(redis, *[payload(id=each) for each in "abc"], queue="mail")
    assert done(qd("move", "mail", "--yes", "--to", "low")) == "3 jobs moved from mail to low\n"
    assert (ids(redis, "low"), redis.call("LLEN", "queues:low:notify")) == ("xabc", 4)
    assert not redis.text("KEYS", "queues:mail*")
    (event,) = [json.loads(line) for line in done(qd("events", "--json")).splitlines()]
    assert (event["what"], event["object"]) == (
        "move",
        {"queue": "mail", "to": "low", "connection": "redis", "jobs": 3},
    )


def test_a_moved_delayed_job_is_due_when_it_was(qd: Run, redis: Client) -> None:
    due = float(redis.text("TIME")[0]) + 60
    redis.call("ZADD", "queues:mail:delayed", due, payload(id="later"), 5, payload(id="overdue"))
    assert "2 jobs" in done(qd("move", "mail", "--yes", "--to", "low"))
    assert ids(redis, "low") == "overdue"
    found = redis.call("ZRANGE", "queues:low:delayed", 0, -1, "WITHSCORES")
    assert [float(score) - due for score in found[1::2]] == pytest.approx([0], abs=1)
    assert payload(id="later") in found


def test_a_limit_takes_the_next_in_line_first(qd: Run, redis: Client) -> None:
    redis.call("ZADD", "queues:mail:delayed", 9e9, payload(id="later"))
    push_raw(redis, payload(id="a"), payload(id="b"), queue="mail")
    done(qd("move", "mail", "--yes", "--to", "low", "--limit", "1"))
    assert (ids(redis, "low"), ids(redis, "mail")) == ("a", "b")
    done(qd("move", "mail", "--yes", "--to", "low", "--limit", "2"))
    assert redis.call("ZCARD", "queues:low:delayed") == 1


def test_equal_payloads_without_an_id_stay_two_jobs(qd: Run, redis: Client) -> None:
    text = b'{"job":"mail.welcome","data":{}}'
    for queue in ("mail", "low"):
        redis.call("ZADD", f"queues:{queue}:delayed", 9e9, text)
    done(qd("move", "mail", "--yes", "--to", "low"))
    both = redis.call("ZRANGE", "queues:low:delayed", 0, -1)
    assert [json.loads(each)["job"] for each in both] == ["mail.welcome"] * 2


@pytest.mark.usefixtures("now")
@pytest.mark.parametrize(
    ("words", "left", "gone"),
    [
        (["--job", "mail.*"], "b", "acd"), (["--job", "nothing"], "abcd", ""), (["--older-than", "1m"], "cd", "ab"),
        (["--older-than", "1m", "--job", "report"], "acd", "b"), (["--limit", "2"], "cd", "ab"),
        (["--limit", "1", "--job", "report"], "acd", "b"), (["--dry-run"], "abcd", ""),
    ],
)  # fmt: skip
def test_only_jobs_that_fit_are_moved_or_cancelled(
    qd: Run, redis: Client, words: list[str], left: str, gone: str
) -> None:
    jobs = [payload(id="a", age=90), payload("report", id="b", age=90), payload(id="c", age=5), payload(id="d")]
    push_raw(redis, *jobs, queue="mail")
    shown = document(qd("move", "mail", "--yes", "--to", "low", *words, "--json"))
    assert (ids(redis, "mail"), ids(redis, "low")) == (left, gone)
    assert (shown["done"], shown["dry_run"], shown["would"]) == (len(gone), "--dry-run" in words, shown["would"])
    if "--dry-run" in words:
        assert shown["would"] == 4
    redis.call("FLUSHALL")
    push_raw(redis, *jobs, queue="mail")
    if "--limit" not in words and words != ["--dry-run"]:
        assert qd("cancel", "--yes", "-q", "mail", *words).exit_code == 0
        assert ids(redis, "mail") == left


def test_keyed_jobs_and_what_is_no_job_stay_and_are_counted(qd: Run, app: Qd, redis: Client) -> None:
    keyed = sent_with_key(app)
    push_raw(redis, b"not JSON", b'{"job":"mail.welcome"}', queue="mail")
    result = qd("move", "mail", "--yes", "--to", "low", "--older-than", "0s")
    assert (result.exit_code, result.stdout) == (0, "0 jobs moved from mail to low\n")
    assert result.stderr.splitlines() == [
        "1 job: stay: they wait under a key, which belongs to their queue",
        "1 job: stay: they do not say when they were sent",
        "1 job: stay: they are no jobs",
    ]
    assert redis.call("LLEN", "queues:mail") == 2
    assert qd("promote", keyed.id).exit_code == 0


def test_suspects_are_moved_and_running_and_cancelled_jobs_are_not(qd: Run, redis: Client) -> None:
    cancelled = payload(id="c").replace(b'"attempts":0', b'"attempts":1,"rsv":"T1.3.7.c"')
    push_raw(redis, cancelled, payload(id="a"), queue="mail")
    redis.call("RPUSH", "queues:mail:suspects", payload(id="s"))
    redis.call("ZADD", "queues:mail:reserved", 9e9, payload(id="r"))
    assert "2 jobs moved" in done(qd("move", "mail", "--yes", "--to", "low"))
    assert (ids(redis, "low"), ids(redis, "mail")) == ("as", "c")
    assert redis.call("ZCARD", "queues:mail:reserved") == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--to", "mail"], "is the queue itself"), (["--to", "a:delayed"], "--to"), ([], "--to"),
    ],
)  # fmt: skip
def test_a_target_that_is_no_other_queue_is_refused(qd: Run, words: list[str], text: str) -> None:
    result = qd("move", "mail", *words)
    assert (result.exit_code, text in result.stderr) == (2, True)


def test_no_job_is_missed_while_workers_take_others(server: Server, redis: Client) -> None:
    push_raw(redis, *[payload(id=f"{n},") for n in range(900)], queue="mail")
    space, seen = opened(server.url, name="test", patience=5.0), set[bytes]()

    def act(job: waiting.Waiting, behind: int) -> bool:
        seen.add(job.text)
        if len(seen) % 2:
            redis.call("LPOP", "queues:mail")
        return False

    waiting.each(KeyspaceStore(space), "mail", "ready", act)
    assert set(redis.call("LRANGE", "queues:mail", 0, -1)) <= seen
    space.close()


def test_an_interrupted_move_has_each_job_in_one_place(qd: Run, redis: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    push_raw(redis, *[payload(id=each) for each in "abcdef"], queue="mail")
    step, calls = command.moved, list[int]()

    def interrupted(*words: Any) -> bool:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return step(*words)

    monkeypatch.setattr(command, "moved", interrupted)
    assert qd("move", "mail", "--yes", "--to", "low").exit_code == 130
    assert (ids(redis, "low"), ids(redis, "mail")) == ("abc", "def")
    assert json.loads(done(qd("events", "--json")))["object"]["jobs"] == 3
    monkeypatch.undo()


def test_a_killed_move_loses_and_doubles_no_job(folder: Path, configured: object, redis: Client) -> None:
    push_raw(redis, *[payload(id=f"{n},") for n in range(3000)], queue="mail")
    process = subprocess.Popen([sys.executable, "-m", "qd", "move", "mail", "--yes", "--to", "low"], cwd=folder)
    eventually(lambda: redis.call("LLEN", "queues:low") > 10)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 0 < redis.call("LLEN", "queues:mail") < 3000
    assert ids(redis, "low") + ids(redis, "mail") == "".join(f"{n}," for n in range(3000))


@pytest.mark.parametrize("kind", ["sqlite", "postgres_url", "mariadb_url", "cluster", "sentinel"])
def test_jobs_of_other_drivers_are_moved_promoted_and_cancelled(
    qd: Run, configured: Callable[[str], None], request: pytest.FixtureRequest, kind: str
) -> None:
    if kind.endswith("_url"):
        configured(f'[connections.other]\nurl = "{request.getfixturevalue(kind)}"\n[qd]\ndefault = "other"\n')
        assert qd("migrate", "-c", "other").exit_code == 0
    else:
        elsewhere(qd, configured, request, kind)
    for name, delay in (("mail.a", "0"), ("mail.b", "0"), ("mail.later", "1h"), ("report", "0")):
        assert qd("dispatch", name, "--queue", "mail", "--delay", delay).exit_code == 0
    assert "3 jobs" in done(qd("move", "mail", "--yes", "--to", "low", "--job", "mail.*"))
    assert names(qd, "low") == ["mail.a", "mail.b"]
    (later,) = document(qd("peek", "low", "--state", "delayed", "--json"))["jobs"]
    assert done(qd("promote", later["id"])) == f"{later['id']} is ready in low\n"
    assert names(qd, "low") == ["mail.a", "mail.b", "mail.later"]
    assert "1 job cancelled" in done(qd("cancel", "--yes", "-q", "low", "--job", "mail.b"))
    assert (names(qd, "low"), names(qd, "mail")) == (["mail.a", "mail.later"], ["report"])


def names(qd: Run, queue: str) -> list[str]:
    return [job["job"] for job in document(qd("peek", queue, "--json"))["jobs"]]


def test_many_cancelled_jobs_free_their_locks_and_leave_one_event(qd: Run, server: Server, redis: Client) -> None:
    app = Qd(server.url)

    @app.job("mail.once", unique="{n}", queue="mail")
    def once(n: int) -> None: ...

    for n in range(3):
        once.dispatch(n)
    assert len(redis.text("KEYS", "qd:unique:*")) == 3
    assert done(qd("cancel", "--yes", "-q", "mail", "--job", "mail.*")) == "3 jobs cancelled in mail\n"
    assert not redis.text("KEYS", "q*:*unique*") + redis.text("KEYS", "queues:mail*")
    (event,) = [json.loads(line) for line in done(qd("events", "--json")).splitlines()]
    assert event["object"] == {"queue": "mail", "connection": "redis", "job": "mail.*", "jobs": 3}


@pytest.mark.parametrize("words", [["--limit", "3"], ["x", "--dry-run"], ["--job", "a"], ["-q", "mail"]])
def test_cancel_needs_one_clear_choice(qd: Run, words: list[str]) -> None:
    assert qd("cancel", *words).exit_code == 2


def test_a_delayed_job_is_promoted_once(qd: Run, app: Qd, redis: Client) -> None:
    handle = app.queue("mail").push("mail.welcome", delay=60)
    assert document(qd("promote", handle.id, "--json")) == {
        "schema": 1, "id": handle.id, "connection": "redis", "queue": "mail", "promoted": True,
    }  # fmt: skip
    assert (ids(redis, "mail"), redis.call("ZCARD", "queues:mail:delayed")) == (handle.id, 0)
    again = qd("promote", handle.id)
    assert (again.exit_code, "no delayed job has the id" in again.stderr) == (1, True)
    (event,) = [json.loads(line) for line in done(qd("events", "--json")).splitlines()]
    assert (event["what"], event["object"]["id"]) == ("promote", handle.id)


def test_a_promoted_keyed_job_is_still_the_one_under_its_key(qd: Run, app: Qd, redis: Client) -> None:
    handle = sent_with_key(app)
    assert qd("promote", handle.id, "-q", "mail").exit_code == 0
    assert ids(redis, "mail") == handle.id
    assert done(qd("cancel", "--job", "mail.welcome", "--key", "order:42", "-q", "mail", "-c", "redis"))


@pytest.mark.parametrize("words", [["move", "mail", "--to", "low"], ["cancel", "-q", "mail", "--job", "mail.*"]])
def test_jobs_are_only_taken_away_after_a_confirmation(
    qd: Run, redis: Client, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    push_raw(redis, payload(id="a"), queue="mail")
    result = qd(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "nothing was changed, because no --yes was given" in result.stderr
    assert ids(redis, "mail") == "a"
    assert qd(*words, typed="low\n").exit_code == 2
    assert ids(redis, "mail") == "a"
    assert qd(*words, typed="mail\n").exit_code == 0
    assert ids(redis, "mail") == ""
