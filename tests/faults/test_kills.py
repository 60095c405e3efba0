"""Processes are killed while jobs run: rows 1 and 2."""

from __future__ import annotations

import random
import time

import pytest

from tests.support.ledger import Ledger
from tests.support.processes import Procs
from tests.support.project import Start
from tests.support.reliability import Figures
from tests.support.waiting import eventually

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("queues:*:deaths")]


@pytest.mark.fault(
    "2", "kill -9 of a worker in a lone job", "counted as a crash and not as an attempt; one line says it"
)
def test_a_killed_job_runs_again_and_counts_a_crash(start: Start, ledger: Ledger, figures: Figures) -> None:
    work = start()
    for _ in range(10):
        (n,) = ledger.push(seconds=50, again=0.0)  # long enough for any delay of the kill
        ledger.kill(ledger.wait_start(n).pid)
        again = ledger.wait_start(n, 2)
        assert again.attempt == 1
        ledger.wait_end(n)
    ledger.wait_all()
    work.wait_line("job.done .*attempt=1 crashes=1", count=10)
    assert len(work.matches(r'worker.died .*how="signal 9 \(SIGKILL\).*job=work')) == 10
    work.stop()
    ledger.conserve()
    figures.tell(ledger, p50=0.2, p99=1.0)


def storm(work: Procs, ledger: Ledger, count: int, every: float) -> None:
    """Push jobs of 50 ms, sixty per second; kill -9 a random worker from time to time until all jobs are done."""
    draw = random.Random(7)
    began = last = time.monotonic()

    def over() -> bool:
        nonlocal last
        at = time.monotonic()
        if at - last >= every and (workers := work.children("qd: worker")):
            ledger.kill(draw.choice(workers).pid)
            last = at
        due = min(count, int((at - began) * 60)) - len(ledger.pushed)
        if due > 0:
            ledger.push(due, seconds=0.05)
        return len(ledger.pushed) == count and {note.n for note in ledger.ends()} >= set(ledger.pushed)

    eventually(over, 300, every=0.02, what="the end of every job")
    ledger.wait_all()


@pytest.mark.fault(
    "1", "kill -9 of a random worker every 200 ms", "twice only what was in hand at a kill; four workers again"
)
@pytest.mark.parametrize(
    "count", [pytest.param(500, id="500 jobs"), pytest.param(10_000, id="10,000 jobs", marks=pytest.mark.slow)]
)
def test_a_storm_of_kills_loses_no_job(count: int, start: Start, ledger: Ledger, figures: Figures) -> None:
    work = start("--max-crashes", "1000", workers=4)
    storm(work, ledger, count, 0.2)
    eventually(lambda: len(work.children("waiting on")) == 4, 20, what="four workers again")
    work.stop()
    ledger.conserve(doubles=ledger.in_flight())
    figures.tell(ledger, p50=0.2, p99=1.0)
