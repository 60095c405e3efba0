"""Workers, masters and whole process trees are killed while jobs run: rows 1, 2, 5, 6, 7 and 12."""

from __future__ import annotations

import random
import re
import signal
import time
from datetime import datetime

import psutil
import pytest

from qd.payload.format import read
from qd.payload.reservation import split_mark
from tests.support.faults import work_on_another_host
from tests.support.ledger import JOBS, UNSENT, Kill, Ledger
from tests.support.payloads import failed, push
from tests.support.processes import Procs, titled
from tests.support.project import MakeProject, Project, Start
from tests.support.redis import Client, Seen
from tests.support.reliability import Figures
from tests.support.waiting import eventually

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("queues:*:deaths")]


# --- workers


@pytest.mark.fault(
    "2",
    "kill -9 of a worker that runs one job",
    "counted as a crash and not as an attempt (as nothing if the worker runs several); one log line reports it",
)
def test_a_killed_job_runs_again_and_counts_a_crash(start: Start, ledger: Ledger, figures: Figures, mode: str) -> None:
    work = start()
    for _ in range(10):
        (n,) = ledger.push(seconds=50, again=0.0)  # long enough for any delay of the kill
        ledger.kill(ledger.wait_start(n).pid)
        again = ledger.wait_start(n, 2)
        assert again.attempt == 1
        ledger.wait_end(n)
    ledger.wait_all()
    work.wait_line("job.done .*attempt=1 took" if mode == "concurrency" else "job.done .*attempt=1 crashes=1", count=10)
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
    "1", "kill -9 of a random worker every 200 ms", "only jobs running at a kill run twice; four workers again"
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


# --- masters and hosts


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
    "kill -9 of the master alone: workers idle, in a job that sleeps, in C, in a subprocess",
    "its workers are gone within 100 ms; the next master requeues their jobs (times: from its start)",
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
    "the next one works within a second and requeues the interrupted jobs (times: from its start)",
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
    back = [moment - unix for moment in logged(again, "jobs?.requeued .*its master died")]
    requeued = again.matches("jobs.requeued .*requeued=(\\d+)")
    assert (sum(int(match[1]) for match in requeued) or len(back)) >= len(in_hand)
    again.stop()
    ledger.conserve(doubles=ledger.in_flight())
    figures.add(lost=len(ledger.lost()), doubles=len(ledger.doubles()), back=[first, *back], p50=1.0, p99=1.5)


def lease_end(redis: Client) -> float:
    """The unix time at which the lease of the only reserved job expires; 0.0 if no job is reserved."""
    reserved = redis.text("ZRANGE", "queues:default:reserved", "0", "0", "WITHSCORES")
    return float(reserved[1]) if reserved else 0.0


@pytest.mark.fault(
    "7",
    "kill -9 of a whole host; another host is already waiting, or is started then",
    "its job is reclaimed when the lease has expired, and not earlier (times: from there)",
)
@pytest.mark.leaves("qd:masters", "queues:*:owners")  # of the lost host, for an hour
@pytest.mark.parametrize(
    ("lease", "by", "waiting"),
    [(2, "name", True), (2, "boot", True), (2, "ns", True), (4, "name", False)],
    ids=["another name", "another boot", "another namespace", "started afterwards"],
)
def test_another_host_takes_over_when_the_lease_has_expired(
    lease: int, by: str, waiting: bool, shop: Project, start: Start, ledger: Ledger, figures: Figures, redis: Client
) -> None:
    shop.config(f'retry_after = "{lease}s"\n')
    other = work_on_another_host(shop, "-w", "1", "--sleep", "0.2", by=by) if waiting else None
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
    figures.add(lost=len(ledger.lost()), doubles=len(ledger.doubles()), back=[late], p99=1.5 if waiting else 2.5)


# --- jobs that kill their master


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


def crashes_of_mine(ledger: Ledger) -> int:
    """How many crashes are counted when it is reserved the next time."""
    (payload,) = [read(raw) for raw in Seen(ledger.client).everywhere(ledger.queue).elements() if b'"mine"' in raw]
    return payload.crashes + (payload.rsv is not None and split_mark(payload.rsv).lane == 0)


DYING = 0.1  # seconds from the mine's start to the death of the last process


def answered_too_late(ledger: Ledger) -> set[int]:
    """The last finished job of each killed worker, and what one with several jobs has just finished: their answers may not
    have been sent before the mine exploded."""
    blows = [note.at for note in ledger.starts(-2)]
    last = {note.pid: note for note in ledger.notes if note.at < blows[-1]}
    late = [note for note in ledger.ends() if any(blow - UNSENT < note.at < blow + DYING for blow in blows)]
    return {note.n for note in (*last.values(), *(late if ledger.several else ())) if note.kind == "E"}


@pytest.mark.leaves("queues:*:deaths", "queues:*:failed", "queues:*:failed_at")
@pytest.mark.fault(
    "12",
    "a job that kills its master, or the whole program, each time; it is started again",
    "started three times alone, then failed; the 60 jobs behind it are done (times: from a start to the next job done)",
)
@pytest.mark.parametrize("how", ["parent", "everything"])
def test_a_job_that_kills_its_master_fails_after_max_crashes(
    shop: Project, ledger: Ledger, figures: Figures, redis: Client, how: str, mode: str
) -> None:
    push(redis, "mine", how=how)
    ledger.push(60)
    most = {"1": 3, "prefetch": 4}.get(mode, 5)  # at first it was not alone, and then perhaps beside another suspect
    deaths = 0
    while crashes_of_mine(ledger) < 3:
        work = shop.work("-w", "1")  # with two workers, the same other job might be killed three times
        assert work.wait(20) == -signal.SIGKILL
        deaths += 1
    work = shop.work("-w", "2")
    began = time.monotonic()
    (n,) = ledger.push()
    work.wait_line("job.failed .*job=mine.*max_crashes", 20)
    back = ledger.wait_end(n).at - began
    eventually(lambda: {note.n for note in ledger.ends()} == set(ledger.pushed), what="the end of every other job")
    work.stop()
    assert len(ledger.starts(-2)) == deaths <= most
    ((record, _),) = failed(redis)
    assert record["crashes"] == 3
    assert ledger.standing() == {-1: 1}, "only the mine is left, in the failed store"
    ledger.conserve(doubles=answered_too_late(ledger))
    figures.tell(ledger)
    figures.add(back=[back])
