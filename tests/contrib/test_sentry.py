"""qd.contrib.sentry with the real SDK and a transport that writes down what it would send."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.project import MakeProject, Project
from tests.support.redis import FAILED, Client

pytestmark = pytest.mark.usefixtures("clean_redis")
JOBS = """
import json
import sentry_sdk
from sentry_sdk.transport import Transport
from qd import Qd, current_job
from qd.contrib.sentry import instrument

class Written(Transport):
    def capture_envelope(self, envelope):
        with open("sent.json", "a") as file:
            for item in envelope.items:
                print(json.dumps([item.type, item.payload.json], default=str), file=file)

sentry_sdk.init(dsn="https://key@sentry.example.org/1", transport=Written, traces_sample_rate=1.0)
app = Qd()
instrument(app)

@app.job("pay", queue="payments", tries=2, backoff=0)
def pay(secret: str) -> None:
    raise ValueError("no money")

@app.job("later", queue="payments", tries=2)
def later() -> None:
    if current_job().attempt == 1:
        current_job().release(0)

def report() -> None:
    ...

def broken() -> None:
    raise ValueError("no report")

app.schedule(report, cron="* * * * *", name="Night report")
app.schedule(broken, cron="* * * * *", name="broken")
"""


@pytest.fixture
def shop(project: MakeProject) -> Project:
    found = project(jobs=JOBS)
    found.allowed.add("sent.json")
    return found


def sent(shop: Project, kind: str) -> list[Any]:
    lines = (shop.root / "sent.json").read_text().splitlines()
    return [body for what, body in map(json.loads, lines) if what == kind]


@FAILED
def test_a_failed_job_is_reported_once_with_its_job(shop: Project) -> None:
    job = shop.python("from jobs import *; print(pay.dispatch('1234-5678').id)").stdout.strip()
    shop.work_off("payments")
    (error,) = sent(shop, "event")
    assert error["exception"]["values"][-1]["value"] == "no money"
    assert error["tags"] == {"job": "pay", "queue": "payments"}
    assert error["contexts"]["job"] == {"id": job, "connection": "redis", "attempt": 2}
    assert error["transaction"] == "pay"


@FAILED
def test_attempts_are_transactions_of_the_producers_trace(shop: Project, redis: Client) -> None:
    shop.python(
        "from jobs import *\nwith sentry_sdk.start_transaction(name='web'): pay.dispatch('x'); later.dispatch()"
    )
    shop.work_off("payments")
    web, *attempts = sent(shop, "transaction")
    assert [span["op"] for span in web["spans"]] == ["queue.publish"] * 2
    found = [(each["transaction"], each["contexts"]["trace"]["status"]) for each in attempts]
    assert sorted(found) == [("later", "ok")] * 2 + [("pay", "internal_error")] * 2
    traces = {each["contexts"]["trace"]["trace_id"] for each in [web, *attempts]}
    assert len(traces) == 1


@pytest.mark.leaves("qd:schedule:last", "qd:ticks")
def test_ticks_are_check_ins_of_a_monitor(shop: Project) -> None:
    shop.qd("schedule", "run")
    found = sorted((each["monitor_slug"], each["status"]) for each in sent(shop, "check_in"))
    assert found == [
        ("broken", "error"),
        ("broken", "in_progress"),
        ("night-report", "in_progress"),
        ("night-report", "ok"),
    ]
    assert len({each["check_in_id"] for each in sent(shop, "check_in")}) == 2
