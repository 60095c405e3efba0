"""Who may open the dashboard and who may act: links, passwords, hosts, levels, headers, requests from other sites."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from qd.cli.main import command
from qd.dashboard import access, asgi
from qd.dashboard.access import SESSION, Viewer, hashed, verify
from tests.dashboard.conftest import Open, failed
from tests.support.redis import Client
from tests.support.waiting import eventually

pytestmark = [pytest.mark.leaves("*"), pytest.mark.usefixtures("clean_redis")]
OWN = {"origin": "http://localhost"}


def test_without_a_session_nothing_is_shown(board: Open) -> None:
    client = board.new_client()
    for path in ("/", "/queues", "/queues/redis/mail", "/failed/redis/x", "/do/up", "/queues?format=json"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login"), path
    assert client.get("/api/v1/status").status_code == 401
    assert client.get("/", headers={"accept": "application/json"}).status_code == 403
    assert client.post("/do/up", headers=OWN).status_code == 403


def test_a_link_logs_in_once_and_looking_at_it_is_not_using_it(board: Open) -> None:
    token, first, second = board.sessions.new_link(), board.new_client(), board.new_client()

    def follow(client: TestClient) -> Any:
        """As live.js does, which sends the form."""
        page = client.get(f"/login?token={token}").text
        return client.post("/login", data={"csrf": csrf(page), "token": token}, headers=OWN)

    second.head(f"/login?token={token}")  # as a preview of the link does
    assert "data-send" in second.get(f"/login?token={token}").text
    answer = follow(first)
    cookie = answer.headers["set-cookie"].lower()
    assert answer.status_code == 303
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert first.get("/").status_code == 200
    assert follow(second).status_code == 403
    assert second.get("/").status_code == 303


def test_a_link_ends_after_ten_minutes(board: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    token, now = board.sessions.new_link(), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + access.LINK + 1)
    assert board.sessions.by_link(token) is None


def test_a_session_ends_after_twelve_hours_and_cannot_be_forged(board: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    cookie = board.sessions.issue(Viewer("ana", "read"))
    value, _, signature = cookie.partition(".")
    for text in ("x", f"{value}.", f"{value}x.{signature}", f"{value}.{signature[:-1]}", ".", "x.y"):
        client = board.new_client()
        client.cookies.set(SESSION, text)
        assert client.get("/queues").status_code == 303, text
    client = board.new_client()
    client.cookies.set(SESSION, cookie)
    assert client.get("/queues").status_code == 200
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + access.HOURS * 3600 + 1)
    assert client.get("/queues").status_code == 303


@pytest.mark.parametrize(
    ("host", "code"),
    [("localhost", 200), ("127.0.0.1:8640", 200), ("[::1]:1", 200), ("evil.example", 400), ("", 400), ("[", 400)],
)
def test_only_known_host_names_are_served(board: Open, host: str, code: int) -> None:
    for port in (8640, 1):
        board.client.cookies.set(f"{SESSION}_{port}", board.sessions.issue(Viewer("ana", "read")))
    assert board.client.get("/queues", headers={"host": host}).status_code == code
    assert board.new_client().get("/login", headers={"host": host}).status_code == (200 if code == 200 else 404)


def test_each_answer_has_the_security_headers(board: Open) -> None:
    for path in ("/", "/login", "/static/live.js", "/api/v1/status", "/nothing", "/do/pause?queue=x"):
        headers = board.client.get(path).headers
        policy = headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_users_log_in_with_a_password(folder: Path) -> None:
    with (folder / "qd.toml").open("a") as file:
        file.write(f'[dashboard]\nusers = ["ana:operate:{hashed("right")}"]\n')
    board = Open(folder)
    client = board.new_client()
    token = csrf(client.get("/login").text)
    for given in ({"name": "ana", "password": "wrong"}, {"name": "bob", "password": "right"}, {}):
        assert client.post("/login", data={"csrf": token, **given}, headers=OWN).status_code == 403
    right = {"name": "ana", "password": "right", "csrf": token}
    assert client.post("/login", data=right, headers={"origin": "http://evil.example"}).status_code == 403
    assert client.post("/login", data=right | {"csrf": "x"}, headers=OWN).status_code == 403
    assert client.post("/login", data=right, headers=OWN).status_code == 303
    assert "can operate" in client.get("/").text


def test_ten_wrong_logins_of_an_address_make_it_wait_for_a_minute(board: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    client = board.new_client()
    given = {"csrf": csrf(client.get("/login?token=guess").text), "token": "guess"}
    codes = [client.post("/login", data=given, headers=OWN).status_code for _ in range(access.TRIES + 1)]
    assert codes == [403] * access.TRIES + [429]
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + access.TRIES_SECONDS + 1)
    assert client.post("/login", data=given, headers=OWN).status_code == 403


def test_logins_at_the_same_time_count_before_they_are_verified(board: Open) -> None:
    sessions = board.sessions
    assert [sessions.may_try("10.0.0.1") for _ in range(access.TRIES + 1)] == [True] * access.TRIES + [False]
    assert sessions.may_try("10.0.0.2")
    sessions.succeeded("10.0.0.1")
    assert sessions.may_try("10.0.0.1")


def test_a_page_that_fails_has_the_security_headers(board: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board.app.state.site.poller, "current", lambda: 1 / 0)
    client = TestClient(board.app, base_url="http://localhost", raise_server_exceptions=False)
    client.cookies.update(board.client.cookies)
    answer = client.get("/queues")
    assert (answer.status_code, "frame-ancestors" in answer.headers["content-security-policy"]) == (500, True)
    assert "This page failed." in answer.text


def csrf(page: str) -> str:
    found = re.search(r'name="csrf" value="(\w+)"', page)
    assert found
    return found[1]


@pytest.mark.parametrize(
    ("level", "token", "headers", "code"),
    [
        ("operate", True, OWN, 303),
        ("write", True, {"referer": "http://localhost/queues"}, 303),
        ("operate", True, {"origin": "http://evil.example"}, 403),
        ("operate", True, {"origin": "null"}, 403),
        ("operate", True, {"origin": "http://["}, 403),
        ("operate", True, {"referer": "http://evil.example/http://localhost"}, 403),
        ("operate", True, {}, 403),
        ("operate", False, OWN, 403),
        ("read", True, OWN, 403),
    ],
)
def test_an_action_needs_level_token_and_origin(
    board: Open, redis: Client, level: str, token: bool, headers: dict[str, str], code: int
) -> None:
    client = board.logged_in(level)
    given = {"csrf": token_of(board, client) if token else "x", "queue": "mail"}
    assert client.post("/do/pause", data=given, headers=headers).status_code == code
    assert bool(redis.call("EXISTS", "queues:mail:paused")) == (code == 303)


def token_of(board: Open, client: TestClient) -> str:
    """The token that fits the cookie; a reader sees no form that has one."""
    client.get("/")
    return access.signature(board.app.state.site.csrf.key, client.cookies[access.CSRF])


def test_an_action_runs_the_command_that_it_shows_in_the_name_of_its_user(board: Open, redis: Client) -> None:
    page = board.client.get("/do/pause?queue=mail&back=/queues").text
    given = {"csrf": csrf(page), "queue": "mail", "reason": "db upgrade", "for": "10m", "back": "/queues"}
    done = board.client.post("/do/pause", data=given, headers=OWN, follow_redirects=True)
    assert "qd pause --for=10m &#39;--reason=db upgrade&#39; -- mail" in done.text
    note = json.loads(redis.call("GET", "queues:mail:paused"))
    assert (note["by"], note["reason"]) == ("ana", "db upgrade")
    assert b'"actor": "ana"' in redis.call("LINDEX", "qd:events", -1) or b"ana" in redis.call("LINDEX", "qd:events", -1)
    assert 'href="/queues">Back' in done.text


def test_reloading_the_outcome_of_an_action_does_not_repeat_it(board: Open, redis: Client) -> None:
    given = {"csrf": csrf(board.client.get("/do/pause?queue=mail").text), "queue": "mail"}
    outcome = board.client.post("/do/pause", data=given, headers=OWN).headers["location"]
    assert "✓ Done" in board.client.get(outcome).text
    redis.call("DEL", "queues:mail:paused")
    assert "✓ Done" in board.client.get(outcome).text
    assert not redis.call("EXISTS", "queues:mail:paused")
    assert "✓ Done" not in board.new_client().get(outcome).text
    assert board.client.get("/done/unknown").status_code == 404


def test_what_deletes_needs_the_name(board: Open, redis: Client) -> None:
    redis.call("RPUSH", "queues:mail", "{}")
    token = csrf(board.client.get("/do/clear?queue=mail").text)
    for typed in ("", "Mail"):
        answer = board.client.post("/do/clear", data={"csrf": token, "queue": "mail", "typed": typed}, headers=OWN)
        assert (answer.status_code, redis.call("LLEN", "queues:mail")) == (400, 1)
    answer = board.client.post("/do/clear", data={"csrf": token, "queue": "mail", "typed": "mail"}, headers=OWN)
    assert (answer.status_code, redis.call("LLEN", "queues:mail")) == (303, 0)


def test_jobs_that_fail_after_one_has_looked_are_not_retried(board: Open, redis: Client) -> None:
    for n in range(3):
        failed(redis, "mail", f"f{n}", 1e9 + n / 7, "mail.welcome")
    page = board.client.get("/failed").text
    failed(redis, "mail", "f9", 1e9 + 1, "mail.welcome")
    address = unescape(re.findall(r'href="(/do/retry-all[^"]+)"', page)[0])
    confirm = board.client.get(address).text
    assert "Retry 3 failed jobs of mail.welcome" in confirm
    given = {name: unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', confirm)}
    done = board.client.post("/do/retry-all", data=given, headers=OWN, follow_redirects=True)
    assert "✓ Done" in done.text, done.text
    assert (redis.call("LLEN", "queues:mail"), redis.call("HLEN", "queues:mail:failed")) == (3, 1)


@pytest.mark.parametrize("queue", ["--all", "-c", "--config=/etc/passwd"])
def test_no_value_is_taken_for_an_option(board: Open, redis: Client, queue: str) -> None:
    token = csrf(board.client.get("/do/pause", params={"queue": queue}).text)
    board.client.post("/do/pause", data={"csrf": token, "queue": queue}, headers=OWN)
    assert redis.call("EXISTS", f"queues:{queue}:paused")


def test_a_failing_command_is_shown_with_its_output(board: Open) -> None:
    token = csrf(board.client.get("/do/retry?id=nothing").text)
    given = {"csrf": token, "id": "nothing"}
    answer = board.client.post("/do/retry", data=given, headers=OWN, follow_redirects=True)
    assert answer.status_code == 409
    assert "nothing" in answer.text


def test_the_way_back_leads_nowhere_else(board: Open) -> None:
    for address in ("https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"):
        page = board.client.get("/do/pause", params={"queue": "mail", "back": address}).text
        assert 'class="button" href="/">Back' in page, address


def test_a_reader_sees_no_buttons(board: Open, redis: Client) -> None:
    redis.call("RPUSH", "queues:mail", "{}")
    client = board.logged_in("read")
    for path in ("/", "/queues", "/queues/redis/mail", "/failed", "/workers"):
        assert "/do/" not in client.get(path).text, path
    assert client.get("/do/pause?queue=mail").status_code == 403


@pytest.mark.parametrize("level", ["read", None, "admin"])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.usefixtures("folder")
def test_mounted_the_app_decides_who_may_look(level: str | None, asynchronous: bool) -> None:
    async def slowly(request: object) -> str | None:
        return level

    allow: Callable[..., object] = slowly if asynchronous else lambda request: level
    app = Starlette(routes=[Mount("/internal/qd", asgi(allow=allow))])
    client = TestClient(app, base_url="http://shop.example")
    answer = client.get("/internal/qd/queues/redis/a%2Fb")
    assert answer.status_code == (404 if level == "read" else 403)
    assert 'href="/internal/qd/static/style.css"' in answer.text
    assert client.get("/internal/qd/static/style.css").status_code == 200
    if level == "read":
        assert "can read" in client.get("/internal/qd/").text


def test_no_header_changes_the_address_whose_logins_are_counted(folder: Path) -> None:
    """With the real server: uvicorn believes X-Forwarded-For of local clients unless it is told not to."""
    words = [sys.executable, "-m", "qd", "dashboard", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder, text=True) as process:
        assert process.stdout
        base = process.stdout.readline().split()[1].partition("login")[0]
        with httpx.Client(base_url=base, headers={"origin": base.rstrip("/")}) as client:
            eventually(lambda: answers(client), what="the server")
            given = {"csrf": csrf(client.get("/login?token=guess").text), "token": "guess"}
            codes = [
                client.post("/login", data=given, headers={"x-forwarded-for": f"10.0.0.{n}"}).status_code
                for n in range(access.TRIES + 1)
            ]
        process.terminate()
    assert codes == [403] * access.TRIES + [429]


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/login").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.usefixtures("folder")
def test_other_addresses_need_users() -> None:
    result = CliRunner().invoke(command, ["dashboard", "--listen", "0.0.0.0:0"], prog_name="qd")
    assert (result.exit_code, result.stderr.count("\n")) == (78, 1)
    assert "open to every user" in result.stderr


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("listen", ["8640", "localhost:x", "localhost:70000"])
def test_an_address_that_is_none_is_refused(listen: str) -> None:
    assert CliRunner().invoke(command, ["dashboard", "--listen", listen], prog_name="qd").exit_code == 2


def test_a_user_that_is_none_is_refused(folder: Path) -> None:
    with (folder / "qd.toml").open("a") as file:
        file.write('[dashboard]\nusers = ["ana:admin:x"]\n')
    result = CliRunner().invoke(command, ["dashboard"], prog_name="qd")
    assert (result.exit_code, "user 1 is not NAME:LEVEL:HASH" in result.stderr) == (78, True)


@pytest.mark.usefixtures("folder")
def test_the_hash_of_a_password_is_for_users() -> None:
    result = CliRunner().invoke(command, ["dashboard", "--hash"], input="secret-1\nsecret-1\n", prog_name="qd")
    known = result.stdout.splitlines()[-1]
    assert verify("secret-1", known)
    assert not verify("secret-2", known)
