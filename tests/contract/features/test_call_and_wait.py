"""job.bind(...).call(timeout=): dispatch a job and wait for its result; job.handle(id) finds it again."""

from __future__ import annotations

from tests.contract.features.conftest import Cell, add_jobs
from tests.contract.kinds import Tried, ready

FEATURE = "Call and wait"
JOBS = """
from decimal import Decimal

@app.job("total")
async def total(price: Decimal, count: int) -> Decimal:
    return price * count

@app.job("late")
def late(price: Decimal) -> Decimal:
    while not Path("go").exists():
        time.sleep(0.01)
    return price
"""
CALLER = """
import asyncio
from decimal import Decimal
from pathlib import Path
from jobs import late, total
from qd import ResultTimeout

print(repr(total.bind(Decimal("3.20"), 2).call(timeout=30)))
print(repr(asyncio.run(total.bind(Decimal("3.20"), 3).acall(timeout=30))))
try:
    late.bind(Decimal("9.90")).call(timeout=0.2)
except ResultTimeout as error:
    id = str(error).split()[1]
    print(isinstance(error, TimeoutError), late.handle(id).status() in ("ready", "running"))
    Path("go").touch()
    print(repr(late.handle(id).result(timeout=30)))
"""


def test_a_job_is_called_and_its_result_has_the_declared_type(tried: Tried, cell: Cell) -> None:
    add_jobs(tried, JOBS)
    work = ready(tried.shop)
    printed = tried.shop.python(CALLER).stdout
    found = "True True" if cell == "works" else "True False"
    assert printed.splitlines() == ["Decimal('6.40')", "Decimal('9.60')", found, "Decimal('9.90')"]
    work.stop()
