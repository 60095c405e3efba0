"""qd with Sentry: errors, transactions and check-ins of cron monitors.

    instrument(app)
      dispatch        a span `queue.publish`; the trace travels in the payload as `sentry-trace` and `baggage`
      an attempt      a transaction `queue.process` named after the job, in an isolation scope of its own
      a failed job    its error, once, with the job as tags and context; arguments are not sent
      a tick          check-ins of the monitor named after the entry

Call sentry_sdk.init() where the app is made: Sentry starts its threads again in each process that is forked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import sentry_sdk
from sentry_sdk.crons import capture_checkin

from qd.app import Qd
from qd.errors import Settled
from qd.events import JobFailed, ScheduledTaskFailed, ScheduledTaskFinished, ScheduledTaskStarting, WorkerStopping
from qd.jobs.context import RunningJob
from qd.jobs.policy import Fail

KEYS = ("sentry-trace", "baggage")  # of a payload
FLUSH = 2.0  # seconds for the last events of a worker


def instrument(app: Qd, *, monitors: bool = True) -> None:
    """Report the jobs and entries of `app`. Call it once. monitors: send check-ins of schedule entries."""
    app.payload_hook(published)
    app.middleware.insert(0, processed)
    app.on(JobFailed)(failed)
    app.on(WorkerStopping)(lambda event: sentry_sdk.flush(FLUSH))
    if monitors:
        checkins = dict[str, str]()  # entry -> id of the check-in of its run
        app.on(ScheduledTaskStarting)(lambda event: checkins.update({event.task: check_in(event.task, "in_progress")}))
        for kind, status in ((ScheduledTaskFinished, "ok"), (ScheduledTaskFailed, "error")):
            app.on(kind)(ended(checkins, status))


def published(connection: str, queue: str, payload: Mapping[str, Any]) -> Mapping[str, object]:
    with sentry_sdk.start_span(op="queue.publish", name=queue) as span:
        span.set_data("messaging.destination.name", queue)
        carried = zip(KEYS, (sentry_sdk.get_traceparent(), sentry_sdk.get_baggage()), strict=True)
        return {key: value for key, value in carried if value}


def processed(job: RunningJob, call_next: Callable[[], object]) -> object:
    """Middleware, outside of all others."""
    payload = msgspec.json.decode(job.payload or b"{}")
    headers = {key: value for key in KEYS if isinstance(value := payload.get(key), str)}
    with sentry_sdk.isolation_scope() as scope:
        describe(scope, job)
        transaction = sentry_sdk.continue_trace(headers, op="queue.process", name=job.name, source="task")
        with sentry_sdk.start_transaction(transaction) as span:
            span.set_data("messaging.message.id", job.id)
            span.set_data("messaging.destination.name", job.queue)
            span.set_data("messaging.message.retry.count", job.attempt - 1)
            span.set_status("ok")
            try:
                return call_next()
            except Settled as raised:  # a release is no error, and must not set the status when it leaves the block
                if isinstance(raised, Fail):
                    span.set_status("internal_error")
                settled = raised
        raise settled


def failed(event: JobFailed) -> None:
    with sentry_sdk.isolation_scope() as scope:
        describe(scope, event.job)
        sentry_sdk.capture_exception(event.error)


def describe(scope: sentry_sdk.Scope, job: RunningJob) -> None:
    scope.set_transaction_name(job.name, source="task")
    scope.set_tag("job", job.name)
    scope.set_tag("queue", job.queue)
    scope.set_context("job", {"id": job.id, "connection": job.connection, "attempt": job.attempt})


def ended(checkins: dict[str, str], status: str) -> Callable[[Any], None]:
    def listener(event: ScheduledTaskFinished | ScheduledTaskFailed) -> None:
        check_in(event.task, status, checkins.pop(event.task, None), event.runtime)

    return listener


def check_in(entry: str, status: str, id: str | None = None, seconds: float | None = None) -> str:
    """Returns the id of the check-in."""
    slug = re.sub(r"[^a-z0-9_-]+", "-", entry.lower()).strip("-")[:50]
    return capture_checkin(slug, id, status, seconds) or ""
