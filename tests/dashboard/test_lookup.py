"""Pages that look on the servers: jobs by id, name, tag and state, one job with its timeline, batches, and locks."""

from __future__ import annotations

import json
import re
import time
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest

from qd.dashboard import lookup
from tests.dashboard.conftest import HOSTILE, Open, failed, payload
from tests.support.redis import Client

pytestmark = pytest.mark.leaves("*")
OWN = {"origin": "http://localhost"}
PAGES = ("/jobs", "/jobs/redis/mail1", "/batches", "/batches/redis/b1", "/locks")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search comes to its end on a busy machine, too."""
    monkeypatch.setattr(lookup, "BUDGET", 60.0)
    monkeypatch.setattr(lookup, "FURTHER", 60.0)


def batch(redis: Client, id: str = "b1", name: str = "import", **more: Any) -> None:
    """A batch of five jobs: one is left, one has failed."""
    then = payload("import.ready")
    fields = {"name": name, "total": 5, "created_at": 1e9, "then": then, "then:queue": "mail", **more}
    redis.call("HSET", f"qd:batch:{id}", *[word for pair in fields.items() for word in pair])
    redis.call("SADD", f"qd:batch:{id}:pending", "u-p")
    redis.call("HSET", f"qd:batch:{id}:failed", "u-f1", "mail f1")
    failed(redis, "mail", "f1", 1e9, "import.rows", reason="no row 1")


def locks(redis: Client) -> None:
    redis.call("SET", "qd:mutex:{report}", "app-1/4711/aa", "PX", 60_000)
    redis.call("SET", "qd:unique:mail:ada", "u-1")


@pytest.mark.usefixtures("incident")
@pytest.mark.parametrize("path", PAGES)
def test_a_page_of_a_fleet_with_problems(board: Open, redis: Client, path: str) -> None:
    batch(redis)
    locks(redis)
    answer = board.client.get(path)
    assert answer.status_code == 200, answer.text
    assert "Live</span>" in answer.text
    assert 'style="' not in answer.text


@pytest.mark.usefixtures("clean_redis")
@pytest.mark.parametrize("path", ["/jobs", "/batches", "/locks"])
def test_a_page_without_any_data_says_what_is_missing(board: Open, path: str) -> None:
    answer = board.client.get(path)
    assert answer.status_code == 200
    assert 'class="empty"' in answer.text


@pytest.mark.parametrize("path", ["/jobs/redis/nowhere", "/batches/redis/nowhere", "/batches/redis/b1:failed"])
def test_what_is_not_there_is_404(board: Open, redis: Client, path: str) -> None:
    batch(redis)
    assert board.client.get(path).status_code == 404


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", "abcd"), ("q=id-a", "a"), ("q=u-id-b", "b"), ("q=mail", "ab"), ("q=mail.*", "ab"), ("q=eu", "bc"),
        ("q=e", "abcd"), ("q=d-a", ""), ("state=delayed", "c"), ("state=reserved", "d"), ("q=mail&state=delayed", ""),
        ("queue=other", "b"), ("state=nonsense", ""),
    ],
)  # fmt: skip
def test_jobs_are_found_by_id_uuid_name_tag_state_and_queue(board: Open, redis: Client, query: str, found: str) -> None:
    redis.call("RPUSH", "queues:mail", payload("mail.welcome", "id-a"))
    redis.call("RPUSH", "queues:other", payload("mail.digest", "id-b", tags=["eu"]))
    redis.call("ZADD", "queues:mail:delayed", time.time() + 60, payload("report", "id-c", tags=["eu"]))
    redis.call("ZADD", "queues:mail:reserved", time.time() + 60, payload("sync.remote", "id-d"))
    document = board.client.get(f"/jobs?{query}&format=json").json()
    assert sorted(each["id"][-1] for each in document["jobs"]) == list(found)
    text = board.client.get(f"/jobs?{query}").text
    assert sorted(re.findall(r'row"><a href="/jobs/redis/id-(\w)"', text)) == list(found)
    assert document == board.client.get(f"/api/v1/jobs?{query}").json()


def test_a_search_that_takes_too_long_says_how_far_it_came(
    board: Open, redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis.call("RPUSH", "queues:mail", *[payload("mail.welcome", str(n)) for n in range(500)])
    with monkeypatch.context() as patch:
        patch.setattr(lookup, "BUDGET", 0.0)
        page = board.client.get("/jobs?q=nothing").text
    assert "1 of 500 looked at" in page
    assert "Look further" in page
    further = board.client.get("/jobs?q=nothing&further=1").text
    assert "500 of 500 looked at" in further
    assert "Look further" not in further
    assert "The first 50 that were found" in board.client.get("/jobs?q=mail&further=1").text


def test_arguments_called_password_are_hidden(board: Open, redis: Client) -> None:
    redis.call("RPUSH", "queues:mail", payload("mail.welcome", "a"))
    for path in ("/jobs", "/jobs?format=json", "/jobs/redis/a", "/jobs/redis/a?format=json"):
        text = board.client.get(path).text
        assert "hunter2" not in text
        assert "redacted" in text or path.startswith("/jobs/redis/a?")


def test_arguments_of_encrypted_jobs_are_not_shown(board: Open, redis: Client) -> None:
    text = json.loads(payload("mail.welcome", "a"))
    redis.call("RPUSH", "queues:mail", json.dumps(text | {"data": {"encrypted": "eyJpdiI6"}}))
    for path in ("/jobs", "/jobs?format=json", "/queues/redis/mail", "/jobs/redis/a"):
        text = board.client.get(path).text
        assert ("eyJpdiI6" in text, "encrypted" in text) == (False, True), path


def test_a_job_shows_why_it_does_not_run_and_its_timeline(board: Open, redis: Client) -> None:
    redis.call("ZADD", "queues:mail:delayed", time.time() + 90, payload("mail.welcome", "a", attempts=2, rsv="T.0.1.-"))
    text = board.client.get("/jobs/redis/a").text
    assert "attempt 2 was not its last one; due in 1m" in text
    assert text.count("Attempt ") == 2
    assert "Run now" in text
    document = board.client.get("/jobs/redis/a?format=json").json()
    assert [each["what"] for each in document["timeline"]] == ["Pushed", "Attempt 1 ended", "Attempt 2 ended", "Due"]
    assert document["findings"][0]["cause"] == "retry"


def test_a_running_and_a_failed_job(board: Open, redis: Client) -> None:
    redis.call("ZADD", "queues:mail:reserved", time.time() + 90, payload("mail.welcome", "a", attempts=1))
    failed(redis, "mail", "f1", 1e9, "mail.welcome", failed_at=1e9, reason="no such user")
    running = board.client.get("/jobs/redis/a?format=json").json()
    assert [each["what"] for each in running["timeline"]] == ["Pushed", "Started"]
    page = board.client.get("/jobs/redis/f1").text
    assert "ConnectTimeout: no such user" in page
    assert 'href="/failed/redis/f1"' in page
    assert "do/retry" in page
    assert "do/cancel" not in page


def test_a_job_in_a_batch_links_to_it(board: Open, redis: Client) -> None:
    batch(redis)
    redis.call("RPUSH", "queues:mail", payload("import.rows", "a", qd={"batch": "b1"}))
    assert 'href="/batches/redis/b1"' in board.client.get("/jobs/redis/a").text


def test_batches_show_progress_failures_and_callbacks(board: Open, redis: Client) -> None:
    batch(redis)
    batch(redis, "b2", "other")
    text = board.client.get("/batches").text
    assert 'value="80"' in text
    assert "Retry 1…" in text
    assert board.client.get("/batches?q=oth").text.count('scope="row"') == 1
    page = board.client.get("/batches/redis/b1").text
    assert 'href="/failed/redis/f1"' in page
    assert "import.ready to" in page
    document = board.client.get("/batches/redis/b1?format=json").json()
    assert (document["state"], document["failures"][0]["reason"]) == ("running", "no row 1")
    assert [each["id"] for each in board.client.get("/api/v1/batches").json()["batches"]] == ["b1", "b2"]


def test_the_server_is_scanned_once_a_minute_and_after_an_action(
    board: Open, redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks(redis)
    assert "report" in board.client.get("/locks").text
    redis.call("SET", "qd:mutex:{second}", "app-1/1/a")
    assert "second" not in board.client.get("/locks").text
    with monkeypatch.context() as patch:
        patch.setattr(lookup, "MINUTE", 0.0)
        assert "second" in board.client.get("/locks").text
    released = act(board, "release", lock="report", typed="report")
    assert "✓ Done" in released
    assert redis.call("EXISTS", "qd:mutex:{report}") == 0
    assert ">report<" not in board.client.get("/locks").text


def act(board: Open, action: str, **form: str) -> str:
    page = board.client.get(f"/do/{action}", params=form).text
    token = re.findall(r'name="csrf" value="(\w+)"', page)[0]
    answer = board.client.post(f"/do/{action}", data=form | {"csrf": token}, headers=OWN, follow_redirects=True)
    return unescape(answer.text)


def test_a_lock_is_released_only_if_its_name_is_typed(board: Open, redis: Client) -> None:
    locks(redis)
    assert "What you typed is not report" in act(board, "release", lock="report", typed="x")
    assert redis.call("EXISTS", "qd:mutex:{report}") == 1
    assert board.logged_in("operate").get("/do/release?lock=report").status_code == 403


def test_a_batch_is_cancelled_and_retried_by_commands(board: Open, redis: Client) -> None:
    batch(redis)
    done = act(board, "cancel-batch", id="b1")
    assert "qd batch cancel -- b1" in done
    assert redis.call("HEXISTS", "qd:batch:b1", "cancelled_at") == 1
    assert "cancelled" in board.client.get("/batches").text
    assert "1 job sent again" in act(board, "retry-batch", id="b1")
    assert redis.call("LLEN", "queues:mail") == 1


def test_a_reader_has_no_buttons(board: Open, redis: Client) -> None:
    batch(redis)
    locks(redis)
    redis.call("RPUSH", "queues:mail", payload("mail.welcome", "mail1"))
    client = board.logged_in("read")
    for path in PAGES:
        assert "/do/" not in client.get(path).text, path


@pytest.mark.parametrize("name", [HOSTILE, "../x", "😀", "a/b?c#d%", "=1"])
def test_hostile_names_are_text_and_links_lead_to_their_pages(board: Open, redis: Client, name: str) -> None:
    whole = payload(name, name, uuid=name, tags=[name], data={name: name})
    redis.call("RPUSH", f"queues:{name}", whole)
    batch(redis, name, name, then=whole)
    redis.call("SET", f"qd:mutex:{{{name}}}", name)
    redis.call("HSET", f"qd:slots:{name}", name, f"9999999999999 {name}")
    links = set[str]()
    for path in ("/jobs", f"/jobs?q={quote(name)}&queue={quote(name)}", "/batches", f"/locks?q={quote(name)}"):
        text = board.client.get(path).text
        links |= {unescape(link) for link in re.findall(r'href="(/(?:jobs|batches|failed)/[^"]+)"', text)}
        safe(text)
    assert len({link.split("/")[1] for link in links}) >= 2
    for link in links:
        answer = board.client.get(link)
        escaped = (
            link.startswith("/jobs/") and not name.isascii()
        ) or '"' in name  # find.lua looks for the id as it is
        assert answer.status_code == (404 if escaped and "/jobs/" in link else 200), link
        safe(answer.text)
    for what in ("jobs", "batches", "locks"):
        assert "\n=" not in board.client.get(f"/{what}?format=csv").text
        json.loads(board.client.get(f"/{what}?format=json").text)


def safe(text: str) -> None:
    assert "<img" not in text
    assert "<script>" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize("data", ["x" * 5_000_000, eval("[" * 90 + "]" * 90)], ids=["5 MB", "nested"])
def test_a_large_or_deep_payload_does_not_break_its_page(board: Open, redis: Client, data: object) -> None:
    redis.call("RPUSH", "queues:mail", payload("big", "big", data=data))
    deep = payload("deep", "deep").replace('"user":1', '"user":' + "[" * 1000 + "]" * 1000)
    redis.call("RPUSH", "queues:mail", deep, "not JSON")
    for path, code in (("/jobs", 200), ("/jobs/redis/big", 200), ("/jobs/redis/deep", 404)):  # deep: no job to qd
        answer = board.client.get(path)
        assert answer.status_code == code, path
        assert len(answer.text) < 300_000
