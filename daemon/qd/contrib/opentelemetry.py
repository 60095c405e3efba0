"""qd with OpenTelemetry: traces and metrics by its semantic conventions for messaging.

    instrument(app)
      dispatch    a producer span `create QUEUE`; its context travels in the payload as `traceparent` and `tracestate`
      an attempt  a consumer span `process QUEUE`: a child of the producer's span, and linked to it, as each other attempt
      logging     records inside a span have `otelTraceID` and `otelSpanID`; qd's lines of them `trace_id` and `span_id`

PHP keeps the keys of a payload. Only the API is needed; without an SDK nothing is recorded. Set the SDK up in a listener of
WorkerStarting and shut it down in one of WorkerStopping: its exporters are threads, which do not survive a fork.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry import metrics, propagate, trace
from opentelemetry.trace import Link, SpanKind, StatusCode
from opentelemetry.util.types import AttributeValue

from qd import __version__
from qd.app import Qd
from qd.events import JobQueued
from qd.jobs.context import RunningJob
from qd.jobs.policy import Retry

# The bounds of the histogram.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 60, 600)


def instrument(app: Qd) -> None:
    """Trace and measure the jobs of `app`. Call it once, where the app is made.

    Uses the providers that are set when a span is created, not those that are set now.
    """
    found = Instrumentation()
    app.payload_hook(found.created)
    app.middleware.insert(0, found.processed)
    app.on(JobQueued)(found.sent)
    carry_ids()


class Instrumentation:
    def __init__(self) -> None:
        self.tracer = trace.get_tracer("qd", __version__)
        meter = metrics.get_meter("qd", __version__)
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Jobs that were sent.")
        self._consumed = meter.create_counter("messaging.client.consumed.messages", "{message}", "Attempts that began.")
        self._duration = meter.create_histogram(
            "messaging.process.duration", "s", "How long attempts ran.", explicit_bucket_boundaries_advisory=SECONDS
        )

    def created(self, connection: str, queue: str, payload: Mapping[str, Any]) -> Mapping[str, object]:
        """The keys that carry the context of the producer span."""
        carrier: dict[str, str] = {}
        name = str(payload.get("displayName") or payload.get("job"))
        attributes = described("create", connection, queue, name)
        if "id" in payload:
            attributes["messaging.message.id"] = str(payload["id"])
        with self.tracer.start_as_current_span(f"create {queue}", kind=SpanKind.PRODUCER, attributes=attributes):
            propagate.inject(carrier)
        return carrier

    def sent(self, event: JobQueued) -> None:
        self._sent.add(1, described("send", event.connection, event.queue, event.name or ""))

    def processed(self, job: RunningJob, call_next: Callable[[], object]) -> object:
        """Middleware, outside of all others."""
        payload = json.loads(job.payload or b"{}")
        carrier = {
            key: value for key in propagate.get_global_textmap().fields if isinstance(value := payload.get(key), str)
        }
        parent = propagate.extract(carrier)
        origin = trace.get_current_span(parent).get_span_context()
        attributes = described("process", job.connection, job.queue, job.name)
        self._consumed.add(1, attributes)
        more: dict[str, AttributeValue] = {"messaging.message.id": job.id, "qd.attempt": job.attempt}
        more["messaging.message.body.size"] = len(job.payload)
        began, error = time.monotonic(), ""
        with self.tracer.start_as_current_span(
            f"process {job.queue}",
            parent if carrier else None,
            kind=SpanKind.CONSUMER,
            attributes={**attributes, **more},
            links=[Link(origin)] if carrier and origin.is_valid else [],
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                return call_next()
            except BaseException as raised:
                if not isinstance(raised, Retry):  # a release is no error
                    error = type(raised).__qualname__
                    span.record_exception(raised)
                    span.set_status(StatusCode.ERROR, str(raised))
                    span.set_attribute("error.type", error)
                raise
            finally:
                self._duration.record(
                    time.monotonic() - began, {**attributes, **({"error.type": error} if error else {})}
                )


def described(operation: str, connection: str, queue: str, job: str) -> dict[str, AttributeValue]:
    """Attributes of low cardinality, for spans and metrics."""
    return {
        "messaging.system": "qd",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
        "qd.connection": connection,
        "qd.job": job,
    }


def carry_ids() -> None:
    """Add the ids of the current span to every record of Python's logging, under the names that OpenTelemetry uses."""
    plain = logging.getLogRecordFactory()
    if hasattr(plain, "carries_ids"):
        return

    def make(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = plain(*args, **kwargs)
        context = trace.get_current_span().get_span_context()
        if context.is_valid and not hasattr(record, "otelTraceID"):  # OpenTelemetry's own logging instrumentation
            record.otelTraceID = trace.format_trace_id(context.trace_id)
            record.otelSpanID = trace.format_span_id(context.span_id)
        return record

    make.carries_ids = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(make)
