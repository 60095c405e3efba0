"""The events that listeners get from a real worker, and their order: Laravel's, as recorded."""

from __future__ import annotations

import pytest

from tests.support.payloads import failed, push, push_laravel
from tests.support.project import GENTLE, MakeProject, Project, ready
from tests.support.redis import FAILED, Client
from tests.support.witness import JOBS, Witness

pytestmark = [pytest.mark.usefixtures("clean_redis"), FAILED]

EVENTS = (
    JOBS
    + """
from qd import Job
from qd.events import Event, JobAttempted, JobPopped, WorkerStopping

@app.on(Event)
def tell(event: Event) -> None:
    job = getattr(event, "job", None)
    note(job.name if job else "-", type(event).__name__)

@app.on(JobAttempted)
def attempted(event: JobAttempted) -> None:
    note("error", event.job.name, repr(event.error))

@app.on(JobPopped)
def popped(event: JobPopped) -> None:
    job = event.job
    note("popped", job.connection, job.queue, job.name, job.id, b'"attempts":' in job.payload)

@app.on(WorkerStopping)
def stopping(event: WorkerStopping) -> None:
    note("stopping", event.reason, event.code, event.connection, event.queues, event.jobs, event.memory > 1_000_000)

@app.job("good")
def good() -> None:
    note("good", "runs")

@app.job("typed")
def typed(number: int) -> None:
    note("typed", "runs")

class WithFailedHook(Job[None]):
    def failed(self, error: BaseException) -> None:
        note(type(self).__name__.lower(), "failed()")

@app.job("bad", tries=2)
class Bad(WithFailedHook):
    def handle(self) -> None:
        raise ValueError

@app.job("late", tries=2, timeout=0.5)
class Late(WithFailedHook):
    def handle(self) -> None:
        time.sleep(60)

@app.job("back")
def back() -> None:
    if current_job().attempt == 1:
        current_job().release()
    current_job().fail("no")
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=EVENTS)


def events_of(witness: Witness, job: str) -> list[str]:
    return [line.split()[1] for line in witness.lines if line.split()[0] == job]


# As recorded with Laravel 13. `failed()` is the job's own hook.
SUCCESS = ["JobPopped", "JobProcessing", "runs", "JobProcessed", "JobAttempted"]
THROWS = ["JobPopped", "JobProcessing", "JobExceptionOccurred", "JobReleasedAfterException", "JobAttempted"]
THROWS_LAST = ["JobPopped", "JobProcessing", "failed()", "JobFailed", "JobExceptionOccurred", "JobAttempted"]
OVER_ITS_LIMIT = THROWS_LAST
TIMEOUT = ["JobPopped", "JobProcessing", "JobTimedOut"]
TIMEOUT_LAST = ["JobPopped", "JobProcessing", "failed()", "JobFailed", "JobTimedOut"]
EMPTY_POLL = ["Looping", "JobPopping", "WorkerIdle"]


def test_events_come_in_laravels_order(shop: Project, witness: Witness, redis: Client) -> None:
    for job in ("good", "bad", "late", "back"):
        push_laravel(redis, job)
    shop.program = GENTLE
    shop.work_off("--tries", "3")
    assert events_of(witness, "good") == SUCCESS
    assert events_of(witness, "bad") == [*THROWS, *THROWS_LAST]
    # A worker outlives a timeout for as long as it takes to answer: the job is not left to its lease.
    assert events_of(witness, "late") == [
        *(*TIMEOUT, "JobReleasedAfterException", "JobAttempted"),
        *(*TIMEOUT_LAST, "JobAttempted"),
    ]
    by_hand = ["JobPopped", "JobProcessing", "JobReleased", "JobAttempted"]
    assert events_of(witness, "back") == [*by_hand, *[word for word in THROWS_LAST if word != "failed()"]]
    assert witness.starting("error good") == ["error good None"]
    assert [line.split("(")[0] for line in witness.starting("error late")] == ["error late JobTimeout"] * 2
    workers = [word for word in events_of(witness, "-") if word in ("WorkerStarting", "WorkerStopping")]
    assert workers == ["WorkerStarting", "WorkerStopping"] * 3  # one that raised JobTimeout takes no further job


def test_a_job_over_its_limit_fires_the_same_events_as_in_laravel(
    shop: Project, witness: Witness, redis: Client
) -> None:
    push_laravel(redis, "bad", maxTries=1, attempts=1)
    shop.work_off()
    assert events_of(witness, "bad") == OVER_ITS_LIMIT


def test_arguments_that_do_not_fit_are_an_attempt_that_failed(shop: Project, witness: Witness, redis: Client) -> None:
    push(redis, "typed", number="seven")
    shop.work_off()
    assert events_of(witness, "typed") == [word for word in THROWS_LAST if word != "failed()"]


def test_a_worker_tells_its_own_life(shop: Project, witness: Witness, redis: Client) -> None:
    push(redis, "good")
    work = ready(shop)
    witness.wait("- WorkerIdle")
    work.stop()
    lines = [line.split()[1] for line in witness.lines if line.split()[0] in ("-", "good")]
    first = ["WorkerStarting", "Looping", "JobPopping", *SUCCESS, *EMPTY_POLL]
    assert lines[: len(first)] == first
    rest = lines[len(first) :]
    assert rest[-2:] == ["WorkerInterrupted", "WorkerStopping"]
    assert rest[:-2] == EMPTY_POLL * (len(rest[:-2]) // 3)
    assert witness.starting("popped")[0].startswith("popped redis default good ")
    assert witness.starting("popped")[0].endswith(" True")
    assert witness.starting("stopping") == ["stopping signal 0 redis ('default',) 1 True"]


RAISING = (
    JOBS
    + """
from qd.events import Event

@app.on(Event)
def broken(event: Event) -> None:
    raise ValueError("from a listener")
"""
)


def test_listeners_that_raise_harm_neither_jobs_nor_workers(shop: Project, witness: Witness, redis: Client) -> None:
    shop.jobs(RAISING)
    push(redis, "quick")
    push(redis, "boom")
    work = ready(shop)
    work.wait_line("job.failed .*job=boom .*this job never works")
    work.wait_line("the listener broken of WorkerIdle raised")
    work.stop()
    assert len(witness.starting("quick")) == 1
    assert len(witness.starting("boom")) == 2
    assert len(failed(redis)) == 1
    for event in ("WorkerStarting", "Looping", "JobPopping", "JobPopped", "JobProcessed", "JobAttempted", "JobFailed"):
        assert work.matches(f"the listener broken of {event} raised")


LEAVING = (
    JOBS
    + """
import asyncio
from qd import Job
from qd.events import Event, JobProcessing

@app.on(Event)
def broken(event: Event) -> None:
    for kind in asyncio.CancelledError, KeyboardInterrupt, GeneratorExit, SystemExit:
        if Path(kind.__name__).exists():
            raise kind("from a listener")

@app.on(JobProcessing)
def copies(event: JobProcessing) -> None:
    if event.job.name == "copied" and not os.fork():
        sys.exit(3)

@app.job("copied")
def copied() -> None:
    note("copy", os.waitstatus_to_exitcode(os.wait()[1]))

@app.job("hooked", tries=1)
class Hooked(Job[None]):
    def handle(self) -> None:
        raise ValueError("why it failed")

    def failed(self, error: BaseException) -> None:
        note("failed", type(error).__name__)
        broken(error)
"""
)


@pytest.mark.parametrize("kind", ["CancelledError", "KeyboardInterrupt", "GeneratorExit", "SystemExit"])
def test_whatever_a_listener_or_failed_raises_harms_neither_the_job_nor_its_worker(
    shop: Project, witness: Witness, redis: Client, kind: str
) -> None:
    shop.jobs(LEAVING)
    (shop.root / kind).touch()
    shop.allowed.add(kind)
    push(redis, "quick")
    push(redis, "hooked")
    push(redis, "copied")
    work = shop.work_off()
    assert len(witness.starting("quick")) == 1
    assert witness.starting("failed") == ["failed ValueError"]
    assert witness.starting("copy") == ["copy 3"]
    ((record, _),) = failed(redis)
    assert (record["job"], record["reason"], record["attempts"]) == ("hooked", "why it failed", 1)
    for event in (
        "WorkerStarting",
        "Looping",
        "JobPopped",
        "JobProcessing",
        "JobProcessed",
        "JobAttempted",
        "JobFailed",
    ):
        assert work.matches(f"the listener broken of {event} raised")
    assert not work.matches("worker.died")


QUEUED = (
    JOBS
    + """
from dataclasses import dataclass
from qd.events import Event

class OrderPaid(Event):
    order_id: int
    currency: str = "EUR"

@dataclass
class SendInvoice:
    order_id: int

class Invoices:
    def handle(self, command: SendInvoice) -> None:
        note("invoice", command.order_id)

app.map(SendInvoice, Invoices, "mail.invoice", queue="mail")

@app.on(OrderPaid)
def at_once(event: OrderPaid) -> None:
    note("at once", event.order_id)

@app.on(OrderPaid, queue="mail")
def thank(event: OrderPaid) -> None:
    note("thanks", event.order_id, event.currency, current_job().name)
    app.send(SendInvoice(event.order_id))

@app.on(OrderPaid, "books.paid", queue="mail")
async def book(event: OrderPaid) -> None:
    note("booked", event.order_id)

@app.job("pay")
def pay(order_id: int) -> None:
    app.emit(OrderPaid(order_id, currency="USD"))
"""
)


def test_queued_listeners_and_commands_run_on_a_worker(shop: Project, witness: Witness, redis: Client) -> None:
    shop.jobs(QUEUED)
    push(redis, "pay", order_id=7)
    work = ready(shop, "default", "mail")
    assert witness.wait("invoice") == ["invoice 7"]
    assert witness.wait("booked") == ["booked 7"]
    work.stop()
    assert witness.starting("at once") == ["at once 7"]
    assert witness.starting("thanks") == ["thanks 7 USD jobs.thank"]
    listed = shop.qd("declared").stdout
    for name in ("jobs.thank", "books.paid", "mail.invoice"):
        assert name in listed
