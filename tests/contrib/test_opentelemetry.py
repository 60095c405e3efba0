"""qd.contrib.opentelemetry with the SDK and its in-memory exporters, in a producer and in a real worker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.project import MakeProject, Project
from tests.support.redis import Client

pytestmark = pytest.mark.usefixtures("clean_redis")
JOBS = """
import json, logging
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from qd import Qd, current_job
from qd.contrib.opentelemetry import instrument
from qd.events import WorkerStarting, WorkerStopping

app = Qd()
instrument(app)
spans, reader = InMemorySpanExporter(), InMemoryMetricReader()

@app.on(WorkerStarting)
def begin(event=None):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([reader]))

def found():
    points = {}
    for of_resource in json.loads(reader.get_metrics_data().to_json())["resource_metrics"]:
        for of_scope in of_resource["scope_metrics"]:
            for metric in of_scope["metrics"]:
                points[metric["name"]] = metric["data"]["data_points"]
    return {"spans": [json.loads(span.to_json()) for span in spans.get_finished_spans()], "metrics": points}

@app.on(WorkerStopping)
def end(event):
    with open("found.json", "w") as file:
        json.dump(found(), file)

@app.job("pay", queue="payments", tries=2, backoff=0)
def pay() -> None:
    logging.getLogger("shop").info("paying")
    if current_job().attempt == 1:
        raise ValueError("no money")

@app.job("later", queue="payments", tries=2)
def later() -> None:
    if current_job().attempt == 1:
        current_job().release(0)

@app.job("inside", queue="payments")
async def inside() -> None:
    trace.get_tracer("shop").start_span("query").end()
"""


@pytest.fixture
def shop(project: MakeProject) -> Project:
    found = project(jobs=JOBS)
    found.allowed.add("found.json")
    return found


def sent(shop: Project, *jobs: str) -> Any:
    """What the producer recorded."""
    calls = "".join(f"; {job}.dispatch()" for job in jobs)
    return json.loads(shop.python(f"from jobs import *; begin(){calls}; print(json.dumps(found()))").stdout)


def worked(shop: Project) -> tuple[Any, list[str]]:
    """What the worker recorded, and its log."""
    work = shop.work_off("payments")
    return json.loads((shop.root / "found.json").read_text()), work.lines


def ids(span: dict[str, Any]) -> tuple[str, str]:
    return span["context"]["trace_id"], span["context"]["span_id"]


def test_attempts_continue_the_trace_of_their_producer(shop: Project) -> None:
    (create,) = sent(shop, "pay")["spans"]
    assert (create["name"], create["kind"]) == ("create payments", "SpanKind.PRODUCER")
    found, lines = worked(shop)
    first, second = found["spans"]
    for attempt, span in enumerate((first, second), 1):
        assert (span["name"], span["kind"]) == ("process payments", "SpanKind.CONSUMER")
        assert (span["context"]["trace_id"], span["parent_id"]) == ids(create)
        assert [ids(link) for link in span["links"]] == [ids(create)]
        assert span["attributes"] | {"messaging.message.body.size": 0} == {
            "messaging.system": "qd",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": "payments",
            "messaging.message.id": create["attributes"]["messaging.message.id"],
            "messaging.message.body.size": 0,
            "qd.connection": "redis",
            "qd.job": "pay",
            "qd.attempt": attempt,
            **({"error.type": "ValueError"} if attempt == 1 else {}),
        }
    assert (first["status"]["status_code"], second["status"]["status_code"]) == ("ERROR", "UNSET")
    assert [event["name"] for event in first["events"]] == ["exception"]
    records = [line for line in lines if "message=paying" in line]
    trace_id = create["context"]["trace_id"].removeprefix("0x")
    assert [
        f"trace_id={trace_id} span_id={ids(span)[1].removeprefix('0x')}" in line
        for span, line in zip(found["spans"], records, strict=True)
    ] == [True, True]


def test_a_release_is_no_error(shop: Project) -> None:
    sent(shop, "later")
    found, _ = worked(shop)
    assert [(span["status"]["status_code"], span["events"]) for span in found["spans"]] == [("UNSET", [])] * 2


def test_spans_of_an_async_job_are_inside_its_own(shop: Project) -> None:
    sent(shop, "inside")
    query, process = worked(shop)[0]["spans"]
    assert (query["name"], query["parent_id"]) == ("query", ids(process)[1])


def test_metrics_count_jobs_and_attempts(shop: Project) -> None:
    produced = sent(shop, "pay", "inside")["metrics"]
    assert {point["attributes"]["qd.job"]: point["value"] for point in produced["messaging.client.sent.messages"]} == {
        "pay": 1,
        "inside": 1,
    }
    found = worked(shop)[0]["metrics"]
    consumed = {point["attributes"]["qd.job"]: point["value"] for point in found["messaging.client.consumed.messages"]}
    assert consumed == {"pay": 2, "inside": 1}
    durations = [
        (point["attributes"].get("error.type"), point["count"]) for point in found["messaging.process.duration"]
    ]
    assert sorted(durations, key=str) == [("ValueError", 1), (None, 1), (None, 1)]


def test_a_job_of_another_program_begins_a_trace(shop: Project, redis: Client) -> None:
    redis.call("RPUSH", "queues:payments", '{"id":"1","uuid":"1","job":"inside","data":{},"attempts":0}')
    _, process = worked(shop)[0]["spans"]
    assert (process["parent_id"], process["links"]) == (None, [])
