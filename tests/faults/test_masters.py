"""The master, or its whole process tree, is killed; the next one starts here or on another host: rows 5, 6 and 7."""

from __future__ import annotations

import re
import signal
import time
from datetime import datetime

import psutil
import pytest

from tests.support.faults import work_on_another_host
from tests.support.ledger import Kill, Ledger
from tests.support.processes import Procs, titled
from tests.support.project import Project, Start
from tests.support.redis import Client
from tests.support.reliability import Figures
from tests.support.waiting import eventually

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("queues:*:deaths")]


def gone_after(children: list[psutil.Process], at: float) -> float:
    """Seconds from `at` until the last of them has ended."""
    eventually(lambda: not any(living(child) for child in children), 20, every=0.002, what="no child left")
    return time.monotonic() - at


def living(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.fault(
    "5",
    "kill -9 of the master alone: workers idle, in a job asleep, in C, in a subprocess",
    "its workers are gone within 100 ms; the next master gives their jobs back (times: from its start)",
)
@pytest.mark.parametrize("how", ["idle", "sleep", "hold", "sub"])
def test_no_worker_outlives_its_master_and_the_next_requeues_its_jobs(
    how: str, start: Start, ledger: Ledger, figures: Figures
) -> None:
    gone, back = [], []
    work = start()
    for _ in range(5 if figures.strict else 1):
        jobs = [] if how == "idle" else ledger.push(seconds=50, again=0.0, how=how)
        pids = [ledger.wait_start(n).pid for n in jobs]
        children = psutil.Process(work.pid).children()
        for pid in pids:
            ledger.kills.append(Kill(pid, time.monotonic()))
        at = time.monotonic()
        work.kill()
        gone.append(gone_after(children, at))
        at = time.monotonic()
        work = start()
        jobs = jobs or ledger.push()
        back += [ledger.wait_start(n, 1 if how == "idle" else 2).at - at for n in jobs]
        ledger.wait_all()
    eventually(lambda: not [p for p in work.session() if titled(p).startswith("sleep")], what="no subprocess left")
    work.stop()
    ledger.conserve()
    figures.add(lost=len(ledger.lost()), back=back, p99=1.0, gone=max(gone))
    assert not figures.strict or max(gone) < 0.1


def logged(work: Procs, pattern: str) -> list[float]:
    """The times of the log lines that match `pattern`, in unix seconds."""
    return [datetime.fromisoformat(line[:23]).timestamp() for line in work.lines if re.search(pattern, line)]


@pytest.mark.fault(
    "6",
    "kill -9 of master and workers at once, amid 200 jobs",
    "the next one works within a second and gives the interrupted jobs back (times: from its start)",
)
def test_the_jobs_of_a_killed_process_tree_run_again_after_a_restart(
    start: Start, ledger: Ledger, figures: Figures
) -> None:
    work = start(workers=4)
    ledger.push(60, seconds=0.05)
    in_hand = ledger.push(4, seconds=50, again=0.05)  # long enough for any delay of the kill
    ledger.push(136, seconds=0.05)
    for n in in_hand:
        ledger.wait_start(n)
    for process in work.session():
        ledger.kill(process.pid)
    work.process.wait(10)
    at, unix = time.monotonic(), time.time()
    again = start(workers=4)
    ledger.wait_all()
    first = min(note.at for note in ledger.starts() if note.at > at) - at
    back = [moment - unix for moment in logged(again, "job.requeued .*its master died")]
    assert len(back) == len(in_hand)
    again.stop()
    ledger.conserve(doubles=ledger.in_flight())
    figures.add(lost=len(ledger.lost()), doubles=len(ledger.doubles()), back=[first, *back], p50=1.0, p99=1.5)


def lease_end(redis: Client) -> float:
    """The unix time at which the lease of the only reserved job expires; 0.0 if no job is reserved."""
    reserved = redis.text("ZRANGE", "queues:default:reserved", "0", "0", "WITHSCORES")
    return float(reserved[1]) if reserved else 0.0


@pytest.mark.fault(
    "7",
    "kill -9 of a whole host; another host waits beside it, or is started then",
    "its job is taken over when the lease has run out, and not earlier (times: from there)",
)
@pytest.mark.leaves("qd:masters")  # of the lost host, for an hour
@pytest.mark.parametrize(
    ("lease", "by", "beside"),
    [(2, "name", True), (2, "boot", True), (2, "ns", True), (4, "name", False)],
    ids=["another name", "another boot", "another namespace", "started afterwards"],
)
def test_another_host_takes_over_when_the_lease_has_expired(
    lease: int, by: str, beside: bool, shop: Project, start: Start, ledger: Ledger, figures: Figures, redis: Client
) -> None:
    shop.config(f'retry_after = "{lease}s"\n')
    other = work_on_another_host(shop, "-w", "1", "--sleep", "0.2", by=by) if beside else None
    if other:
        other.signal(signal.SIGUSR2)  # its keeper runs, its worker reserves nothing yet
        other.wait_line("master.paused")
    work = start()
    (n,) = ledger.push(seconds=50, again=0.5)
    ledger.wait_start(n)
    before = lease_end(redis)
    for process in work.session():
        ledger.kill(process.pid)
    until = max(before, lease_end(redis))  # it may have been renewed, or have expired already
    work.process.wait(10)
    if other:
        other.signal(signal.SIGCONT)
    other = other or work_on_another_host(shop, "-w", "1", by=by)
    again = ledger.wait_start(n, 2)
    late = again.at - time.monotonic() + time.time() - until
    assert late >= 0, f"taken {-late:.3f} s before its lease had expired"
    ledger.wait_all()
    other.wait_line("lease.expired jobs=1")
    other.stop()
    ledger.conserve()
    figures.add(lost=len(ledger.lost()), doubles=len(ledger.doubles()), back=[late], p99=1.5 if beside else 2.5)
