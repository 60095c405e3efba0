"""conf/prometheus-rules.yml and conf/grafana-dashboard.json, with the real promtool and Prometheus against the exporter."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.exporter import Exporter
from tests.support.payloads import push
from tests.support.project import MakeProject, ready
from tests.support.redis import FAILED, Client
from tests.support.servers.prometheus import CONF, Prometheus, installed
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

PAGE = (CONF.parent / "docs" / "how-to" / "monitor.md").read_text()
# Empty while all is well, or without a schedule or maxmemory.
MAY_BE_EMPTY = ("qd_schedule_", "qd_server_memory_max_bytes", "== 1")


@pytest.fixture(autouse=True)
def _installed() -> None:
    installed()


def expressions() -> Iterator[str]:
    for panel in json.loads((CONF / "grafana-dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "1m")


def test_the_alert_rules_pass_their_tests() -> None:
    for words in (("check", "rules", "prometheus-rules.yml"), ("test", "rules", "prometheus-rules-test.yml")):
        done = subprocess.run(["promtool", *words], cwd=CONF, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_lists_each_alert() -> None:
    alerts = re.findall(r"- alert: (\w+)", (CONF / "prometheus-rules.yml").read_text())
    tested = (CONF / "prometheus-rules-test.yml").read_text()
    assert re.findall(r"^\| `(Qd\w+)` \|", PAGE, re.MULTILINE) == alerts
    assert [name for name in alerts if name not in tested] == []


@FAILED
@pytest.mark.usefixtures("clean_redis")
def test_each_expression_has_an_answer_from_a_real_prometheus(project: MakeProject, redis: Client) -> None:
    shop = project(jobs=JOBS)
    witness = Witness(shop)
    work = ready(shop)
    push(redis, "quick", count=3)
    push(redis, "boom")
    witness.wait("quick", 3)
    witness.wait("boom", 2)
    exporter = Exporter(shop)
    with Prometheus(exporter.address) as prometheus:
        # Two scrapes after the first write of statistics, for rate().
        eventually(lambda: prometheus.query("rate(qd_jobs_total[1m])"), 60)
        empty = [one for one in expressions() if not prometheus.query(one)]
        assert [one for one in empty if not any(part in one for part in MAY_BE_EMPTY)] == []
        (group,) = prometheus.api("rules")["groups"]
        eventually(lambda: all(rule["health"] == "ok" for rule in prometheus.api("rules")["groups"][0]["rules"]))
        assert {rule["lastError"] for rule in group["rules"] if "lastError" in rule} <= {""}
        names = set(prometheus.api("label/__name__/values"))
        used = {name for one in expressions() for name in re.findall(r"qd_\w+", one)}
        used |= set(re.findall(r"\bqd_\w+", (CONF / "prometheus-rules.yml").read_text()))
        assert {name for name in used - names if "schedule" not in name} <= {"qd_server_memory_max_bytes"}
    exporter.procs.stop()
    work.stop()
