"""Limits of the kernel: out of memory, no more processes, wasted resources. Rows 3, 22 and 23."""

from __future__ import annotations

import os
import time

import psutil
import pytest

from tests.support.ledger import JOBS, Ledger
from tests.support.payloads import failed
from tests.support.processes import control_group
from tests.support.project import MakeProject, Project
from tests.support.redis import Client
from tests.support.reliability import Figures
from tests.support.waiting import eventually

FAILED = pytest.mark.leaves("queues:*:deaths", "queues:*:failed", "queues:*:failed_at")
pytestmark = pytest.mark.usefixtures("clean_redis")

GREEDY = (
    JOBS
    + """
import resource

ballast = [bytearray(os.urandom(1000) * 12_000)]  # makes the template larger than a worker that frees it

@app.job("hog")
def hog(n: int, how: str) -> None:
    kept, file = [], os.memfd_create("kept")
    mark("S", n)
    while True:
        if how == "heap":
            kept.append(bytearray(os.urandom(1000) * 2000))
        else:  # memory of no process: oom_score_adj decides which process the kernel kills
            ballast.clear()
            os.write(file, os.urandom(1000) * 2000)
        mark("A", n)

@app.job("bounded")
def bounded(n: int) -> None:
    mark("S", n)
    resource.setrlimit(resource.RLIMIT_AS, (200_000_000, resource.RLIM_INFINITY))
    bytearray(400_000_000)
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=GREEDY)


@FAILED
@pytest.mark.fault(
    "3",
    "a job that uses all the memory of its cgroup (40 MB beyond qd itself), repeatedly",
    "the kernel kills its worker, never the master; the failed record names out of memory; the next job runs at once",
)
@pytest.mark.modes("1", "prefetch", why="it counts the deaths that one job costs; row 53 has several")
@pytest.mark.parametrize("how", ["heap", "file"])
@pytest.mark.parametrize(
    "times", [pytest.param(5, id="5 times"), pytest.param(20, id="20 times", marks=pytest.mark.slow)]
)
def test_the_kernel_kills_the_worker_and_not_its_master(
    times: int, how: str, shop: Project, ledger: Ledger, figures: Figures, redis: Client
) -> None:
    with control_group("memory", f"qd-test-{os.getpid()}") as small:
        work = shop.work("-w", "1", "--max-crashes", "1", within=small.words)
        work.wait_line("master.ready")
        own = int(small.read("memory.current" if small.v2 else "memory.usage_in_bytes"))
        small.limit("memory.limit_in_bytes", "memory.max", own + 40_000_000)
        back = []
        for number in range(times):
            (hog,) = ledger.push(job="hog", how=how)
            work.wait_line("worker.died .*signal 9 .*job=hog", 20, count=number + 1)
            last = ledger.notes[-1].at
            (n,) = ledger.push()
            back.append(ledger.wait_end(n).at - last)
            work.wait_line("job.failed .*job=hog", count=number + 1)
            assert len(ledger.starts(hog)) == 1
        assert not work.matches("(keeper|template).died")
        assert len(work.matches("worker.died .*out of memory .the kernel.*job=hog")) == times
        work.stop()
    figures.add(lost=len(ledger.lost()), back=back, p99=1.0)
    assert len(failed(redis)) == times
    for record, _ in failed(redis):
        assert "out of memory" in record["reason"]
    ledger.conserve()


@FAILED
@pytest.mark.fault(
    "3 limit",
    "a job that asks for more than its own memory limit (RLIMIT_AS)",
    "a MemoryError, handled as any other error",
)
def test_a_memory_limit_set_by_the_job_is_a_memory_error(
    shop: Project, ledger: Ledger, figures: Figures, redis: Client
) -> None:
    ledger.push(job="bounded")
    work = shop.work_off()
    work.wait_line("job.failed .*job=bounded .*MemoryError")
    ((record, _),) = failed(redis)
    assert record["error"] == "MemoryError"
    assert not work.matches("worker.died|out of memory")
    ledger.conserve()
    figures.tell(ledger)


@pytest.mark.leaves("queues:*:deaths")
@pytest.mark.fault(
    "22",
    "no more processes can be forked (pids.max), and workers die; then they can again",
    "the master serves with the workers it has, backs off, logs each attempt once, and has all its workers again "
    "(times: from the raised limit to the last worker)",
)
@pytest.mark.parametrize("flags", [(), ("--no-preload",)], ids=["preload", "no-preload"])
def test_without_new_processes_the_remaining_workers_serve(
    flags: tuple[str, ...], shop: Project, ledger: Ledger, figures: Figures
) -> None:
    with control_group("pids", f"qd-test-{os.getpid()}") as small:
        work = shop.work("-w", "4", *flags, within=small.words)
        work.wait_line("master.ready")
        small.limit("pids.max", "pids.max", 1)
        for worker in work.children("qd: worker")[:3]:
            ledger.kill(worker.pid)
        work.wait_line("fork_failed")
        ledger.push(20)
        ledger.wait_all()
        began, tries = time.monotonic(), len(work.matches("fork_failed"))
        time.sleep(3)  # the test observes the rate of the attempts
        more = len(work.matches("fork_failed")) - tries
        assert more <= 1 + time.monotonic() - began, "too many lines"
        assert len(work.children("qd: worker")) == 1
        small.limit("pids.max", "pids.max", "max")
        began = time.monotonic()
        eventually(lambda: len(work.children("waiting on")) == 4, 20, what="four workers again")
        figures.add(back=[time.monotonic() - began], p99=5.0)
        work.stop()
    ledger.conserve()


WASTEFUL = (
    JOBS
    + """
kept = []

@app.job("forks", timeout=12)
def forks(n: int) -> None:
    mark("S", n)
    for _ in range(500):
        os.posix_spawn("/bin/sleep", ["sleep", "300"], os.environ)
    mark("E", n)
    time.sleep(300)

@app.job("files")
def files(n: int) -> None:
    mark("S", n)
    kept.extend(os.open("/dev/null", os.O_RDONLY) for _ in range(5000))
    mark("E", n)

@app.job("leak")
def leak(n: int) -> None:
    mark("S", n)
    kept.append(bytearray(os.urandom(1000) * 20_000))
    mark("E", n)
"""
)


@FAILED
@pytest.mark.slow
@pytest.mark.fault(
    "23",
    "jobs that fork 500 processes, open 5,000 files or leak 20 MB, ten of each",
    "their child processes end with them; the leaking worker is replaced; the master does not grow; other jobs run "
    "(times: of the other jobs)",
)
def test_resources_wasted_by_jobs_are_recovered(project: MakeProject, redis: Client, figures: Figures) -> None:
    shop = project(jobs=WASTEFUL)
    ledger = Ledger(shop, redis)
    work = shop.work("-w", "3", "--max-jobs", "20", "--memory", "64M", "--log-level", "debug")
    work.wait_line("master.ready")
    master = psutil.Process(work.pid)
    before, small, took = master.num_fds(), master.memory_info().rss, []
    for number in range(10):
        ledger.push(job="files")
        (forks,) = ledger.push(job="forks")
        ledger.push(job="leak")
        ledger.wait_end(forks, 40)
        began = time.monotonic()
        (n,) = ledger.push()
        took.append(ledger.wait_end(n).at - began)
        work.wait_line("job.failed .*job=forks", 30, count=number + 1)
        eventually(lambda: len(work.session()) < 10, 20, what="none of the 500 processes left")
    assert work.matches(r"worker.left .*exit 12 \(memory\)")
    eventually(lambda: len(work.children("waiting on")) == 3, what="three workers")
    assert master.num_fds() == before
    resident = master.memory_info().rss
    assert resident < small + 10e6
    work.stop()
    assert not ledger.lost()
    figures.add(back=took, p99=1.0, master_bytes=resident)
