"""Processes are stopped (SIGSTOP) for a part of their lease or for many times it, and continued: rows 9 and 36."""

from __future__ import annotations

import signal
import time
from contextlib import suppress

import psutil
import pytest

from tests.support.faults import work_on_another_host
from tests.support.ledger import Ledger
from tests.support.processes import Procs
from tests.support.project import Project, Start
from tests.support.reliability import Figures

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("queues:*:deaths")]
WHAT = {
    "keeper": lambda work: [work.child("qd: keeper")],
    "master": lambda work: [psutil.Process(work.pid)],
    "all": lambda work: work.session(),
}


def stop_for(processes: list[psutil.Process], seconds: float) -> None:
    """The stop has a fixed duration, because that is the fault."""
    for process in processes:
        process.suspend()
    time.sleep(seconds)
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # a silent keeper was killed meanwhile
            process.resume()


def standby(shop: Project) -> Procs:
    """Another host, paused until it gets CONT."""
    other = work_on_another_host(shop, "-w", "2", "--sleep", "0.2")
    other.signal(signal.SIGUSR2)
    other.wait_line("master.paused")
    return other


def two_jobs_stopped(
    shop: Project, start: Start, ledger: Ledger, what: str, lease: float, share: float
) -> tuple[Procs, Procs]:
    """Run two jobs of one and a half leases, and stop `what` of their host for `share` leases. Waits for all jobs."""
    shop.config(f'retry_after = "{lease:g}s"\n')
    other, work = standby(shop), start(workers=2)
    jobs = ledger.push(2, seconds=lease * 1.5)
    for n in jobs:
        ledger.wait_start(n)
    other.signal(signal.SIGCONT)
    stop_for(WHAT[what](work), lease * share)
    ledger.push(2)
    ledger.wait_all(lease * 5 + 10)
    work.stop()
    other.stop()
    return work, other


@pytest.mark.fault(
    "9", "SIGSTOP of the keeper, the master, all of a host for 0.4 x retry_after, then SIGCONT", "nothing happens"
)
@pytest.mark.parametrize("what", WHAT)
def test_a_stop_shorter_than_the_lease_has_no_effect(
    what: str, shop: Project, start: Start, ledger: Ledger, figures: Figures
) -> None:
    work, other = two_jobs_stopped(shop, start, ledger, what, 6, 0.4)
    ledger.conserve()
    assert len(ledger.starts()) == 4
    assert not other.matches("lease") + work.matches(r"lease|\.died|\.silent|requeued")
    figures.tell(ledger)


@pytest.mark.fault(
    "9a",
    "SIGSTOP of the keeper, the master, all of a host for 3 x retry_after, another host waiting",
    "the other host may take over; jobs that ran twice are logged (lease_lost); nothing is killed or reclaimed "
    "on stale information",
)
@pytest.mark.parametrize(
    ("what", "lease"),
    [("keeper", 2), ("all", 2), *(pytest.param(what, 10, marks=pytest.mark.slow) for what in WHAT)],
)
def test_a_stop_longer_than_the_lease_loses_nothing_and_logs_double_runs(
    what: str, lease: float, shop: Project, start: Start, ledger: Ledger, figures: Figures
) -> None:
    work, other = two_jobs_stopped(shop, start, ledger, what, lease, 3)
    assert not ledger.lost()
    lost = work.matches(r"job.lease_lost .*id=(\w+)") + other.matches(r"job.lease_lost .*id=(\w+)")
    logged = {match[1] for match in lost}
    assert {ledger.ids[n] for n in ledger.doubles()} <= logged
    assert not work.matches(r"worker\.died|requeued")
    assert len(work.matches(r"keeper\.(silent|died)")) == (2 if what == "keeper" else 0)
    figures.tell(ledger)


@pytest.mark.fault(
    "9b",
    "SIGSTOP of everything on two hosts for longer than retry_after, then SIGCONT: a suspended machine",
    "nothing runs twice: the first host to resume renews its leases and leaves the other time to do so",
)
def test_after_all_hosts_were_stopped_no_host_takes_jobs_of_another(
    shop: Project, start: Start, ledger: Ledger, figures: Figures
) -> None:
    shop.config('retry_after = "2s"\n')
    works = [start(workers=2), work_on_another_host(shop, "-w", "2")]
    for n in ledger.push(4, seconds=7):
        ledger.wait_start(n)
    first, second = (work.session() for work in works)
    for process in second:
        process.suspend()
    stop_for(first, 3)
    time.sleep(0.5)  # the other host continues later, within a third of a lease
    for process in second:
        process.resume()
    ledger.wait_all(30)
    for work in works:
        work.stop()
        assert not work.matches("lease")
    ledger.conserve()
    figures.tell(ledger)


@pytest.mark.fault(
    "36",
    "SIGSTOP of a worker in a job for half of its timeout, and forever",
    "if resumed in time, it continues; else it is killed once, at most 0.5 s after its timeout (times), and the job reruns",
)
@pytest.mark.parametrize("in_time", [True, False], ids=["half", "for ever"])
def test_a_stopped_worker_is_killed_after_its_timeout_and_not_before(
    in_time: bool, start: Start, ledger: Ledger, figures: Figures
) -> None:
    timeout = 4
    work = start("--timeout", str(timeout))
    (n,) = ledger.push(seconds=0.7 * timeout if in_time else 50, again=0.0)  # long enough for any delay of the stop
    worker = psutil.Process(ledger.wait_start(n).pid)
    worker.suspend()
    if in_time:
        time.sleep(timeout / 2)
        worker.resume()
        ledger.wait_all()
        assert [note.pid for note in ledger.ends(n)] == [worker.pid]
        assert not work.matches(r"\.killed|\.died")
    else:
        took = float(work.wait_line(r"job\.killed .*reason=timeout .*took=(\d\.\d+)", 20)[1])
        ledger.wait_all()
        assert took >= timeout
        assert [note.attempt for note in ledger.starts(n)] == [1, 2]
        figures.add(back=[took - timeout], p99=0.5)
    work.stop()
    ledger.conserve()
    figures.add(lost=len(ledger.lost()), doubles=len(ledger.doubles()))
