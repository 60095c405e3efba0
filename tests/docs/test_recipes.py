"""docs/recipes.md in a real worker: reports to Sentry, traces, slow SQL."""

from __future__ import annotations

import json

import pytest

from tests.support.pages import ROOT, STANDINS, sample_program
from tests.support.project import MakeProject, Project
from tests.support.redis import FAILED, Client
from tests.support.witness import Witness

pytestmark = [pytest.mark.usefixtures("clean_redis"), FAILED]

PAGE = sample_program((ROOT / "docs" / "recipes.md").read_text())
TOLD = """

@app.on(WorkerStopping)
def note(event: WorkerStopping) -> None:
    import json
    with open("witness", "a") as file:
        for what, value in sentry_sdk.told:
            print(json.dumps([what, value], default=repr), file=file)
"""


@pytest.fixture
def shop(project: MakeProject, monkeypatch) -> Project:
    monkeypatch.setenv("PYTHONPATH", str(STANDINS))
    return project(jobs=PAGE + TOLD)


def test_sentry_gets_one_report_of_a_permanently_failed_job(shop: Project):
    witness = Witness(shop)
    shop.python("from jobs import *; charge.dispatch(-1); charge.dispatch(1)")
    work = shop.work("payments", "-w", "1", "--stop-when-empty")
    work.ends_clean()
    told = [json.loads(line) for line in witness.lines]
    assert told == [
        ["init", "https://key@sentry.example.org/1"],
        ["job", "orders.charge"],
        ["queue", "payments"],
        ["job", {"id": told[3][1]["id"], "attempt": 3}],
        ["error", "ValueError('there is no such order')"],
        ["flush", 2],
    ]


def test_slow_sql_is_logged_with_its_job(shop: Project):
    shop.allowed.add("witness")
    path = shop.root / "jobs.py"
    path.write_text(path.read_text().replace("SLOW = 0.1", "SLOW = 0.0"))
    shop.python("from jobs import *; add_up.dispatch()")
    work = shop.work_off()
    assert work.matches(r"s in reports\.sum: SELECT 40 \+ 2.* job=reports\.sum"), work.tail()
    assert work.matches(r"reports\.sum took .* of CPU"), work.tail()


SPANS = """

@app.job("see")
def see() -> None:
    here = trace.get_current_span().get_span_context()
    with open("witness", "a") as file:
        print(f"{here.trace_id:032x}", file=file)
"""
SENDS = """
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from jobs import see, trace

context = SpanContext(int("ab" * 16, 16), int("cd" * 8, 16), is_remote=False, trace_flags=TraceFlags(1))
with trace.use_span(NonRecordingSpan(context)):
    see.dispatch()
see.dispatch()
"""


def test_a_trace_continues_in_the_worker(project: MakeProject, redis: Client, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(STANDINS))
    shop = project(jobs=PAGE + SPANS)
    witness = Witness(shop)
    shop.python(SENDS)
    first = json.loads(redis.call("LINDEX", "queues:default", 0))
    assert first["traceparent"] == f"00-{'ab' * 16}-{'cd' * 8}-01"
    shop.work_off()
    assert witness.lines == ["ab" * 16, "0" * 32]
