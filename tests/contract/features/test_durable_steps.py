"""Durable steps: a step that has run does not run again, whatever ended its attempt."""

from __future__ import annotations

from qd.store.base import keyspace_store
from tests.contract.features.conftest import Cell
from tests.contract.kinds import JOBS, Tried, ready
from tests.support.waiting import eventually

FEATURE = "Durable steps"
STEPPED = (
    JOBS
    + """
def ran(n: int, step: int) -> tuple[int, int]:
    note("ran", n, step, current_job().attempt)
    return n, step

async def aran(n: int, step: int) -> tuple[int, int]:
    return ran(n, step)

@app.job("stepped", tries=2, backoff=0)
def stepped(n: int) -> None:
    job = current_job()
    found = [job.step("one", ran, n, 1), job.step("two", ran, n, 2)]
    if job.attempt == 1:
        raise ValueError("after step two")
    found.append(job.step("three", ran, n, 3))
    note("E", n, *[f"{a}.{b}" for a, b in found])

@app.job("astepped", tries=2, backoff=0)
async def astepped(n: int) -> None:
    job = current_job()
    found = [await job.step("one", aran, n, 1), await job.step("two", aran, n, 2)]
    if job.attempt == 1:
        raise ValueError("after step two")
    found.append(await job.step("three", aran, n, 3))
    note("E", n, *[f"{a}.{b}" for a, b in found])
"""
)


def test_the_next_attempt_runs_only_the_steps_that_are_left(tried: Tried, cell: Cell) -> None:
    assert cell == "works"
    tried.shop.jobs(STEPPED)
    tried.push(1, job="stepped")
    tried.push(2, job="astepped")
    work = ready(tried.shop)
    for n in (1, 2):
        assert tried.shop.wait_noted("E", n)[2:-1] == [f"{n}.1", f"{n}.2", f"{n}.3"]
        ran = [note[2:4] for note in tried.shop.noted("ran", n)]
        assert ran == [["1", "1"], ["2", "1"], ["3", "2"]]
    eventually(tried.empty)
    work.stop()
    assert keyspace_store(tried.connect()).names("qd:job:", 10_000) == []
