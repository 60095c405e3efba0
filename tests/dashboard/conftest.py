"""A dashboard over the test's Redis: in this process through `client`, and on a port in front of a real browser."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient

from qd import config
from qd.cli.context import Given
from qd.dashboard.access import LOOPBACK, SESSION, Sessions, Viewer
from qd.dashboard.app import dashboard
from qd.dashboard.command import users_of
from tests.support.redis import Client
from tests.support.servers.redis import Server

HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>\u202e'


class Open:
    """The parts of a dashboard. client: has a session with the level write."""

    def __init__(self, folder: Path) -> None:
        self.sessions = Sessions(LOOPBACK, users_of(config.load(folder / "qd.toml", environ={}).dashboard.users))
        self.app = dashboard(Given(), self.sessions)
        self.poller = self.app.state.site.poller
        self.client = self.logged_in("write")

    def new_client(self) -> TestClient:
        return TestClient(self.app, base_url="http://localhost", follow_redirects=False)

    def logged_in(self, level: str) -> TestClient:
        client = self.new_client()
        client.cookies.set(SESSION, self.sessions.issue(Viewer("ana", level)))
        return client

    def read_again(self) -> None:
        """The next page reads the server, however new the snapshot is."""
        self.poller._at = 0.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server) -> Path:
    for name in list(os.environ):
        if name.startswith("QD_") or name == "REDIS_URL":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qd.toml").write_text(f'[qd]\nenv = "production"\n[connections.redis]\nurl = "{server.url}"\n')
    return tmp_path


@pytest.fixture
def board(folder: Path) -> Open:
    return Open(folder)


@pytest.fixture
def incident(redis: Client) -> float:
    """mail grows, reports is paused, webhooks fails; two hours of history. Returns the server's time."""
    return fill(redis)


def payload(name: str, id: str = "1", **more: Any) -> str:
    facts = {"uuid": f"u-{id}", "displayName": name, "job": name, "data": {"user": 1, "password": "hunter2-secret"}}
    whole = {**facts, "id": id, "attempts": 0, "createdAt": int(time.time()) - 192, **more}
    return json.dumps(whole, separators=(",", ":"))


def failed(redis: Client, queue: str, id: str, at: float, job: str, **more: Any) -> None:
    line = {
        "uuid": f"u-{id}",
        "job": job,
        "error": "ConnectTimeout",
        "reason": "No connection after 10s",
        "attempts": 3,
        **more,
    }
    redis.call("HSET", f"queues:{queue}:failed", id, json.dumps(line) + "\n" + payload(job, id))
    redis.call("ZADD", f"queues:{queue}:failed_at", at, id)


def fill(redis: Client) -> float:
    now = float(redis.text("TIME")[0])
    for queue, ready, delayed in (("default", 38, 21), ("mail", 1204, 17), ("reports", 12, 0), ("webhooks", 86, 164)):
        names = ("mail.welcome", "mail.invoice", "mail.digest") if queue == "mail" else (f"{queue}.run",)
        redis.call(
            "RPUSH",
            f"queues:{queue}",
            *[payload(names[n % len(names)], f"{queue}{n}", tags=["signup"]) for n in range(ready)],
        )
        for n in range(delayed):
            redis.call("ZADD", f"queues:{queue}:delayed", now + 60 + n, payload(names[0], f"{queue}d{n}"))
    note = {"by": "on-call", "reason": "db upgrade", "at": now - 360, "until": None}
    redis.call("SET", "queues:reports:paused", json.dumps(note))
    for n in range(60):
        failed(
            redis,
            "webhooks",
            f"w{n}",
            now - 20 * n,
            "webhooks.deliver",
            trace='Traceback:\n  File "a.py", line 1\nConnectTimeout',
        )
    death = {
        "verdict": "timeout",
        "signal": "SIGKILL",
        "exit": None,
        "peak": 188_000_000,
        "took": 602.0,
        "oom": False,
        "stack": "File hung.py, line 57",
    }
    failed(redis, "reports", "r1", now - 540, "reports.pdf", error="JobTimeout", reason="ran for 10m 2s", death=death)
    for minute in range(int(now // 60) - 120, int(now // 60) + 1):
        ago = int(now // 60) - minute
        wave = 612 + (minute * 37) % 41
        default = f"1 0:{wave} 1:{wave} {9 + 9}:{wave} {9 + 24 + 8}:{wave}"
        webhooks = f"1 0:396 1:390 2:{6 if ago < 27 else 0} {9 + (17 if ago < 20 else 10)}:120"
        fields = ("redis\x1fdefault\x1fx", default, "redis\x1fwebhooks\x1fy", webhooks)
        redis.call("HSET", f"qd:{{stats}}:m:{minute}", *fields)
        for queue, depth in (
            ("default", 38 + minute % 9),
            ("mail", 1204 if ago == 0 else max(40, 1204 - 50 * ago)),
            ("webhooks", 80 + minute % 7),
            ("reports", 12 if ago < 6 else 3),
        ):
            redis.call("HSET", f"qd:{{stats}}:q:{minute}", f"redis\x1f{queue}", f"2 {depth} 0 1 0 12 {now - 60 * ago}")
    workers = [
        {
            "slot": n,
            "pid": 5012 + n,
            "state": "running",
            "job": f"job.{n}",
            "queue": "default",
            "since": now - 9 * n,
            "done": 4400 + n,
            "running": 1,
        }
        for n in range(6)
    ]
    report = {"token": "t1", "host": "app-1", "pid": 4121, "booted_at": now - 2640, "seen_at": now + 600, "pool": "web"}
    report |= {"connection": "redis", "queues": ["default", "mail", "webhooks"], "version": "0.9.0", "workers": workers}
    redis.call("HSET", "qd:masters", "t1", json.dumps(report))
    for number, (what, ago, thing) in enumerate(
        (("new code", 2640, {"pool": "web", "code": "v2.14.1"}), ("pause", 360, {"queue": "reports"})), 1
    ):
        entry = json.dumps({"actor": "on-call", "what": what, "object": thing, "reason": "db upgrade"})
        redis.call("RPUSH", "qd:events", f"{number} {now - ago} {now - ago} 1 {entry}")
    return now


@pytest.fixture
def served(board: Open) -> Iterator[str]:
    """The url of the dashboard on a port of its own, with a one-time link."""
    server = uvicorn.Server(
        uvicorn.Config(board.app, port=0, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 10
    while not server.started and time.monotonic() < until:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}/login?token={board.sessions.new_link()}"
    server.should_exit = True
    thread.join(10)
