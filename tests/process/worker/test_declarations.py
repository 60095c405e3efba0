"""Declarations of jobs on a real worker: providers, models, class jobs, recycling."""

from __future__ import annotations

import pytest

from tests.support.payloads import failed, push
from tests.support.processes import Procs
from tests.support.project import GENTLE, MakeProject, Project, ready
from tests.support.redis import FAILED, Client
from tests.support.witness import JOBS, Witness

pytestmark = [pytest.mark.usefixtures("clean_redis"), FAILED]

SHOP = (
    JOBS
    + """
import signal
import asyncio
from qd import Job, provided

class Session:
    pass

class Cache:
    pass

class Broken(Exception):
    pass

def make_session():
    note("open")
    try:
        yield Session()
    except BaseException as error:
        note("rollback", type(error).__name__)
        raise
    else:
        note("commit")

app.provide(Session, make_session)
app.recycle_on(Broken, ConnectionError)

@app.job("count", tries=2)
def count(how: str, session: Session = provided()) -> None:
    note("run", type(session).__name__)
    if how == "raise": raise ValueError("no")
    if how == "release" and current_job().attempt == 1: current_job().release()
    if how == "late": time.sleep(60)

@app.job("counted")
async def counted(session: Session = provided()) -> None:
    await asyncio.sleep(0)
    note("run", type(session).__name__)

@app.job("nobody", tries=5)
def nobody(cache: Cache = provided()) -> None:
    note("run")

@app.job("breaks", tries=2)
def breaks(how: str) -> None:
    note("run", current_job().attempt, os.getpid())
    if how == "once" and current_job().attempt > 1:
        return
    raise BrokenPipeError("gone") if how == "sub" else Broken("gone")

class Order:
    def __init__(self, key):
        self.key = key

class Rows:
    def recognizes(self, kind):
        return issubclass(kind, Order)

    def name(self, kind):
        return "shop.Order"

    def pack(self, thing):
        return thing.key

    def load(self, kind, key, given):
        if key == 500:
            raise ConnectionError("no database")
        if key == 408:
            time.sleep(60)
        note("load", key, type(given(Session)).__name__)
        return Order(key) if key < 100 else None

app.serializer(Rows())

@app.job("ship", tries=3)
def ship(order: Order) -> None:
    note("ship", order.key)

@app.job("ship.or.not", tries=3, delete_when_missing=True)
def ship_or_not(order: Order) -> None:
    note("ship", order.key)

@app.job("shipped")
class Shipped(Job[None]):
    order: Order

    def handle(self) -> None:
        note("handle", self.order.key)
        raise ValueError("no")

    def failed(self, error: BaseException) -> None:
        note("failed", type(error).__name__)
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=SHOP)


def order(key: int) -> dict[str, object]:
    return {"model": "shop.Order", "key": key}


# -- pydantic, attrs, paths

ORDERS = (
    JOBS
    + """
from pathlib import Path
from typing import Annotated, Literal
import attrs
from pydantic import BaseModel, Field
from qd import Job

class Line(BaseModel):
    sku: str
    count: int = Field(default=1, gt=0)

class Order(BaseModel):
    id: int
    lines: list[Line] = []

class Card(BaseModel):
    kind: Literal["card"] = "card"

class Cash(BaseModel):
    kind: Literal["cash"] = "cash"

@attrs.define
class Parcel:
    weight: int
    order: Order | None = None

@app.job("ship", tries=5, result_ttl=60)
def ship(orders: list[Order], by: Annotated[Card | Cash, Field(discriminator="kind")], folder: Path) -> dict[str, Parcel]:
    note("ship", type(orders[0]).__name__, orders[0].lines, type(by).__name__, folder)
    return {"first": Parcel(7, orders[0])}

@app.job("pack")
class Pack(Job[None]):
    parcel: Parcel

    def handle(self) -> None:
        note("pack", self.parcel.order.lines[0].sku)
"""
)


@pytest.fixture
def orders(project: MakeProject) -> Project:
    return project(jobs=ORDERS)


@pytest.mark.leaves("qd:job:*")
def test_models_attrs_classes_and_paths_arrive_at_a_worker_and_come_back_as_a_result(
    orders: Project,
) -> None:
    work = ready(orders)
    got = orders.python(
        """
        from jobs import *
        order = Order(id=7, lines=[Line(sku="x", count=2)])
        Pack(parcel=Parcel(1, order)).dispatch()
        print(ship.dispatch([order], Cash(), Path("a/b")).result(10))
        """
    )
    work.stop()
    assert got.stdout == "{'first': Parcel(weight=7, order=Order(id=7, lines=[Line(sku='x', count=2)]))}\n"
    assert Witness(orders).lines == ["pack x", "ship Order [Line(sku='x', count=2)] Cash a/b"]


@pytest.mark.leaves("qd:job:*")
def test_a_model_that_does_not_validate_fails_the_job_at_once_naming_the_parameter(
    orders: Project, redis: Client
) -> None:
    push(redis, "ship", orders=[{"id": 1, "lines": [{"sku": "x", "count": 0}]}], by={"kind": "card"}, folder="a")
    work = orders.work_off()
    assert work.matches(
        r"job.failed .*job 'ship': argument 'orders' is of the wrong type: lines\.0\.count: Input should be greater than 0"
    )
    ((record, _),) = failed(redis)
    assert (record["error"], record["attempts"]) == ("WrongType", 1)
    assert Witness(orders).lines == []


# -- providers


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("", ["open", "run Session", "commit"]),
        ("raise", ["open", "run Session", "rollback ValueError"] * 2),
        ("release", ["open", "run Session", "rollback Retry", "open", "run Session", "commit"]),
    ],
)
def test_what_is_provided_is_closed_when_the_job_has_ended_and_sees_its_error(
    shop: Project, witness: Witness, redis: Client, how: str, expected: list[str]
) -> None:
    push(redis, "count", how=how)
    shop.work_off()
    assert witness.lines == expected
    assert [record["error"] for record, _ in failed(redis)] == ["ValueError"] * (how == "raise")


def test_a_timeout_is_an_error_to_what_is_provided(shop: Project, witness: Witness, redis: Client) -> None:
    push(redis, "count", how="late")
    shop.program = GENTLE
    work = ready(shop, "--timeout", "1")
    work.wait_line("job.failed .*JobTimeout")
    work.stop()
    assert witness.lines == ["open", "run Session", "rollback JobTimeout"] * 2


def test_async_jobs_are_provided_too(shop: Project, witness: Witness, redis: Client) -> None:
    push(redis, "counted")
    shop.work_off()
    assert witness.lines == ["open", "run Session", "commit"]


def test_what_nothing_provides_fails_the_job_at_once_in_a_clear_line(
    shop: Project, witness: Witness, redis: Client
) -> None:
    push(redis, "nobody")
    work = shop.work_off()
    assert work.matches(
        r"job.failed .*job 'nobody': nothing provides its parameter 'cache': call app.provide\(Cache, ...\)"
    )
    ((record, _),) = failed(redis)
    assert (record["error"], record["attempts"]) == ("NoProvider", 1)
    assert witness.lines == []


# -- models


def test_a_model_is_loaded_on_the_worker(shop: Project, witness: Witness, redis: Client) -> None:
    push(redis, "ship", order=order(42))
    shop.work_off()
    assert witness.lines == ["open", "load 42 Session", "ship 42", "commit"]


def test_a_row_that_is_gone_fails_the_job_at_once(shop: Project, witness: Witness, redis: Client) -> None:
    push(redis, "ship", order=order(404))
    work = shop.work_off()
    assert work.matches(r"job.failed .*job=ship .*ModelGone: job 'ship': argument 'order': shop.Order 404 is gone")
    assert witness.starting("load") == ["load 404 Session"]
    ((record, _),) = failed(redis)
    assert (record["error"], record["attempts"]) == ("ModelGone", 1)


def test_a_row_that_is_gone_ends_a_job_that_says_so(shop: Project, witness: Witness, redis: Client) -> None:
    push(redis, "ship.or.not", order=order(404))
    push(redis, "ship.or.not", order=order(42))
    work = shop.work_off()
    assert work.matches(r"job.missing .*job=ship.or.not .*shop.Order 404 is gone")
    assert witness.starting("ship") == ["ship 42"]
    assert failed(redis) == []


def test_a_job_that_was_sent_so_says_so_itself(shop: Project, witness: Witness, redis: Client) -> None:
    shop.python(
        """
        from jobs import Order, ship, ship_or_not
        ship.using(delete_when_missing=True).dispatch(Order(404))
        ship_or_not.using(delete_when_missing=False).dispatch(Order(404))
        """
    )
    work = shop.work_off()
    assert work.matches("job.missing .*job=ship ")
    assert [record["job"] for record, _ in failed(redis)] == ["ship.or.not"]


def test_failed_gets_an_instance_with_its_row_or_is_not_called(shop: Project, witness: Witness, redis: Client) -> None:
    push(redis, "shipped", order=order(42))
    push(redis, "shipped", order=order(404))
    work = shop.work_off()
    assert witness.starting("handle") == ["handle 42"]
    assert witness.starting("failed") == ["failed ValueError"]
    assert sorted(str(record["error"]) for record, _ in failed(redis)) == ["ModelGone", "ValueError"]
    assert not work.matches("failed.* or a listener raised")


def test_a_database_that_is_away_is_an_error_like_others(shop: Project, witness: Witness, redis: Client) -> None:
    push(redis, "ship", order=order(500))
    work = shop.work_off()
    assert work.matches("job.released .*job=ship .*attempt=1")
    assert work.matches("job.failed .*job=ship .*attempt=3.*no database")


def test_loading_counts_against_the_timeout(shop: Project, witness: Witness, redis: Client) -> None:
    push(redis, "ship", order=order(408))
    work = ready(shop, "--timeout", "0.5")
    work.wait_line("job.failed .*job=ship .*JobTimeout")
    work.stop()


# -- recycling


def left(work: Procs) -> int:
    return len(work.matches(r"worker.left .*exit 16 \(recycle\)"))


@pytest.mark.parametrize(("how", "failures"), [("once", 0), ("always", 1), ("sub", 1)])
def test_after_an_error_that_recycles_the_job_is_settled_and_the_worker_replaced(
    shop: Project, witness: Witness, redis: Client, how: str, failures: int
) -> None:
    push(redis, "breaks", how=how)
    work = ready(shop, "--log-level", "debug")
    work.wait_line("job.done .*job=breaks" if how == "once" else "job.failed .*job=breaks")
    push(redis, "quick")
    witness.wait("quick")
    work.stop()
    runs = witness.starting("run")
    assert [line.split()[1] for line in runs] == ["1", "2"]
    assert len({line.split()[2] for line in runs}) == 2  # another process
    assert len(failed(redis)) == failures
    expected = 1 if how == "once" else 2
    assert left(work) == expected
    assert len(work.matches(r"WARN.* worker\.recycled reason=\"(Broken|BrokenPipeError): gone\"")) == expected
    assert not work.matches("crash")


def test_other_errors_recycle_no_worker(shop: Project, witness: Witness, redis: Client) -> None:
    push(redis, "boom")
    work = shop.work_off("--log-level", "debug")
    assert len(witness.starting("boom")) == 2
    assert left(work) == 0
