"""Typical uses: mypy --strict must report no error here. Never run, only checked (tests/typing/test_type_checkers.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, assert_type
from uuid import UUID

import attrs
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import StreamingResponse

from qd import (
    Backoff,
    Batch,
    BatchState,
    Call,
    Duration,
    EventStream,
    Fail,
    Handle,
    Job,
    JobEvent,
    JobFunction,
    Limiter,
    Link,
    Lock,
    Provided,
    Qd,
    Queue,
    Retry,
    RunningJob,
    Scheduled,
    Serializer,
    current_job,
    provided,
)
from qd.contrib.sse import sse
from qd.errors import JobFailedError
from qd.events import Event, JobExceptionOccurred, JobFailed, JobProcessing, Looping, WorkerStopping
from qd.jobs.plan import Status
from qd.locks.lease import Owner
from qd.middleware import (
    ConcurrencyLimit,
    FailOnException,
    RateLimited,
    SkipIf,
    SkipIfBatchCancelled,
    ThrottlesExceptions,
    WithoutOverlapping,
)

# an app
plain = Qd()
named = Qd("redis://localhost:6379/0")
app = Qd(imports=["shop.mail", "shop.billing"])


# declarations
@app.job
def bare(to: str) -> None: ...


@app.job()
def empty(to: str) -> None: ...


@app.job("mail.welcome", queue="mail", tries=5, backoff=[1, 5, 30], timeout=30)
def welcome(to: str, subject: str = "Hello", *, html: bool = True) -> int:
    job = current_job()
    assert_type(job, RunningJob)
    assert_type(job.attempt, int)
    assert_type(job.step("fetch", download, to, tries=5), bytes)
    if job.stopping:
        job.release(30)
    if not to:
        job.fail("nobody to write to")
    return job.attempt


@app.job("mail.slow", timeout=timedelta(minutes=2), backoff=timedelta(seconds=5), retry_for=timedelta(hours=1))
async def slow(at: datetime, price: Decimal, id: UUID) -> dict[str, int]:
    current_job().release(timedelta(seconds=1))


@app.job(
    "mail.grows", tries=8, backoff="exponential", jitter=0, retry_on=ConnectionError, fail_on=(ValueError, KeyError)
)
def grows(to: str) -> int:
    if not to:
        raise Fail("nobody to write to")
    if current_job().attempt == 1:
        raise Retry(delay=timedelta(seconds=5), reason="busy", counts=False)
    raise Retry(30)


@app.job("mail.tuned", backoff=Backoff(first=1, factor=2, max="10m", jitter=0.1), retry_on=[OSError])
def tuned(to: str) -> None: ...


assert_type(Backoff("5s", 1.5, timedelta(hours=1)).max, float)
tuned.using(backoff=Backoff(5), jitter=0.5).dispatch("a@b.c")
tuned.using(backoff="exponential").dispatch("a@b.c")


@app.job("raw.hook", raw=True, tags=("hook",), fail_on_timeout=True, max_exceptions=2, connection="redis")
def hook(data: Any) -> None: ...


def from_v1(data: dict[str, Any]) -> dict[str, Any]:
    return {"to": data["address"]}


@app.job("letters.send", version=3, upgrade={1: from_v1, 2: lambda data: {**data, "copies": 1}})
def letter(to: str, copies: int) -> None: ...


def download(url: str, *, tries: int = 3) -> bytes:
    return b""


async def adownload(url: str) -> list[bytes]:
    return []


@app.job("any.steps")
async def stepped(url: str) -> None:
    job = current_job()
    assert_type(await job.step("fetch", adownload, url), list[bytes])
    first, second = await asyncio.gather(job.step("a", adownload, url), job.step("b", adownload, url))
    assert_type(first + second, list[bytes])
    assert_type(await asyncio.to_thread(job.step, "c", download, url, tries=5), bytes)


@app.job("any.words")
def words(**values: str) -> list[str]:
    return sorted(values)


@app.job("payments.charge", queue="payments", tries=3)
class ChargeCard(Job[Decimal]):
    order_id: int
    currency: str = "EUR"
    lines: list[str] = field(default_factory=list[str])

    def handle(self) -> Decimal:
        return Decimal(self.order_id)

    def failed(self, error: BaseException) -> None:
        print(self.order_id, error)


@app.job
class Report(Job[None]):
    month: int

    async def handle(self) -> None: ...


@app.job
class Sweep(Job[int]):
    def handle(self) -> int:
        return 0


# the plain call
assert_type(welcome("a@b.c"), int)
assert_type(welcome("a@b.c", "Hi", html=False), int)
welcome_name: str = welcome.name


async def plain_async() -> None:
    assert_type(await slow(datetime.now(UTC), Decimal(1), UUID(int=0)), dict[str, int])


# dispatching
assert_type(welcome.dispatch("a@b.c"), Handle[int])
assert_type(welcome.dispatch("a@b.c").result(timedelta(seconds=5)), int)
assert_type(welcome.dispatch("a@b.c").cancel(), bool)
assert_type(app.handle("id", queue="mail").status(), Status)
assert_type(welcome.dispatch(to="a@b.c", subject="Hi"), Handle[int])
assert_type(welcome.dispatch("a@b.c").id, str)
assert_type(slow.dispatch(datetime.now(UTC), Decimal("9.99"), UUID(int=1)), Handle[dict[str, int]])
assert_type(words.dispatch(a="1", b="2"), Handle[list[str]])
hook.dispatch({"any": ["JSON", 1, None]})
bare.dispatch("a@b.c")
empty.dispatch(to="a@b.c")


async def sending() -> None:
    assert_type(await welcome.adispatch("a@b.c"), Handle[int])
    assert_type(await ChargeCard(order_id=7).adispatch(), Handle[Decimal])
    assert_type(await (await welcome.adispatch("a@b.c")).aresult(5), int)
    assert_type(await app.adispatch(welcome.bind("a@b.c"), ChargeCard(order_id=7)), list[Handle[Any]])
    assert_type(await app.chain(welcome.bind("a@b.c")).adispatch(), Handle[None])
    assert_type(await app.batch(welcome.bind("a@b.c")).adispatch(), Batch)
    assert_type(await app.handle("id").astatus(), Status)
    assert_type(await app.handle("id").acancel(), bool)


# options of one dispatch
welcome.using(delay=5).dispatch("a@b.c")
welcome.using(delay=timedelta(minutes=5), queue="high", connection="other").dispatch("a@b.c")
welcome.using(delay=datetime(2030, 1, 1, tzinfo=UTC)).dispatch("a@b.c")
welcome.using(tries=1, timeout=0.5, backoff=(1, timedelta(seconds=2))).dispatch("a@b.c")
assert_type(welcome.using(queue="high").bind("a@b.c"), Call[int])
assert_type(welcome.using(queue="high").using(delay=1)("a@b.c"), int)
pause: Duration = timedelta(seconds=3)
welcome.using(delay=pause).dispatch("a@b.c")

# calls, in bulk too
call = welcome.bind("a@b.c")
assert_type(call.using(delay=60).dispatch(), Handle[int])
assert_type(call.run(), int)
assert_type(ChargeCard(order_id=7).dispatch(), Handle[Decimal])
assert_type(ChargeCard(order_id=7, currency="USD").using(delay=1), ChargeCard)
assert_type(ChargeCard(order_id=7).order_id, int)
assert_type(Sweep().dispatch(), Handle[int])
assert_type(app.dispatch(welcome.bind("a@b.c"), ChargeCard(order_id=7), Report(month=7)), list[Handle[Any]])
app.dispatch(*[welcome.bind(f"{number}@b.c") for number in range(3)])
several: list[Call[Any]] = [welcome.bind("a@b.c"), Report(month=1)]

# run()
assert_type(welcome.run("a@b.c"), int)
assert_type(slow.run(datetime.now(UTC), Decimal(1), UUID(int=0)), dict[str, int])
assert_type(ChargeCard(order_id=7).run(), Decimal)

# queues
mail = app.queue("mail", connection="redis")
assert_type(mail, Queue)
assert_type(mail.push(r"App\Jobs\Report@fire", {"month": 7}), Handle[None])
mail.push("Legacy", delay=timedelta(minutes=1), encrypted=True)


@app.job("shop.pay", encrypted=True)
def pay(card: str) -> int:
    return len(card)


assert_type(pay.dispatch("4111"), Handle[int])
mail.push_raw(b"{}", delay=3)
waiting: int = mail.size() + mail.clear()


# events
@app.on(JobFailed)
def tell(event: JobFailed) -> None:
    print(event.job.name, event.job.id, event.job.queue, event.error)


@app.on(Looping)
def only_at_night(event: Looping) -> bool:
    return datetime.now(UTC).hour < 6


@app.on(WorkerStopping)
def last_words(event: WorkerStopping) -> None:
    print(event.reason, event.code)


@app.on(Event)
def everything(event: Event) -> None: ...


app.on(JobProcessing)(lambda event: print(event.job.name))


class OrderPaid(Event):
    order_id: int
    currency: str = "EUR"


@app.on(OrderPaid)
def count(event: OrderPaid) -> None:
    assert_type(event.order_id, int)


@app.on(OrderPaid, queue="mail", tries=3, delay=timedelta(minutes=1), after_commit=True)
def thank(event: OrderPaid) -> str:
    return event.currency


@app.on(OrderPaid, "books.paid")
async def book(event: OrderPaid) -> None: ...


app.emit(OrderPaid(7))
app.emit(OrderPaid(order_id=7, currency="USD"))


@app.payload_hook
def tenant(connection: str, queue: str, payload: Mapping[str, Any]) -> dict[str, object]:
    return {"tenant": queue}


# commands
@dataclass
class SendInvoice:
    order_id: int


def send_invoice(command: SendInvoice, session: Session = provided()) -> str:
    return f"{command.order_id} {session}"


async def send_later(command: SendInvoice) -> None: ...


class Invoices:
    def handle(self, command: SendInvoice) -> None: ...


app.map(SendInvoice, send_invoice, queue="mail", tries=5)
app.map(SendInvoice, send_later, "mail.later")
app.map(SendInvoice, Invoices)
assert_type(app.send(SendInvoice(7)), Handle[Any])
assert_type(app.bind(SendInvoice(7)), Call[Any])
app.bind(SendInvoice(7)).using(delay=60).dispatch()


# pydantic, attrs, paths
class Order(BaseModel):
    id: int


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


@attrs.define
class Parcel:
    weight: int
    order: Order | None = None


@app.job("orders.pack")
def pack(
    order: Order,
    orders: dict[str, list[Order]],
    parcel: Parcel | None,
    pet: Annotated[Cat | Dog, Field(discriminator="kind")],
    folder: Path = Path("a"),
) -> Order:
    return order


pack.dispatch(Order(id=1), {"a": [Order(id=2)]}, Parcel(1, Order(id=3)), Dog(), Path("b"))
assert_type(pack.run(Order(id=1), {}, None, Cat()), Order)
assert_type(pack.dispatch(Order(id=1), {}, None, Cat()), Handle[Order])


@app.job("orders.pack.class")
class Pack(Job[Order]):
    order: Order
    folders: list[Path] = field(default_factory=list[Path])

    def handle(self) -> Order:
        return self.order


Pack(order=Order(id=1), folders=[Path("a")]).dispatch()


# provided values and models
class Session: ...


def make_session() -> Iterator[Session]:
    yield Session()


@contextmanager
def opened() -> Generator[Session]:
    yield Session()


app.provide(Session, make_session)
app.provide(Session, opened)
app.provide(Session, Session)
app.provide(Session, lambda: Session())
app.recycle_on(OSError, ValueError)


@app.job("orders.count")
def count_orders(customer: int, session: Session = provided()) -> int:
    return customer


assert_type(count_orders.dispatch(7), Handle[int])


@app.job
class CountOrders(Job[int]):
    customer: int
    session: Session = provided()

    @property
    def display_name(self) -> str:
        return f"of {self.customer}"

    def tags(self) -> list[str]:
        return ["orders"]

    def handle(self) -> int:
        return self.customer

    def send(self, connection: Queue) -> None:
        connection.push("orders.count", {"customer": self.customer})


CountOrders(customer=7).dispatch()


class Orders:
    def recognizes(self, kind: type) -> bool:
        return issubclass(kind, Session)

    def name(self, kind: type) -> str:
        return kind.__name__

    def pack(self, thing: Session) -> int | None:
        return 7

    def load(self, kind: type, key: object, given: Provided) -> Session | None:
        return given(Session)


orders: Serializer = Orders()
app.serializer(orders)
app.on(JobExceptionOccurred)(lambda event: print(event.error))


# in tests
with app.fake() as fake:
    welcome.dispatch("a@b.c")
    assert_type(fake.dispatched(welcome)[0].arguments, dict[str, Any])
    assert_type(fake.dispatched(ChargeCard)[0].options.get("queue"), str | None)
    assert fake.chains[0].catch is None
with app.inline() as ran:
    print(ran.all(), ran.pushed("php"))


# passing jobs around
def later(job: JobFunction[[str], Any, Any]) -> None:
    job.using(delay=60).dispatch("a@b.c")


def soon(call: Call[int]) -> int:
    return call.run()


later(bare)
soon(welcome.bind("a@b.c"))


# chains and batches
chain = app.chain(welcome.bind("a@b.c"), welcome.using(delay=5).bind("d@e.f"), catch=bare.bind("sorry"))
assert_type(chain.dispatch(), Handle[None])
assert_type(chain.using(queue="high").run(), None)
batch = app.batch(
    *[bare.bind(str(n)) for n in range(3)], then=welcome.bind("all"), finally_=empty.bind("x"), name="three"
)
sent_batch = batch.using(delay=1).dispatch()
assert_type(sent_batch, Batch)
assert_type(sent_batch.progress, int)
assert_type(sent_batch.look(), BatchState)
assert_type(sent_batch.add(bare.bind("more")), list[Handle[Any]])
assert_type(app.batch_of(sent_batch.id).cancelled, bool)
tied: list[Call[None]] = [chain, batch]


# events and progress
async def followed() -> None:
    stream = app.handle("id").events(since=7)
    assert_type(stream, EventStream)
    async for event in stream:
        assert_type(event, JobEvent)
        assert_type((event.number, event.at), tuple[int, float])
    assert_type(stream.status, Status | None)


def polled(handle: Handle[None], request: Request) -> StreamingResponse:
    assert_type([event.data for event in handle.events(7, wait=timedelta(seconds=1))], list[Any])
    assert_type(handle.progress_details(), dict[str, Any])
    current_job().emit({"token": "a"})
    current_job().progress(40, "scaling", step=3)
    return sse(handle, request, keep_alive=5)


# results: call and wait, handles of earlier calls, results passed along a chain
@app.job("film.fetch")
async def film(title: str) -> Decimal:
    return Decimal(len(title))


@app.job("film.cut")
def cut(length: Decimal, minutes: int, *, quiet: bool = False) -> int:
    return int(length) - minutes


@app.job("film.rate")
def rate(minutes: float | None) -> str:
    return str(minutes)


async def call_and_wait() -> None:
    assert_type(await film.bind("Vertigo").acall(timeout=5), Decimal)
    assert_type(welcome.bind("a@b.c").call(timeout=timedelta(seconds=5)), int)
    assert_type(ChargeCard(order_id=7).call(timeout=5), Decimal)


assert_type(film.handle("id"), Handle[Decimal])
assert_type(film.using(queue="high").handle("id").result(5), Decimal)
assert_type(app.handle("id", ChargeCard), Handle[Decimal])
assert_type(app.handle("id", job=film, queue="mail"), Handle[Decimal])
assert_type(app.current_batch().results(), list[Any])
assert_type(app.current_batch().results(film), list[Decimal])
assert_type(app.batch_of("id").results(ChargeCard), list[Decimal])
assert_type(app.batch_of("id").results(film, return_exceptions=True), list[Decimal | JobFailedError])

assert_type(cut.link(7, quiet=True), Link[Decimal, int])
app.chain(film.bind("Vertigo"), cut.link(7), pass_results=True).dispatch()
app.chain(ChargeCard(order_id=7), cut.using(queue="high", delay=5).link(7), rate.link(), pass_results=True)
short = (cut.link(7), rate.link(), bare.link())
app.chain(film.bind("Vertigo"), *short, catch=bare.bind("sorry"), pass_results=True).run()
app.chain(film.bind("x"), cut.link(7), rate.link(), film.link(), cut.link(7), pass_results=True)
app.chain(film.bind("x"), cut.link(7), rate.link(), film.link(), cut.link(7), rate.link(), pass_results=True)
app.chain(
    film.bind("x"), cut.link(7), rate.link(), film.link(), cut.link(7), rate.link(), bare.link(), pass_results=True
)


# middleware
@app.middleware
def around_all(job: RunningJob, call_next: Callable[[], object]) -> object:
    assert_type(job.tags, tuple[str, ...])
    return call_next()


async def around_async(job: RunningJob, call_next: Callable[[], Awaitable[object]]) -> object:
    return await call_next()


class Timed:
    def __call__(self, job: RunningJob, call_next: Callable[[], object]) -> object:
        if job.attempt > 3:
            job.release(timedelta(minutes=1), reason="not now", counts=False)
        return call_next()


app.middleware.append(Timed())
app.limit("stripe", 100, per=timedelta(minutes=1))
held = [WithoutOverlapping("report:{report_id}", expires=600), ConcurrencyLimit(lambda job: job.name, 3)]


@app.job(
    "mail.held",
    middleware=[
        *held,
        Timed(),
        RateLimited("stripe"),
        RateLimited("mail", 10, per=1, key="{report_id}"),
        ThrottlesExceptions(3, 60, 300, only=(OSError, ValueError)),
        SkipIf(lambda job: job.arguments["report_id"] == 1),
        SkipIfBatchCancelled(),
        FailOnException(KeyError),
        around_async,
    ],
)
async def held_back(report_id: int) -> None: ...


# the schedule
def tidy() -> int:
    return 1


async def refresh() -> None: ...


@app.job("shop.yearly")
def yearly(month: int = 1) -> None: ...


class Stock:
    def refill(self) -> None: ...


assert_type(app.schedule(welcome.bind("a@b.c")).weekdays().at("7:00"), Scheduled)
app.schedule(yearly, cron="0 7 * * *", timezone="Europe/Berlin", overlap=False, missed="once", name="yearly")
app.schedule(ChargeCard(order_id=7), every=timedelta(minutes=5))
app.schedule(chain).daily_at("13:00").environments("production", "staging")
app.schedule(refresh, every=0.5).even_in_maintenance_mode().on_every_host()
app.schedule(Stock().refill).every(hours=1, minutes=30).without_overlapping().missed("all")
app.schedule(lambda: None, name="nothing").hourly_at("5").hourly_at([0, 30]).when(lambda: True).skip(False)
app.schedule(tidy).days("mon", 3).twice_daily(1, 13).between("8:00", "17:00").unless_between("12:00", "13:00")
app.schedule(tidy).weekly_on(["monday", "friday"], "8:00").before(tidy).after(refresh).then(lambda: print())
app.schedule(tidy).last_day_of_month("15:00").on_success(tidy).on_failure(tidy).timeout(timedelta(minutes=1))
app.schedule(tidy).every_ten_seconds().in_background().output_to(Path("/tmp/out"), append=True).name("tidy")
app.schedule.shell("pg_dump", "shop", 7, {"file": Path("/backup"), "verbose": True, "table": ["a", "b"]}).daily()
app.schedule.shell("true", every=10).append_output_to("true.log")
app.schedule.qd("failed forget --older-than 30d", {"queue": "mail"}, cron="@weekly")


# locks and limits
async def locked() -> None:
    async with app.lock("report", ttl=timedelta(seconds=30), timeout=10) as lock:
        assert_type(lock, Lock)
        await lock.aextend(60)
    assert_type(await lock.aacquire(timeout=1), bool)
    assert_type(await app.limiter("stripe").aacquire(5), bool)


def guarded() -> None:
    with app.lock("report", 30, renew=True, connection="far") as lock:
        assert_type(lock.token, int)
        assert_type(lock.owner(), Owner | None)
    assert_type(app.lock("report", ttl=30).acquire(blocking=False), bool)
    with app.limiter("stripe", 100, per=timedelta(minutes=1)) as stripe:
        assert_type(stripe, Limiter)
        assert_type(stripe.left(), int)
