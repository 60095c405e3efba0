"""Jobs that outlast their lease, and an outage of Redis that outlasts it: nothing runs twice. Row 8."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator

import pytest

from tests.support.faults import work_on_another_host
from tests.support.ledger import JOBS, Ledger
from tests.support.processes import Procs
from tests.support.project import MakeProject, Project, Start
from tests.support.redis import Client
from tests.support.reliability import Figures
from tests.support.servers.redis import KEEPS, Server
from tests.support.waiting import eventually

WAYS = ("sleep", "sleep", "sleep", "cpu", "hold")


def calls(client: Client) -> int:
    """The number of scripts that the server has run."""
    return sum(
        int(count) for count in re.findall(r"cmdstat_eval(?:sha)?:calls=(\d+)", client.text("INFO", "commandstats"))
    )


def all_started(ledger: Ledger, jobs: list[int]) -> None:
    eventually(lambda: {note.n for note in ledger.starts()} >= set(jobs), 20, what="all jobs at work")


def each_ran_once(ledger: Ledger, *works: Procs) -> None:
    """Check that each job has one start and one end, and that no log mentions a lost lease."""
    assert sorted(note.n for note in ledger.starts()) == ledger.pushed
    ledger.conserve()
    for work in works:
        assert not work.matches(r"lease|crashes=|worker\.died")


@pytest.mark.usefixtures("clean_redis")
@pytest.mark.modes("1", "prefetch", why="workers with room for more jobs look for suspects now and then")
@pytest.mark.fault(
    "8",
    "jobs that run for many times retry_after, sleeping, computing and in C, on two hosts",
    "each runs once; one call renews all leases of a host, however many workers it has",
)
@pytest.mark.parametrize(
    ("lease", "seconds"), [(3, 10), pytest.param(3, 60, marks=pytest.mark.slow)], ids=["10 s", "60 s"]
)
def test_jobs_much_longer_than_their_lease_run_once(
    lease: int, seconds: int, shop: Project, start: Start, ledger: Ledger, figures: Figures, redis: Client
) -> None:
    shop.config(f'retry_after = "{lease}s"\n')
    options = ("--timeout", "300", "--sleep", "60")  # workers with room for more jobs do not call either
    work = start(*options, workers=8)
    other = work_on_another_host(shop, "-w", "4", *options)
    jobs = [n for how in WAYS for n in ledger.push(seconds=seconds, how=how)] + ledger.push(7, seconds=seconds)
    all_started(ledger, jobs)
    began, before = time.monotonic(), calls(redis)
    beats, window = 0, 0.0

    def long_enough() -> bool:
        nonlocal beats, window
        called, at = calls(redis) - before, time.monotonic()
        if ledger.ends():
            return True  # from the end of the first job on, workers call too
        beats, window = called, at - began
        return window > 6

    eventually(long_enough, 20, every=0.1)
    assert beats <= 2 * (window / (lease / 3) + 2), f"{beats} calls of two keepers in {window:.1f} s"
    ledger.wait_all(seconds + 20)
    work.stop()
    other.stop()
    each_ran_once(ledger, work, other)
    figures.tell(ledger)
    figures.add(renewals=beats / window if window else 0.0)


@pytest.fixture
def own() -> Iterator[Server]:
    """A server that the test may kill. Acknowledged writes persist."""
    with Server(*KEEPS) as server:
        yield server


@pytest.fixture
def client(own: Server) -> Iterator[Client]:
    with own.client() as client:
        yield client


@pytest.mark.fault(
    "8a",
    "Redis unreachable for many times retry_after, gone or not answering, while two hosts run jobs",
    "no job runs twice: finished jobs are acked, and leases of running jobs are renewed before they can be reclaimed",
)
@pytest.mark.parametrize(
    ("lease", "away", "how"),
    [
        (2, 12, "killed"),
        pytest.param(10, 60, "killed", marks=pytest.mark.slow),
        pytest.param(10, 60, "stopped", marks=pytest.mark.slow),
    ],
    ids=["12 s", "60 s", "60 s without an answer"],
)
def test_an_outage_longer_than_the_lease_doubles_no_job(
    lease: int, away: int, how: str, project: MakeProject, own: Server, client: Client, figures: Figures
) -> None:
    shop = project(jobs=JOBS, config=f'retry_after = "{lease}s"\n', url=own.url)
    ledger = Ledger(shop, client)
    works = [shop.work("-w", "2", "--timeout", "300"), work_on_another_host(shop, "-w", "2", "--timeout", "300")]
    works[0].wait_line("master.ready")
    jobs = ledger.push(2, seconds=away / 2) + ledger.push(2, seconds=away + lease + 4)
    all_started(ledger, jobs)
    out_of_reach(own, how, away)
    back = time.monotonic()
    for work in works:
        work.wait_line("redis.back", 20)
    client.close()  # it belonged to the killed server
    (after,) = ledger.push()
    ledger.wait_all(away + 40)
    first = ledger.starts(after)[0].at - back
    for work in works:
        work.stop()
    each_ran_once(ledger, *works)
    figures.add(lost=len(ledger.lost()), doubles=len(ledger.doubles()), back=[first], p99=4.0)


def out_of_reach(server: Server, how: str, seconds: float) -> None:
    """The outage has a fixed duration, because that is the fault."""
    assert server.process is not None
    if how == "killed":
        server.kill()
        time.sleep(seconds)
        server.start()
    else:
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        server.process.send_signal(signal.SIGCONT)
