"""Backoff with jitter, Retry, Fail, retry_on and fail_on, with the real `qd work` on every driver."""

from __future__ import annotations

import json
from itertools import pairwise

from tests.contract.features.conftest import Cell
from tests.contract.kinds import JOBS, Tried, ready
from tests.support.waiting import eventually

FEATURE = "Retries"
RETRIES = (
    JOBS
    + """
from qd import Backoff, Fail, Retry

def begun(n):
    note("S", n, current_job().attempt)
    return current_job().attempt

@app.job("grows", tries=4, backoff=Backoff(0.2, factor=2, max=0.4, jitter=0.5))
def grows(n: int) -> None:
    if begun(n) < 4:
        raise ConnectionError("away")
    note("E", n)

@app.job("asks", tries=3, backoff=600)
async def asks(n: int) -> None:
    if begun(n) == 1:
        raise Retry(delay=0.3, reason="busy")
    note("E", n)

@app.job("picky", tries=9, backoff=600, retry_on=OSError, fail_on=(ConnectionError,))
def picky(n: int) -> None:
    begun(n)
    raise [ConnectionResetError, ValueError][n % 2]("no use")

@app.job("gives.up", tries=9)
async def gives_up(n: int) -> None:
    begun(n)
    try:
        raise KeyError("order")
    except KeyError as error:
        raise Fail("no such order") from error
"""
)


def test_waits_grow_and_what_a_job_raises_decides(tried: Tried, cell: Cell) -> None:
    tried.shop.jobs(RETRIES)
    several = tried.kind.name in ("valkey", "cluster")  # jobs in threads and as tasks
    work = ready(tried.shop, "--concurrency", "3" if several else "1")
    calls = ("grows.dispatch(1)", "asks.dispatch(2)", "picky.dispatch(4)", "picky.dispatch(5)", "gives_up.dispatch(6)")
    tried.shop.python(f"from jobs import *\n{chr(10).join(calls)}")
    tried.shop.wait_noted("E", 1)
    tried.shop.wait_noted("E", 2)
    work.wait_line("job.failed", 30, count=3)
    eventually(tried.empty)
    work.stop()

    assert [note[2] for note in tried.shop.noted("S", 1)] == ["1", "2", "3", "4"]
    waits = pauses(tried, 1)
    assert all(wait >= least for wait, least in zip(waits, (0.2, 0.4, 0.4), strict=True)), f"one came early: {waits}"
    assert cell == "works" or max(waits) > 0.6  # they end at whole seconds
    delays = [float(each[1]) for each in work.matches(r"job.released .*job=grows .*delay=([\d.]+)")]
    assert [0.2 <= delays[0] <= 0.3, *[0.4 <= delay <= 0.6 for delay in delays[1:]]] == [True] * 3, delays
    assert pauses(tried, 2)[0] >= 0.3
    assert work.matches(r'job.released .*job=asks .*delay=0.300? .*reason="?busy')
    failed = tried.failed()
    assert sorted((record["job"], record["error"], record["reason"], record["attempts"]) for record in failed) == [
        ("gives.up", "JobFailure", "no such order", 1),
        ("picky", "ConnectionResetError", "no use", 1),
        ("picky", "ValueError", "no use", 1),
    ]
    (id,) = [record["id"] for record in failed if record["job"] == "gives.up"]
    trace = json.loads(tried.command("failed", "show", id, "--json"))["trace"]
    assert "KeyError: 'order'" in trace
    assert "raise Fail" in trace


def pauses(tried: Tried, n: int) -> list[float]:
    """Seconds between the starts of job n."""
    starts = [float(note[-1]) for note in tried.shop.noted("S", n)]
    return [after - before for before, after in pairwise(starts)]
