"""Jobs that kill more than their worker: row 12."""

from __future__ import annotations

import signal
import time

import pytest

from tests.support.ledger import JOBS, Ledger
from tests.support.payloads import failed, push
from tests.support.project import MakeProject, Project
from tests.support.redis import Client
from tests.support.reliability import Figures
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.leaves("queues:*:deaths", "queues:*:failed", "queues:*:failed_at"),
]

MINES = (
    JOBS
    + """
import psutil

def parent():
    os.kill(os.getppid(), signal.SIGKILL)

def everything():
    "Like a memory group that the kernel kills as a whole."
    session = os.getsid(0)
    for pid in psutil.pids():
        try:
            if pid != os.getpid() and os.getsid(pid) == session:
                os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # many others end meanwhile
            continue
    os.kill(os.getpid(), signal.SIGKILL)

@app.job("mine")
def mine(how: str) -> None:
    mark("S", -2)
    globals()[how]()
    time.sleep(60)
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=MINES)


def answered_too_late(ledger: Ledger) -> set[int]:
    """The last finished job of each killed worker: its answer may not have been sent before the mine exploded."""
    last_blow = ledger.starts(-2)[-1].at
    last = {note.pid: note for note in ledger.notes if note.at < last_blow}
    return {note.n for note in last.values() if note.kind == "E"}


@pytest.mark.fault(
    "12",
    "a job that kills its master, or the whole program, each time; it is started again",
    "started three times exactly, then failed; the 60 jobs behind it are done (times: from a start to the next job done)",
)
@pytest.mark.parametrize("how", ["parent", "everything"])
def test_a_job_that_kills_its_master_fails_after_max_crashes(
    shop: Project, ledger: Ledger, figures: Figures, redis: Client, how: str
) -> None:
    push(redis, "mine", how=how)
    ledger.push(60)
    for _ in range(3):
        work = shop.work("-w", "1")  # with two workers, the same other job might be killed three times
        assert work.wait(20) == -signal.SIGKILL
    work = shop.work("-w", "2")
    began = time.monotonic()
    (n,) = ledger.push()
    work.wait_line("job.failed .*job=mine.*max_crashes", 20)
    back = ledger.wait_end(n).at - began
    eventually(lambda: {note.n for note in ledger.ends()} == set(ledger.pushed), what="the end of every other job")
    work.stop()
    assert len(ledger.starts(-2)) == 3
    ((record, _),) = failed(redis)
    assert record["crashes"] == 3
    assert ledger.standing() == {-1: 1}, "only the mine is left, in the failed store"
    ledger.conserve(doubles=answered_too_late(ledger))
    figures.tell(ledger)
    figures.add(back=[back])
