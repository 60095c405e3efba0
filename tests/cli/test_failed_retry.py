"""qd failed retry and forget."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from qd.cli import failed
from qd.drivers.redis.connection import RedisConnection
from qd.payload.build import make, relations_text
from qd.payload.format import Relations, read
from qd.store.base import KeyspaceStore
from qd.store.failed import FailedStore
from tests.cli.conftest import Run, document, done
from tests.support.payloads import store_failed_job
from tests.support.project import Project
from tests.support.redis import Client

NOW = time.time()
STORE = ("queues:mail:failed", "queues:mail:failed_at")


def ready(redis: Client, queue: str = "mail") -> list[bytes]:
    found: list[bytes] = redis.call("LRANGE", f"queues:{queue}", 0, -1)
    return found


def left(redis: Client, queue: str = "mail") -> list[str]:
    """The records in the index; the hash must contain the same ones."""
    ids: list[str] = redis.text("ZRANGEBYSCORE", f"queues:{queue}:failed_at", "(0", "+inf")
    assert sorted(ids) == sorted(redis.text("HKEYS", f"queues:{queue}:failed"))
    if not ids:
        assert not redis.call("EXISTS", f"queues:{queue}:failed_at")
    return ids


def test_a_job_is_sent_again_with_its_pushed_payload(qd: Run, redis: Client) -> None:
    raw = store_failed_job(redis, "T.0.1.3", at=NOW - 100)
    store_failed_job(redis, "T.0.2.3", at=NOW - 50)
    began = int(time.time())
    assert done(qd("failed", "retry", "T.0.1.3")) == "1 job sent again\n"
    (sent,) = ready(redis)
    again, before = read(sent), read(raw)
    assert (again.attempts, again.rsv, again.uuid, again.id) == (0, None, before.uuid, before.id)
    assert bytes(again.data) == bytes(before.data)
    assert began <= (again.createdAt or 0) <= time.time()
    assert redis.call("LLEN", "queues:mail:notify") == 1
    assert left(redis) == ["T.0.2.3"]


def test_a_job_is_named_by_the_beginning_of_its_id_as_for_show(qd: Run, redis: Client) -> None:
    store_failed_job(redis, "T.0.1.3", at=NOW - 100)
    assert "job-T.0.1.3" in done(qd("failed", "show", "job-T.0"))
    assert done(qd("failed", "retry", "job-T.0")) == "1 job sent again\n"


def test_all_jobs_are_sent_to_their_queues_oldest_first(qd: Run, redis: Client) -> None:
    for n in range(250):
        store_failed_job(redis, f"m{n}", at=NOW - n)
    store_failed_job(redis, "r", queue="reports")
    assert done(qd("failed", "retry", "--all")) == "251 jobs sent again\n"
    assert [json.loads(raw)["data"]["to"] for raw in ready(redis)] == [f"m{n}" for n in reversed(range(250))]
    assert len(ready(redis, "reports")) == 1
    assert (left(redis), left(redis, "reports")) == ([], [])
    assert redis.call("LLEN", "queues:mail:notify") == 250
    assert done(qd("failed", "retry", "--all")) == "0 jobs sent again\n"


@pytest.mark.parametrize("verb", ["retry", "forget"])
def test_filters_select_the_records(qd: Run, redis: Client, verb: str) -> None:
    now = time.time()  # not NOW: the tests before this one ran since then
    sure = ["--yes"] if verb == "forget" else []
    store_failed_job(redis, "a", at=now - 3600)
    store_failed_job(redis, "b", at=now - 1800, error="KeyError")
    store_failed_job(redis, "c", at=now - 600, error="KeyError")
    counts = document(qd("failed", verb, "--error", "KeyError", "--older-than", "20m", "--dry-run", "--json"))
    assert counts["would"] == 1
    assert left(redis) == ["a", "b", "c"]
    assert done(qd("failed", verb, *sure, "--error", "KeyError", "--older-than", "20m")).startswith("1 job ")
    assert left(redis) == ["a", "c"]
    assert done(qd("failed", verb, *sure, "-q", "nobody")).startswith("0 jobs ")
    assert done(qd("failed", verb, *sure, "--all", "--job", "mail.*", "-q", "mail")).startswith("2 jobs ")
    assert len(ready(redis)) == (3 if verb == "retry" else 0)


def test_a_dry_run_names_jobs_that_cannot_run(qd: Run, redis: Client) -> None:
    store_failed_job(redis, "good")
    store_failed_job(redis, "bad", raw=b"no payload")
    dry, real = qd("failed", "retry", "--all", "--dry-run"), qd("failed", "retry", "--all")
    assert (dry.exit_code, dry.stdout) == (1, "1 job would be sent again\n")
    assert dry.stderr == real.stderr
    assert "bad" in real.stderr
    assert left(redis) == ["bad"]


@pytest.mark.parametrize("verb", ["retry", "forget"])
def test_an_unknown_id_is_reported_and_the_others_are_processed(qd: Run, redis: Client, verb: str) -> None:
    store_failed_job(redis, "a")
    some = qd("failed", verb, "nobody", "a")
    assert (some.exit_code, left(redis)) == (1, [])
    assert some.stderr == "qd: no failed job 'nobody' (`qd failed list` shows them)\n"
    none = qd("failed", verb, "nobody", "--json")
    assert (none.exit_code, json.loads(none.stdout)["unknown"]) == (1, ["nobody"])
    assert qd("failed", verb, "nobody").stdout == ""


@pytest.mark.parametrize("verb", ["retry", "forget"])
@pytest.mark.parametrize(
    "words",
    [
        (),
        ("a", "--all"),
        ("a", "--job", "x"),
        ("--all", "--since", "x"),
        *[("--rate", n, "--all") for n in ("0", "nan")],
    ],
)
def test_invalid_selections_change_nothing(qd: Run, redis: Client, verb: str, words: tuple[str, ...]) -> None:
    store_failed_job(redis, "a")
    assert qd("failed", verb, *words).exit_code == 2
    assert left(redis) == ["a"]


@pytest.mark.parametrize("verb", ["retry", "forget"])
@pytest.mark.parametrize("words", [("",), ("--until", "1970-01-01T00:00+00:00"), ("--until", "1960-01-01")])
def test_empty_selections_change_nothing(qd: Run, redis: Client, verb: str, words: tuple[str, ...]) -> None:
    """An empty shell variable; a time before all records, which must not be read as a duration."""
    store_failed_job(redis, "a")
    qd("failed", verb, *words)
    assert left(redis) == ["a"]


@pytest.mark.parametrize("verb", ["retry", "forget"])
def test_an_ambiguous_id_changes_nothing(qd: Run, redis: Client, verb: str) -> None:
    for name in ("one", "T.1", "T.2"):
        store_failed_job(redis, name)
    assert qd("failed", verb, "one", "T.").exit_code == 2
    assert len(left(redis)) == 3
    assert done(qd("failed", verb, "one", "T.1")).startswith("2 jobs ")
    assert left(redis) == ["T.2"]


def test_a_job_that_cannot_run_stays_failed_and_is_reported(qd: Run, redis: Client) -> None:
    store_failed_job(redis, "bad", raw=b"not JSON", job=None)
    store_failed_job(redis, "good")
    some = qd("failed", "retry", "--all")
    assert (some.exit_code, some.stdout) == (1, "1 job sent again\n")
    assert some.stderr.startswith("qd: uuid-bad (no job) stays failed: it cannot be run: not JSON")
    assert left(redis) == ["bad"]
    assert done(qd("failed", "forget", "bad")) == "1 job forgotten\n"


def test_the_retry_period_of_a_job_restarts(qd: Run, redis: Client) -> None:
    raw = make("mail.welcome", b"{}", created_at=int(NOW) - 1000, retry_until=NOW - 940)
    store_failed_job(redis, "a", raw=raw)
    began = int(time.time())
    done(qd("failed", "retry", "a"))
    again = read(ready(redis)[0])
    assert began + 60 <= (again.retryUntil or 0) < time.time() + 62


def unique(name: str, uuid: str) -> bytes:
    ties = json.dumps({"unique": name}).encode()
    raw = make("mail.welcome", b"{}", created_at=1, uuid=uuid)
    return raw.replace(b',"id":', b',"qd":' + ties + b',"id":')


def test_a_unique_job_acquires_its_lock_again(qd: Run, redis: Client) -> None:
    store_failed_job(redis, "a", raw=unique("order:1", "u1"), at=NOW - 5)
    store_failed_job(redis, "b", raw=unique("order:1", "u2"), at=NOW - 4)
    store_failed_job(redis, "c", raw=unique("order:2", "u3"), at=NOW - 3)
    redis.call("SET", "qd:unique:order:2", "another")
    some = qd("failed", "retry", "--all")
    assert (some.exit_code, some.stdout, left(redis)) == (1, "1 job sent again\n", ["b", "c"])
    assert some.stderr.count("another job has the lock of its unique name") == 2
    assert redis.text("GET", "qd:unique:order:1") == "u1"
    assert 0 < redis.call("PTTL", "qd:unique:order:1") <= 86_400_000
    assert redis.text("GET", "qd:unique:order:2") == "another"


def test_jobs_that_fail_again_meanwhile_are_not_retried_in_a_loop(
    qd: Run, redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(30):
        store_failed_job(redis, f"a{n}", at=time.time())
    steps: list[int] = []
    whole = failed.resend

    def failing(at: Any, force: bool) -> Callable[[list[Any]], list[str | None]]:
        step = whole(at, force)

        def run(chunk: list[Any]) -> list[str | None]:
            result = step(chunk)
            steps.append(len(chunk))
            assert len(steps) < 9, "retry loops"
            for record in chunk:
                store_failed_job(redis, f"again-{record.id}", at=time.time() + 0.001)
            return result

        return run

    monkeypatch.setattr(failed, "resend", failing)
    monkeypatch.setattr(failed, "CHUNK", 10)
    assert done(qd("failed", "retry", "--all")) == "30 jobs sent again\n"
    assert steps == [10, 10, 10]
    assert len(left(redis)) == 30


def test_retry_obeys_the_rate(qd: Run, redis: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr("qd.cli.failed.time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    for n in range(25):
        store_failed_job(redis, f"a{n}", at=NOW - n)
    done(qd("failed", "retry", "--all", "--rate", "10"))
    assert waits == pytest.approx([0.0, 1.0, 1.0])
    assert len(ready(redis)) == 25


def test_a_record_taken_by_another_process_is_not_sent_twice(qd: Run, redis: Client) -> None:
    store_failed_job(redis, "a", at=NOW)
    wire = RedisConnection(f"unix://{redis.path}")
    store = FailedStore(KeyspaceStore(wire))
    records = list(store.of_queue("mail"))
    assert store.retry("mail", records, NOW) == [None]
    assert store.retry("mail", records, NOW) == [""]
    assert len(ready(redis)) == 1
    wire.close()


def test_an_index_entry_without_a_record_is_not_sent(qd: Run, redis: Client) -> None:
    store_failed_job(redis, "a")
    redis.call("HDEL", STORE[0], "a")
    assert done(qd("failed", "retry", "--all")) == "0 jobs sent again\n"
    assert ready(redis) == []


def with_relations(id: str, ties: Relations) -> bytes:
    raw = make("mail.welcome", b"{}", uuid=f"uuid-{id}", id=f"job-{id}", created_at=int(NOW))
    return raw.replace(b',"id":', relations_text(ties) + b',"id":', 1)


@pytest.mark.leaves("qd:unique:n", "qd:job:*", "qd:batch:B", "queues:*")
def test_a_rejected_retry_changes_nothing(redis: Client) -> None:
    store_failed_job(redis, "held", raw=with_relations("held", Relations(unique="n", result=60)))
    store_failed_job(redis, "free", raw=with_relations("free", Relations(result=60)))
    for id in ("held", "free"):
        redis.call("HSET", f"qd:job:job-{id}", "status", "failed")
    redis.call("HSET", "qd:batch:B", "cancelled_at", 1)
    redis.call("SET", "qd:unique:n", "another")
    wire = RedisConnection(f"unix://{redis.path}")
    try:
        store = FailedStore(KeyspaceStore(wire))
        held, free = store.read("mail", [("held", NOW), ("free", NOW)])
        assert store.retry("mail", [held], NOW, resumes="B") == ["another job has the lock of its unique name"]
        assert redis.call("HGET", "qd:job:job-held", "status") == b"failed"
        assert redis.call("HGET", "qd:batch:B", "cancelled_at") == b"1"
        assert store.retry("mail", [held, free], NOW, resumes="B")[1] is None
        assert redis.text("KEYS", "qd:job:*") == ["qd:job:job-held"]
        assert redis.call("EXISTS", "qd:batch:B") == 0
    finally:
        wire.close()


HEARD = """
from qd.events import JobRetryRequested

