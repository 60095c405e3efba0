"""app.current_batch().results() in a callback of a batch: what its jobs returned, or their errors, in order."""

from __future__ import annotations

from tests.contract.features.conftest import Cell, add_jobs
from tests.contract.kinds import Tried, ready
from tests.support.waiting import eventually

FEATURE = "Results of a batch"
JOBS = """
from decimal import Decimal

@app.job("rows.price")
def price(n: int) -> Decimal:
    time.sleep(0.1 if n == 0 else 0)  # the first one ends last
    return Decimal(n) / (2 if n != 3 else 0)

@app.job("rows.sum")
def together() -> None:
    found = app.current_batch().results(price, return_exceptions=True)
    note("T", *[type(each).__name__ if isinstance(each, Exception) else each for each in found])
"""
SENDER = """
from jobs import app, price, together

app.batch(*[price.bind(n) for n in range(5)], finally_=together.bind(), allow_failures=True).using(result_ttl=60).dispatch()
"""


def test_the_callback_of_a_batch_gets_the_results_in_order(tried: Tried, cell: Cell) -> None:
    add_jobs(tried, JOBS)
    work = ready(tried.shop, workers=2)
    tried.shop.python(SENDER)
    (note,) = eventually(lambda: tried.shop.notes, 40, what="the callback of the batch")
    assert (note[:-1], cell) == (["T", "0", "0.5", "1", "JobFailedError", "2"], "works")
    work.stop()
