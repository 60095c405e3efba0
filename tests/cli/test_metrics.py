"""qd metrics: gauges of queues, workers and servers; the exporter over HTTP; the number for KEDA."""

from __future__ import annotations

import json
import re
import time
import urllib.error
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from signal import SIGINT

import pytest

from qd.cli import metrics
from tests.cli.conftest import Run, document, done, elsewhere, report
from tests.support.exporter import Exporter, numbers
from tests.support.project import MakeProject, Project
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.waiting import eventually


@pytest.fixture
def filled(redis: Client) -> float:
    """mail has a ready, a running, a failed and two delayed jobs, one of them due for 90 s; reports is paused. Returns the
    server's time."""
    now = float(redis.text("TIME")[0])
    redis.call("RPUSH", "queues:mail", f'{{"job":"x","createdAt":{int(now) - 60}}}')
    redis.call("ZADD", "queues:mail:delayed", now - 90, "due", now + 3600, "later")
    redis.call("ZADD", "queues:mail:reserved", now + 60, "runs")
    redis.call("HSET", "queues:mail:failed", "f1", "x")
    redis.call("SET", "queues:reports:paused", json.dumps({"by": "ana", "reason": "", "at": now, "until": None}))
    states = ("busy", "waiting", "waiting")
    workers = [{"slot": n, "pid": 414 + n, "state": state} for n, state in enumerate(states)]
    running = {**workers[0], "job": "runs", "queue": "mail", "since": now - 45}
    report(redis, workers=[running, *workers[1:]], crashes=[now - 1])
    report(redis, "T2", workers=workers, seen_at=now - 60)
    last = {"tick": now - 65, "began": now - 60, "ended": now - 50, "outcome": "failed"}
    redis.call("HSET", "qd:schedule:last", "nightly", json.dumps(last))
    return now


def test_gauges_show_queues_workers_schedule_and_servers(qd: Run, redis: Client, filled: float) -> None:
    found = numbers(done(qd("metrics")))
    mail, reports = 'connection="redis",queue="mail"', 'connection="redis",queue="reports"'
    sizes = {
        state: found[f'qd_queue_jobs{{{mail},state="{state}"}}'] for state in ("ready", "delayed", "reserved", "failed")
    }
    assert sizes == {"ready": 1, "delayed": 2, "reserved": 1, "failed": 1}
    assert 60 <= found[f"qd_queue_oldest_age_seconds{{{mail}}}"] < 120
    assert found[f"qd_queue_oldest_age_seconds{{{reports}}}"] == 0
    assert (found[f"qd_queue_paused{{{mail}}}"], found[f"qd_queue_paused{{{reports}}}"]) == (0, 1)
    assert found[f"qd_queue_workers{{{mail}}}"] == 3
    assert found['qd_masters{pool="mail",state="running"}'] == found['qd_masters{pool="mail",state="silent"}'] == 1
    workers = {state: found[f'qd_workers{{pool="mail",state="{state}"}}'] for state in metrics.WORKER_STATES}
    assert workers == {"busy": 1, "waiting": 2, "starting": 0, "looking": 0, "idle": 0}
    assert found['qd_worker_recent_crashes{pool="mail"}'] == 1
    assert 45 <= found['qd_longest_job_seconds{pool="mail"}'] < 90
    assert (found["qd_maintenance{}"], found['qd_server_up{connection="redis"}']) == (0, 1)
    assert found['qd_server_memory_bytes{connection="redis"}'] > 100_000
    assert found['qd_schedule_late_seconds{entry="nightly"}'] == 5
    assert found['qd_schedule_last_run_failed{entry="nightly"}'] == 1
    assert found['qd_schedule_last_run_timestamp_seconds{entry="nightly"}'] == filled - 50


@pytest.mark.usefixtures("filled")
def test_keda_gets_ready_reserved_and_due_delayed_jobs(qd: Run) -> None:
    found = document(qd("metrics", "--keda", "mail"))
    assert 90 <= found.pop("wait_s") < 120
    assert found == {"schema": 1, "queue": "mail", "value": 3, "ready": 1, "reserved": 1, "due": 1}
    empty = qd("metrics", "--keda", "mial")
    assert json.loads(empty.stdout)["value"] == 0
    assert "unknown queue 'mial' (did you mean 'mail'?)" in empty.stderr


@pytest.mark.parametrize("kind", ["sqlite", "beanstalkd"])
def test_other_drivers_have_gauges_and_a_number_for_keda(
    qd: Run, configured: Callable[[str], None], request: pytest.FixtureRequest, redis: Client, kind: str
) -> None:
    elsewhere(qd, configured, request, kind)
    done(qd("dispatch", "x", "--queue", "mail"))
    found = numbers(done(qd("metrics")))
    assert found['qd_queue_jobs{connection="other",queue="mail",state="ready"}'] == 1
    assert {name for name in found if "memory_bytes" in name} == {'qd_server_memory_bytes{connection="redis"}'}
    assert document(qd("metrics", "--keda", "mail"))["value"] == 1


