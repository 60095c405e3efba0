# mypy: ignore-errors
"""Typical mistakes: mypy --strict must report the marked error on each marked line, and no other. The first line is for
checks of the whole project; tests/typing/test_type_checkers.py removes it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import attrs
from pydantic import BaseModel

from qd import Backoff, Fail, Handle, Job, Qd, Retry, RunningJob, current_job, provided
from qd.events import Event, JobFailed, JobProcessing, Looping
from qd.middleware import FailOnException, RateLimited, SkipIf

app = Qd()


@app.job("mail.welcome")
def welcome(to: str, subject: str = "Hello") -> int:
    return 1


@app.job
async def fetch(url: str) -> bytes:
    return b""


@app.job("payments.charge")
class ChargeCard(Job[int]):
    order_id: int

    def handle(self) -> int:
        return self.order_id


class Order(BaseModel):
    id: int


@attrs.define
class Parcel:
    weight: int


@app.job("orders.pack")
def pack(order: Order, parcel: Parcel, folder: Path) -> Order:
    return order


@app.job("orders.pack.class")
class Pack(Job[None]):
    order: Order
    folder: Path

    def handle(self) -> None: ...


# arguments
welcome.dispatch()  # E: call-arg
welcome.dispatch(7)  # E: arg-type
welcome.dispatch("a@b.c", topic="Hi")  # E: call-arg
welcome.bind("a@b.c", 3)  # E: arg-type
welcome.run(to=None)  # E: arg-type
welcome(7)  # E: arg-type
ChargeCard(7)  # E: call-arg
ChargeCard(order_id="7")  # E: arg-type
ChargeCard()  # E: call-arg

# pydantic, attrs, paths
pack.dispatch({"id": 1}, Parcel(1), Path("a"))  # E: arg-type
pack.dispatch(Order(id=1), 7, Path("a"))  # E: arg-type
pack.dispatch(Order(id=1), Parcel(1), "a")  # E: arg-type
Pack(order=Order(id=1), folder="a")  # E: arg-type
packed: Parcel = pack.run(Order(id=1), Parcel(1), Path("a"))  # E: assignment

# options
welcome.dispatch("a@b.c", delay=5)  # E: call-arg
welcome.using(dealy=5)  # E: call-arg
welcome.using(delay="5m")  # E: arg-type
welcome.using(tries="3")  # E: arg-type
welcome.using(encrypted="2026b")  # E: arg-type
welcome.using(backoff="linear")  # E: arg-type
welcome.using(backoff=[1, "5s"])  # E: list-item
welcome.using(jitter="10%")  # E: arg-type
app.job("mail.picky", retry_on=["ConnectionError"])  # E: list-item
app.job("mail.picky", fail_on=ValueError())  # E: call-overload
Backoff(factor="2")  # E: arg-type
Backoff(0, 2, "10m", 0.1, 5)  # E: call-arg
Retry("5m")  # E: arg-type
Retry(30, "busy")  # E: call-arg
Fail()  # E: call-arg
app.job("mail.other", delay=5)  # E: call-overload
app.job("mail.other", timeout="30s")  # E: call-overload
app.job("mail.other", middleware=["lock"])  # E: list-item
app.job("mail.other", version="2")  # E: call-overload
app.job("mail.other", version=2, upgrade={"1": dict})  # E: dict-item
app.job("mail.other", version=2, upgrade={1: print})  # E: dict-item

# results
sent: Handle[str] = welcome.dispatch("a@b.c")  # E: assignment
came: str = welcome.dispatch("a@b.c").result(5)  # E: assignment
welcome.dispatch("a@b.c").result("5s")  # E: arg-type
text: str = welcome.run("a@b.c")  # E: assignment
page: str = fetch.run("https://example.org")  # E: assignment
length = len(fetch("https://example.org"))  # E: arg-type

# calls
app.dispatch(welcome)  # E: arg-type
app.dispatch([welcome.bind("a@b.c")])  # E: arg-type
app.dispatch(welcome("a@b.c"))  # E: arg-type
app.queue("mail").push_raw("{}")  # E: arg-type
app.queue("mail").push("Legacy", delay="5m")  # E: arg-type
app.queue("mail").push("Legacy", encrypted="2026b")  # E: arg-type


# a class job whose handle() returns something else
@app.job
class Wrong(Job[int]):
    def handle(self) -> str:  # E: override
        return ""


# the current job
def inside() -> None:
    current_job().attempt = "2"  # E: assignment
    print(current_job().outside)  # E: attr-defined
    current_job().release("30s")  # E: arg-type


def failing() -> None:
    current_job().fail()  # E: call-arg


# events
@app.on(JobFailed)  # E: arg-type
def other_event(event: JobProcessing) -> None: ...


@app.on(JobFailed)  # E: arg-type
async def never_runs(event: JobFailed) -> None: ...


@app.on(Looping)  # E: arg-type
def no_answer(event: Looping) -> str:
    return "no"


app.on(timedelta)  # E: arg-type
app.on(JobFailed)(lambda event: print(event.delay))  # E: attr-defined


# chains and batches
app.chain(welcome)  # E: call-overload
app.chain(welcome.bind("a@b.c"), catch="sorry")  # E: call-overload
app.batch([welcome.bind("a@b.c")])  # E: arg-type
app.batch(welcome.bind("a@b.c"), allow_failures="yes")  # E: arg-type
app.batch_of(7)  # E: arg-type


# results
@app.job("film.cut")
def cut(film: bytes, minutes: int) -> str:
    return ""


@app.job("film.rate")
def rate(text: str) -> None: ...


@app.job("film.none")
def none() -> None: ...


fetched = fetch.bind("https://example.org")
fetched.call()  # E: call-arg
fetch.handle(7)  # E: arg-type
app.handle("id", ChargeCard).result(5).title()  # E: attr-defined
app.handle("id", Order)  # E: arg-type
app.current_batch().results(welcome)[0].title()  # E: attr-defined
cut.link()  # E: call-arg
cut.link("7")  # E: arg-type
none.link()  # E: misc
app.dispatch(rate.link())  # E: arg-type
app.chain(fetched, cut.link(7))  # E: call-overload
app.chain(fetched, rate.bind("x"), pass_results=True)  # E: call-overload
app.chain(fetched, rate.link(), pass_results=True)  # E: call-overload
app.chain(fetched, cut.link(7), cut.link(7), pass_results=True)  # E: call-overload
app.chain(fetched, cut.link(7), rate.link(), rate.link(), pass_results=True)  # E: call-overload


class OrderPaid(Event):
    order_id: int


OrderPaid("7")  # E: arg-type
OrderPaid()  # E: call-arg
OrderPaid(7).order_id = 8  # E: misc
app.emit(7)  # E: arg-type
app.on(OrderPaid, qeue="mail")  # E: call-overload


@app.on(OrderPaid, queue="mail")  # E: arg-type
def other_queued(event: JobFailed) -> None: ...


@app.on(OrderPaid)  # E: arg-type
async def not_queued(event: OrderPaid) -> None: ...


# commands, providers, hooks
class SendInvoice:
    order_id: int = 0


class Session: ...


def send_invoice(command: SendInvoice) -> None: ...


def needs_url(url: str) -> Session:
    return Session()


@app.job
def count(customer: int, session: Session = provided()) -> None: ...


app.map(OrderPaid, send_invoice)  # E: arg-type
app.map(SendInvoice, send_invoice, delay=5)  # E: call-arg
app.provide(Session, needs_url)  # E: arg-type
app.recycle_on("OperationalError")  # E: arg-type
app.payload_hook(send_invoice)  # E: arg-type
count.dispatch(7, "no session")  # E: arg-type


# middleware
def takes_one(job: RunningJob) -> None: ...


app.middleware.append(takes_one)  # E: arg-type
app.limit("stripe", 100)  # E: call-arg
RateLimited("stripe", "100", per=60)  # E: arg-type
FailOnException("ValueError")  # E: arg-type
SkipIf(True)  # E: arg-type


# events and progress
async def events() -> None:
    app.handle("id").events(since="7")  # E: arg-type
    app.handle("id").events(7, 1.0)  # E: call-arg
    async for event in app.handle("id").events():
        event.number = 7  # E: misc
    current_job().progress("half")  # E: arg-type
    current_job().progress(50, 7)  # E: arg-type
    current_job().emit()  # E: call-arg


# steps
def download(url: str, *, tries: int = 3) -> bytes:
    return b""


current_job().step("fetch", download)  # E: call-overload
current_job().step("fetch", download, 7)  # E: call-overload
current_job().step(download, "fetch")  # E: call-overload
current_job().step("fetch", download("u"))  # E: call-overload
timeout: str = current_job().step("fetch", len, "u")  # E: assignment


# the schedule
app.schedule(welcome)  # E: arg-type
app.schedule(welcome("a@b.c"))  # E: arg-type
app.schedule(needs_url)  # E: arg-type
app.schedule(fetch.bind("https://example.org"), crn="* * * * *")  # E: call-arg
app.schedule(ChargeCard(order_id=7), every="5m")  # E: arg-type
app.schedule(print, missed="onse")  # E: arg-type
app.schedule(print).hourly_at(1.5)  # E: arg-type
app.schedule(print).missed("onse")  # E: arg-type
app.schedule(print).every("5m")  # E: arg-type
app.schedule(print).when("yes")  # E: arg-type
app.schedule(print).before(needs_url)  # E: arg-type
app.schedule(print).at(13)  # E: arg-type
app.schedule(print).dayly()  # E: attr-defined
app.schedule.shell(["ls", "-l"])  # E: arg-type
app.schedule.qd(7)  # E: arg-type
