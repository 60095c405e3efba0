"""qd job and qd cancel: a job is found in every state, and cancelled."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from qd import Qd
from tests.cli.conftest import Run, document, done, report
from tests.support.redis import Client
from tests.support.servers.redis import Server, free_port


@pytest.fixture
def app(server: Server) -> Qd:
    return Qd(server.url)


def running(redis: Client, id: str) -> None:
    """Make the job look reserved by worker 3 of master T1."""
    (payload,) = redis.call("LRANGE", "queues:mail", 0, -1)
    held = payload.replace(b'"attempts":0', b'"attempts":1,"rsv":"T1.3.7.1"')
    redis.call("DEL", "queues:mail", "queues:mail:notify")
    redis.call("ZADD", "queues:mail:reserved", 9e9, held)
    redis.call("HSET", "queues:mail:owners", "T1/3", held)
    assert id.encode() in held


def test_a_ready_job_is_shown_with_the_number_of_jobs_ahead(qd: Run, app: Qd, redis: Client) -> None:
    first, second, third = [app.queue("mail").push("mail.welcome", {"n": n}) for n in range(3)]
    assert "where     ready, 2 jobs ahead of it\n" in done(qd("job", third.id))
    shown = document(qd("job", second.id, "--json"))
    assert (shown["status"], shown["queue"], shown["job"], shown["ahead"]) == ("ready", "mail", "mail.welcome", 1)
    assert shown["worker"] is shown["failed"] is shown["result"] is None
    assert document(qd("job", first.id, "--json"))["ahead"] == 0


def test_a_delayed_job_is_shown_with_its_due_time(qd: Run, app: Qd) -> None:
    handle = app.queue("mail").push("mail.welcome", delay=300)
    assert "where     due in 4m 5" in done(qd("job", handle.id))
    assert document(qd("job", handle.id, "--json"))["due_at"] > 1e9


@pytest.mark.usefixtures("still")
def test_a_running_job_is_shown_with_its_worker(qd: Run, app: Qd, redis: Client) -> None:
    handle = app.queue("mail").push("mail.welcome")
    running(redis, handle.id)
    assert "where     reserved by a worker that does not report" in done(qd("job", handle.id))
    report(redis, workers=[{"slot": 3, "pid": 415, "state": "busy", "since": float(redis.text("TIME")[0]) - 12}])
    assert "where     runs on mail@app-1, pid 415 for 12" in done(qd("job", handle.id))
    seen = float(redis.text("TIME")[0]) - 8
    report(redis, workers=[{"slot": 3, "pid": 415, "state": "busy"}], seen_at=seen)
    for command in ("job", "why"):
        assert re.search(
            r"runs on mail@app-1, pid 415, which has not reported for \d+\.\ds", done(qd(command, handle.id))
        )
    report(redis, pool="", workers=[{"slot": 3, "pid": 415, "state": "busy"}])
    assert "where     runs on default@app-1, pid 415\n" in done(qd("job", handle.id))
    shown = document(qd("job", handle.id, "--json"))
    assert (shown["status"], shown["worker"]["host"], shown["worker"]["slot"]) == ("running", "app-1", 3)


def test_a_failed_job_is_shown_with_its_error(qd: Run, app: Qd, redis: Client) -> None:
    handle = app.queue("mail").push("mail.welcome")
    payload = redis.call("LPOP", "queues:mail")
    record = {"id": "T1.3.7.1", "error": "ValueError", "reason": "out of paper"}
    redis.call("HSET", "queues:mail:failed", "T1.3.7.1", json.dumps(record).encode() + b"\n" + payload)
    redis.call("ZADD", "queues:mail:failed_at", 1, "T1.3.7.1")
    output = done(qd("job", handle.id))
    assert f"in the failed store: ValueError: out of paper (qd failed show {handle.id})" in output
    shown = document(qd("job", handle.id, "--json"))
    assert shown["failed"] == {**record, "id": handle.id, "record": "T1.3.7.1"}


def test_a_finished_job_is_shown_from_its_record(qd: Run, redis: Client) -> None:
    redis.call(
        "HSET", "qd:job:x1", "status", "done", "value", '{"pages":12}', "at", redis.text("TIME")[0], "progress", "40"
    )
    output = done(qd("job", "x1"))
    assert "status    done\n" in output
    assert 'result    {"pages":12}\n' in output
    assert "progress  100 %\n" in output
    assert document(qd("job", "x1", "--json"))["progress"] == 100
    assert document(qd("job", "x1", "--json"))["result"] == {"pages": 12}
    redis.call("HSET", "qd:job:x1", "value", "!JSON cannot carry it")
    assert document(qd("job", "x1", "--json"))["result"] is None


@pytest.fixture
def two(server: Server, configured: Callable[[str], None]) -> Qd:
    """An app with a second connection: the same server under another prefix."""
    configured(f'[connections.two]\nurl = "{server.url}"\nprefix = "two:"\n')
    return Qd()


def test_a_job_is_searched_on_every_connection(qd: Run, two: Qd, redis: Client) -> None:
    handle = two.queue("mail", "two").push("mail.welcome")
    assert document(qd("job", handle.id, "--json"))["connection"] == "two"
    assert qd("job", handle.id, "-c", "redis").exit_code == qd("cancel", handle.id, "-c", "redis").exit_code == 1
    shown = document(qd("cancel", handle.id, "--json"))
    assert (shown["connection"], shown["was"], shown["cancelled"]) == ("two", "ready", True)
    assert redis.call("LLEN", "two:queues:mail") == 0
    assert qd("cancel", handle.id).exit_code == qd("job", handle.id).exit_code == 1


@pytest.mark.parametrize("command", ["job", "cancel"])
def test_an_unreachable_connection_is_reported(command: str, qd: Run, server: Server, folder: Path) -> None:
    away = f'[connections.redis]\nurl = "redis://127.0.0.1:{free_port()}/0"\n'
    (folder / "qd.toml").write_text(f'{away}[connections.two]\nurl = "{server.url}"\n')
    handle = Qd(server.url).queue("mail").push("mail.welcome")
    found = qd(command, handle.id)
    assert (found.exit_code, handle.id in found.stdout) == (0, True)
    assert "connection redis was not searched: " in found.stderr
    nowhere = qd(command, "nobody")
    assert (nowhere.exit_code, nowhere.stdout) == (69, "")
    assert nowhere.stderr.count("was not searched") == 1
    assert qd(command, "nobody", "-c", "two").exit_code == 1


def test_an_unknown_job_exits_with_1(qd: Run) -> None:
    result = qd("job", "nobody")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "unknown job 'nobody'" in result.stderr
    assert json.loads(qd("job", "nobody", "--json").stdout)["status"] == "unknown"


def test_a_waiting_job_is_cancelled_by_id(qd: Run, app: Qd, redis: Client) -> None:
    now, later = app.queue("mail").push("mail.welcome"), app.queue("mail").push("mail.welcome", delay=60)
    assert done(qd("cancel", now.id)) == f"cancelled {now.id}\n"
    assert document(qd("cancel", later.id, "--json"))["was"] == "delayed"
    assert not redis.text("KEYS", "queues:mail*")
    result = qd("cancel", now.id)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nothing to cancel" in result.stderr


def test_cancelling_a_running_job_notifies_its_worker(qd: Run, app: Qd, redis: Client) -> None:
    handle = app.queue("mail").push("mail.welcome")
    running(redis, handle.id)
    assert "its worker ends it" in done(qd("cancel", handle.id))
    assert redis.text("HKEYS", "qd:cancel") == ["T1.3.7"]


@pytest.mark.parametrize("words", [[], ["x", "--job", "a", "--key", "b"], ["--job", "a"], ["x", "--key", "b"]])
def test_cancel_rejects_incomplete_arguments(qd: Run, words: list[str]) -> None:
    result = qd("cancel", *words)
    assert result.exit_code == 2
    assert "give the ID of a job, both --job NAME and --key KEY" in result.stderr