@app.on(JobRetryRequested)
def heard(event: JobRetryRequested) -> None:
    print("heard", event.connection, event.queue, event.name, event.id)

@app.on(JobRetryRequested)
def broken(event: JobRetryRequested) -> None:
    raise ValueError("a listener")
"""


def test_listeners_are_notified_of_retries_and_their_errors_are_harmless(
    project: Callable[..., Project], redis: Client
) -> None:
    shop = project(jobs=HEARD)
    store_failed_job(redis, "a")
    result = shop.qd("failed", "retry", "a")
    assert (result.returncode, result.stdout) == (0, "heard redis mail mail.welcome job-a\n1 job sent again\n")
    assert "a listener" in result.stderr
    shop.jobs("import nothing.of.that.name")
    store_failed_job(redis, "b")
    result = shop.qd("failed", "retry", "b")
    assert (result.returncode, result.stdout) == (0, "1 job sent again\n")
    assert "listeners of JobRetryRequested are not notified" in result.stderr
    assert len(ready(redis)) == 2


def test_forget_of_more_than_named_jobs_is_confirmed(qd: Run, redis: Client) -> None:
    store_failed_job(redis, "a")
    store_failed_job(redis, "b")
    for words, typed in ((["--all"], None), (["-q", "mail", "--json"], "mail\n"), (["--all"], "no\n")):
        assert qd("failed", "forget", *words, typed=typed).exit_code == 2
    assert left(redis) == ["a", "b"]
    assert done(qd("failed", "forget", "a")) == "1 job forgotten\n"
    result = qd("failed", "forget", "--all", typed="redis\n")
    assert (result.exit_code, left(redis)) == (0, [])
    assert "this deletes failed jobs of connection redis" in result.stderr
