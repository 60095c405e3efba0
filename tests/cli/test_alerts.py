"""qd alerts: what is wrong is told once, and once more when it is over."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from qd.cli import alerts
from qd.errors import ServerRefused
from qd.store.base import KeyspaceStore
from tests.cli.conftest import Run, report
from tests.support.project import MakeProject
from tests.support.redis import Client
from tests.support.servers.redis import Server

pytestmark = pytest.mark.leaves("*qd:alerts*", "*qd:masters", "*queues:*")


class Webhook:
    """bodies: what was posted to it. status: what it answers; 0: nothing, for as long as it is so."""

    def __init__(self) -> None:
        self.bodies, self.beats, self.status = list[Any](), 0, 200
        self.freed = threading.Event()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if hook.status == 200:
                    hook.bodies.append(json.loads(body))
                self._answer()

            def do_GET(self) -> None:
                hook.beats += 1
                self._answer()

            def _answer(self) -> None:
                if not hook.status:
                    hook.freed.wait(60)
                    return
                self.send_response(hook.status)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/s3cr3t-path"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def told(self) -> list[tuple[str, str]]:
        return [(row["state"], row["alert"]) for body in self.bodies for row in body["alerts"]]

    def close(self) -> None:
        self.freed.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def hook() -> Iterator[Webhook]:
    made = Webhook()
    yield made
    made.close()


@pytest.fixture
def busy(redis: Client, configured: Callable[[str], None], hook: Webhook) -> None:
    """Five jobs are ready in `mail`, a master serves it, and more than three are an alert."""
    redis.call("RPUSH", "queues:mail", *[f'{{"job":"x","createdAt":{int(time.time())}}}'] * 5)
    report(redis, workers=[{"slot": 1, "pid": 414, "state": "waiting"}])
    configured(f'[alerts]\nwebhook = "{hook.url}"\nmax_ready = 3\n')


@pytest.mark.usefixtures("busy")
def test_an_alert_is_told_once_and_once_more_when_it_is_over(qd: Run, redis: Client, hook: Webhook) -> None:
    for _ in range(3):
        assert qd("alerts", "--once").exit_code == 0
    (body,) = hook.bodies
    assert body["schema"] == 1
    assert body["text"] == "queue 'mail': 5 ready, more than 3; add workers"
    redis.call("LTRIM", "queues:mail", 0, 1)
    for _ in range(2):
        assert qd("alerts", "--once").exit_code == 0
    assert hook.told() == [("begun", "max-ready mail"), ("over", "max-ready mail")]
    assert hook.bodies[1]["text"].startswith("OVER: queue 'mail'")
    events = [json.loads(line) for line in qd("events", "--json").stdout.splitlines()]
    assert [event["what"] for event in events] == ["alert begun", "alert over"]


def test_new_code_that_a_master_refused_is_an_alert(
    qd: Run, configured: Callable[[str], None], redis: Client, hook: Webhook
) -> None:
    configured(f'[alerts]\nwebhook = "{hook.url}"\n')
    for refused in ("ImportError: no x; fix it", ""):
        report(redis, refused=refused, refused_at=time.time() - 120 if refused else None)
        assert qd("alerts", "--once").exit_code == 0
    assert hook.told() == [("begun", "refused-code mail@app-1"), ("over", "refused-code mail@app-1")]
    assert hook.bodies[0]["text"].endswith(" and runs the old: ImportError: no x; fix it")


@pytest.mark.usefixtures("busy")
def test_only_the_named_queues_are_checked(qd: Run, redis: Client, hook: Webhook) -> None:
    redis.call("RPUSH", "queues:php", '{"job":"reports.monthly","createdAt":1}')
    assert qd("alerts", "mail", "--once").exit_code == 0
    assert hook.told() == [("begun", "max-ready mail")]
    assert qd("alerts", "--once").exit_code == 0
    assert hook.told()[1:] == [("begun", "unserved php")]


@pytest.mark.usefixtures("busy")
def test_a_restart_ends_no_alert(qd: Run, redis: Client, hook: Webhook) -> None:
    redis.call("RPUSH", "queues:php", '{"job":"reports.monthly","createdAt":1}')
    assert qd("alerts", "php", "--once").exit_code == 0
    redis.call("DEL", "qd:masters")
    assert qd("restart").exit_code == 0
    assert qd("alerts", "php", "--once").exit_code == 0
    assert hook.told() == [("begun", "unserved php")]
    redis.call("DEL", "qd:restart", "queues:php")
    report(redis, workers=[{"slot": 1, "pid": 414, "state": "waiting"}])
    assert qd("alerts", "php", "--once").exit_code == 0
    assert hook.told()[1:] == [("over", "unserved php")]


@pytest.mark.usefixtures("busy")
def test_what_was_not_sent_is_sent_by_a_later_look(qd: Run, hook: Webhook, capfd: pytest.CaptureFixture[str]) -> None:
    hook.status = 500
    result = qd("alerts", "--once")
    assert (result.exit_code, hook.told()) == (1, [])
    log = capfd.readouterr().err
    assert "alert.not_sent alerts=1" in log
    assert "s3cr3t" not in log
    hook.status = 200
    assert qd("alerts", "--once").exit_code == 0
    assert hook.told() == [("begun", "max-ready mail")]


@pytest.mark.usefixtures("busy")
def test_what_was_told_and_could_not_be_stored_is_told_again(
    qd: Run, hook: Webhook, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise ServerRefused("OOM command not allowed")

    with monkeypatch.context() as patch:
        patch.setattr(KeyspaceStore, "put", full)
        assert qd("alerts", "--once").exit_code == 0
    assert "alert.not_stored" in capfd.readouterr().err
    assert qd("alerts", "--once").exit_code == 0
    assert hook.told() == [("begun", "max-ready mail")] * 2


@pytest.mark.usefixtures("busy")
def test_a_queue_has_limits_of_its_own(qd: Run, configured: Callable[[str], None], hook: Webhook) -> None:
    mine = "[alerts.queues.mail]\nmax_ready = 9\n"
    configured(f'[alerts]\nwebhook = "{hook.url}"\nmax_ready = 3\n{mine}')
    assert qd("alerts", "--once").exit_code == 0
    assert hook.told() == []


@pytest.mark.usefixtures("busy")
def test_failures_beyond_the_rate_are_an_alert(
    qd: Run, configured: Callable[[str], None], redis: Client, hook: Webhook
) -> None:
    configured(f'[alerts]\nwebhook = "{hook.url}"\nfailure_rate = 10\n')
    minute = int(float(redis.text("TIME")[0]) // 60)
    for back in (0, 1):
        redis.call("HSET", f"qd:{{stats}}:m:{minute - back}", "redis\x1fmail\x1fx", "1 0:100 1:80 2:20")
        redis.call("HSET", f"qd:{{stats}}:m:{minute - back}", "redis\x1fok\x1fx", "1 0:100 1:95 2:5")
    assert qd("alerts", "--once").exit_code == 0
    assert hook.told() == [("begun", "failure-rate mail")]
    assert "20% of the jobs of the last 5 minutes failed, more than 10 %" in hook.bodies[0]["text"]


@pytest.mark.usefixtures("busy")
def test_a_failure_rate_needs_five_jobs_that_have_ended(
    qd: Run, configured: Callable[[str], None], redis: Client, hook: Webhook
) -> None:
    configured(f'[alerts]\nwebhook = "{hook.url}"\nfailure_rate = 20\n')
    minute = int(float(redis.text("TIME")[0]) // 60)
    redis.call("HSET", f"qd:{{stats}}:m:{minute}", "redis\x1fmail\x1fx", "1 0:4 2:4")  # the rate is not extrapolated
    assert qd("alerts", "--once").exit_code == 0
    assert hook.told() == []
    redis.call("HSET", f"qd:{{stats}}:m:{minute - 4}", "redis\x1fmail\x1fx", "1 0:1 2:1")
    assert qd("alerts", "--once").exit_code == 0
    assert hook.told() == [("begun", "failure-rate mail")]


@pytest.mark.usefixtures("busy")
def test_the_template_makes_the_body(qd: Run, configured: Callable[[str], None], redis: Client, hook: Webhook) -> None:
    redis.call("RENAME", "queues:mail", 'queues:a"\u202eb')
    template = 'template = \'{"content": {text}, "n": 1}\'\n'
    configured(f'[alerts]\nwebhook = "{hook.url}"\nmax_ready = 3\n{template}')
    assert qd("alerts", "--once").exit_code == 0
    (body,) = hook.bodies
    assert (body["n"], "\u202e" in body["content"], 'a"' in body["content"]) == (1, False, True)


@pytest.mark.usefixtures("busy")
def test_a_program_gets_the_document_on_its_stdin(
    qd: Run, configured: Callable[[str], None], folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    configured("[alerts]\nexec = 'cat > got; exit 3'\nmax_ready = 3\n")
    assert qd("alerts", "--once").exit_code == 1
    assert "exec: cat > got; exit 3 ended with 3" in capfd.readouterr().err
    configured("[alerts]\nexec = 'cat > got'\nmax_ready = 3\n")
    assert qd("alerts", "--once").exit_code == 0
    assert json.loads((folder / "got").read_text())["alerts"][0]["alert"] == "max-ready mail"


def test_a_test_message_is_sent(qd: Run, configured: Callable[[str], None], hook: Webhook) -> None:
    configured(f'[alerts]\nwebhook = "{hook.url}"\n')
    assert qd("alerts", "--test").exit_code == 0
    assert hook.told() == [("begun", "test")]


def test_a_server_that_is_away_is_told_and_over_when_it_is_back(
    qd: Run, configured: Callable[[str], None], hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(f'[alerts]\nwebhook = "{hook.url}"\n')
    monkeypatch.setenv("QD_REDIS_URL", "redis://127.0.0.1:1/0")
    assert qd("alerts", "--once").exit_code == 0
    assert hook.told() == [("begun", "server redis")]
    assert "connection refused" in hook.bodies[0]["text"]


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ("", "does not say whom to tell"),
        ('webhook = "ftp://x"', "webhook in qd.toml:4 [alerts]: not an http:// or https:// url"),
        ('webhook = "http://x"\ntemplate = "{text"', "the template is not JSON"),
        ('webhook = "http://x"\nfailure_rate = 100', "is not from 1 to 99"),
        ('webhook = "http://x"\n[alerts.queues.mail]\nmax_redy = 1', "(did you mean 'max_ready'?)"),
        ('webhook = "http://x"\n[alerts.queues.mail]\nmax_ready = "x"', "qd.toml:"),
    ],
)
def test_a_wrong_section_is_one_clear_error(qd: Run, configured: Callable[[str], None], lines: str, error: str) -> None:
    configured(f"[alerts]\n{lines}\n")
    result = qd("alerts", "--once")
    assert (result.exit_code, result.stderr.count("\n")) == (78, 1)
    assert error in result.stderr


@pytest.mark.usefixtures("busy")
def test_the_second_sender_waits_until_the_first_has_ended(
    project: MakeProject, server: Server, redis: Client, hook: Webhook
) -> None:
    config = f'[alerts]\nwebhook = "{hook.url}"\nmax_ready = 3\nevery = "1s"\n'
    shop = project(config=config)
    first = shop.begin("alerts")
    first.wait_line('alert.begun alert="max-ready mail"')
    second = shop.begin("alerts")
    second.wait_line("alerts.started")
    first.stop()
    redis.call("DEL", "queues:mail")
    second.wait_line('alert.over alert="max-ready mail"')
    second.stop()
    told = [row for row in hook.told() if row[1] == "max-ready mail"]
    assert told == [("begun", "max-ready mail"), ("over", "max-ready mail")]


@pytest.mark.usefixtures("busy")
def test_the_heartbeat_url_is_called_only_while_nothing_is_wrong(
    qd: Run, configured: Callable[[str], None], redis: Client, hook: Webhook
) -> None:
    configured(f'[alerts]\nwebhook = "{hook.url}"\nheartbeat = "{hook.url}"\nmax_ready = 3\n')
    assert qd("alerts", "--once").exit_code == 0
    assert hook.beats == 0
    redis.call("DEL", "queues:mail")
    assert qd("alerts", "--once").exit_code == 0
    assert hook.beats == 1


@pytest.mark.usefixtures("busy")
def test_a_webhook_that_hangs_delays_the_next_look_only(
    qd: Run, hook: Webhook, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(alerts, "PATIENCE", 0.2)
    hook.status = 0
    result = qd("alerts", "--once")
    assert (result.exit_code, "alert.not_sent" in capfd.readouterr().err) == (1, True)
    hook.status = 200
    assert qd("alerts", "--once").exit_code == 0
    assert hook.told() == [("begun", "max-ready mail")]


@pytest.mark.usefixtures("busy")
def test_a_file_that_becomes_invalid_leaves_the_old_configuration_in_use(
    project: MakeProject, redis: Client, hook: Webhook
) -> None:
    config = f'[alerts]\nwebhook = "{hook.url}"\nmax_ready = 3\nevery = "1s"\n'
    shop = project(config=config)
    process = shop.begin("alerts")
    process.wait_line("alerts.started")
    file = shop.root / "qd.toml"
    valid = file.read_text()
    file.write_text(f"{valid}\n[worker]\nworkres = 4\n")
    process.wait_line("config.invalid error=.*workres")
    process.wait_line('alert.begun alert="max-ready mail"')
    file.write_text(valid)
    process.wait_line("config.valid")
    process.stop()
    assert sum("config.invalid" in line for line in process.lines) == 1