@pytest.mark.usefixtures("filled")
def test_a_looker_with_two_more_rights_may_be_the_exporter(
    qd: Run, configured: Callable[[str], None], redis: Client, server: Server
) -> None:
    page = (Path(metrics.__file__).resolve().parents[3] / "docs/how-to/acl.md").read_text()
    (rule,) = re.findall(r"^ACL SETUSER qd-looker (.*)$", page, re.MULTILINE)
    words = rule.replace("LOOKER-PASSWORD", "secret").split()
    redis.call("ACL", "SETUSER", "exporter", *words, "+info", "+zcount")
    try:
        url = server.url.replace("unix://", "unix://exporter:secret@")
        configured(f'[connections.own]\nurl = "{url}"\n[qd]\ndefault = "own"\n')
        assert numbers(done(qd("metrics")))['qd_server_memory_bytes{connection="own"}'] > 0
        assert document(qd("metrics", "--keda", "mail"))["value"] == 3
    finally:
        redis.call("ACL", "DELUSER", "exporter")


def test_memory_is_left_out_if_the_user_may_not_read_it(
    qd: Run, configured: Callable[[str], None], redis: Client, server: Server
) -> None:
    redis.call("ACL", "SETUSER", "exporter", "on", ">secret", "~*", "&*", "+@all", "-info")
    try:
        configured(f'[connections.limited]\nurl = "{server.url.replace("unix://", "unix://exporter:secret@")}"\n')
        found = numbers(done(qd("metrics", "-c", "limited")))
        assert [name for name in found if "memory" in name] == ['qd_server_memory_bytes{connection="redis"}']
    finally:
        redis.call("ACL", "DELUSER", "exporter")


def test_a_bad_address_is_an_error_of_configuration(qd: Run) -> None:
    for words in (("metrics", "--listen", "9600"), ("metrics", "--listen", "192.0.2.1:9600")):
        found = qd(*words)
        assert (found.exit_code, found.stderr.count("\n")) == (78, 1), found.output
    assert qd("metrics", "--listen", "127.0.0.1:0", "--json").exit_code == 2


# -- over HTTP


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project()


@pytest.fixture
def exported(shop: Project) -> Iterator[Exporter]:
    found = Exporter(shop)
    yield found
    found.procs.stop()


@pytest.mark.usefixtures("filled")
def test_the_exporter_serves_metrics_keda_and_its_health_until_term(exported: Exporter) -> None:
    assert numbers(exported.get("/metrics"))['qd_queue_jobs{connection="redis",queue="mail",state="ready"}'] == 1
    assert exported.document("/keda/mail")[1]["value"] == 3
    assert exported.document("/keda/mail?connection=redis")[1]["value"] == 3
    assert exported.document("/keda/mail?connection=reddis")[0] == 404
    assert exported.get("/healthz") == "ok\n"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        exported.get("/other")


def test_the_exporter_survives_an_outage_and_logs_each_change_once(project: MakeProject) -> None:
    with Server() as own:
        found = Exporter(project(url=own.tcp_url))
        assert found.up() == 1
        own.kill()
        eventually(lambda: found.up() == 0)
        before = numbers(found.get("/metrics"))
        assert before == {'qd_server_up{connection="redis"}': 0}
        status, document = found.document("/keda/mail")
        assert (status, list(document)) == (503, ["schema", "error"])
        assert found.get("/healthz") == "ok\n"
        again = time.monotonic() + metrics.FRESH
        eventually(lambda: found.up() == 0 and time.monotonic() > again)
        own.start()
        eventually(lambda: found.up() == 1)
        found.procs.stop()
        lines = [line for line in found.procs.lines if "exporter." in line]
        assert [line.split("exporter.")[1].split()[0] for line in lines if "listening" not in line] == [
            "server_away",
            "server_back",
        ]


def test_many_scrapes_are_one_read_a_second(exported: Exporter, redis: Client) -> None:
    def reads() -> int:
        found = redis.text("INFO", "commandstats")
        return int(found.partition("cmdstat_info:calls=")[2].partition(",")[0] or 0)

    exported.get("/metrics")
    before, began = reads(), time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(exported.get, ["/metrics"] * 50))
    assert all("qd_server_up" in text for text in texts)
    # One of them is our own.
    assert reads() - before - 1 <= (time.monotonic() - began) / metrics.FRESH + 1


def test_ctrl_c_ends_the_exporter(shop: Project) -> None:
    found = Exporter(shop)
    found.procs.signal(SIGINT)
    assert found.procs.wait() == 130
