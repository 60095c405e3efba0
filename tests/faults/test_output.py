"""The log and the output of jobs cannot be written: the jobs continue."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.support.ledger import JOBS, Ledger
from tests.support.processes import QD
from tests.support.project import MakeProject, Project
from tests.support.redis import Client
from tests.support.reliability import Figures
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.leaves("queues:*:failed", "queues:*:failed_at", "queues:*:deaths"),
]

LOUD = (
    JOBS
    + """
@app.job("loud", timeout=1, tries=1)
def loud(n: int) -> None:
    mark("S", n)
    for _ in range(1000):
        print("x" * 10_000, flush=True)
    mark("E", n)

@app.job("bad", tries=1)
def bad(n: int) -> None:
    mark("S", n)
    raise ValueError(n)
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=LOUD, config="retry_after = 4\n")


class Pipe:
    """A full pipe without a reader; a pipe whose reader has exited; or a file on a full disk."""

    def __init__(self, kind: str) -> None:
        if kind == "disk":
            self.write = os.open("/dev/full", os.O_WRONLY)
            return
        self.read, self.write = os.pipe()
        if kind == "full":
            os.set_blocking(self.write, False)
            try:
                while True:
                    os.write(self.write, b"x" * 4096)
            except BlockingIOError:
                os.set_blocking(self.write, True)
        else:
            os.close(self.read)

    def drain(self) -> str:
        """Everything that was written, once the last writer has closed the pipe."""
        os.close(self.write)
        with open(self.read, errors="replace") as file:
            return file.read()


@pytest.fixture
def running() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait(10)


@pytest.mark.fault(
    "34",
    "stdout and stderr on a pipe never read, on one whose reader died, or on a full disk; a job prints 10 MB into it",
    "jobs continue, leases are renewed on time, exit 0 on TERM; the log reports how many lines it dropped",
)
@pytest.mark.parametrize("kind", ["full", "gone", "disk"])
def test_jobs_continue_if_the_output_cannot_be_written(
    kind: str, shop: Project, ledger: Ledger, redis: Client, figures: Figures, running: list[subprocess.Popen[bytes]]
) -> None:
    pipe = Pipe(kind)
    command = [*QD, "work", "-w", "2", "--stop-timeout", "3"]
    work = subprocess.Popen(
        command, cwd=shop.root, env=shop.env(), stdin=subprocess.DEVNULL, stdout=pipe.write, stderr=pipe.write
    )
    running.append(work)
    (long,), (loud,) = ledger.push(seconds=6), ledger.push(job="loud")
    ledger.wait_start(long)
    ledger.wait_start(loud)
    least = 4.0

    def over() -> bool:
        nonlocal least
        least = min([least, *ledger.leases()])
        return bool(ledger.ends(long))

    eventually(over, 20, every=0.05, what="the end of the long job")
    assert least > (1.5 if figures.strict else 0), "leases were not renewed on time"
    more = ledger.push(20)
    for n in more:
        ledger.wait_end(n, 20)
    eventually(lambda: not redis.call("EXISTS", "queues:default:reserved"), 20, what="every job answered")
    assert work.poll() is None
    if kind == "full":
        os.read(pipe.read, 1 << 20)
    work.send_signal(signal.SIGTERM)
    assert work.wait(15) == 0
    if kind != "full":
        os.close(pipe.write)
    else:
        assert " lines dropped, stderr is not read" in pipe.drain()
    ledger.conserve()
    figures.tell(ledger)


STORE = ("queues:default:failed", "queues:default:failed_at")


@pytest.mark.fault(
    "35",
    "1,000 failing jobs while the failed store accepts no record for 2 s",
    "no job is acked before its failure is stored: stored and waiting are always 1,000; each worker logs it once",
)
def test_no_failure_is_lost_while_the_failed_store_rejects_records(
    shop: Project, ledger: Ledger, redis: Client, figures: Figures
) -> None:
    ledger.push(200, job="bad")
    work = shop.work("-w", "2", "--log-level", "warning")
    eventually(lambda: redis.call("HLEN", STORE[0]) == 200, 20, what="the first failures")
    redis.call("EVAL", "redis.call('RENAME', KEYS[1], 'aside') redis.call('SET', KEYS[1], 'in the way')", 1, STORE[0])
    ledger.push(800, job="bad")
    work.wait_line("redis.refused .*is a string and not a hash", count=2)
    began = time.monotonic()
    eventually(lambda: time.monotonic() >= began + 2)
    kept, waiting = redis.call("HLEN", "aside"), redis.call("LLEN", "queues:default")
    assert kept + waiting + redis.call("ZCARD", "queues:default:reserved") == 1000
    assert len(work.matches("redis.refused")) == 2
    redis.call("RENAME", "aside", STORE[0])
    back = time.monotonic()
    eventually(lambda: redis.call("HLEN", STORE[0]) > kept, 20, what="the next failure")
    figures.add(back=[time.monotonic() - back], p99=2.0)
    eventually(lambda: redis.call("HLEN", STORE[0]) == 1000, 30, what="every failure")
    eventually(lambda: not redis.call("EXISTS", "queues:default:reserved"), what="every job answered")
    work.stop()
    assert len(ledger.starts()) == 1000
    figures.tell(ledger)
