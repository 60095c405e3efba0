"""qd as PID 1 of a container, and PIDs that are reused immediately: rows 20 and 21."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.support import processes
from tests.support.ledger import JOBS, Kill, Ledger
from tests.support.processes import Bystanders, Procs
from tests.support.project import MakeProject, Project
from tests.support.reliability import Figures
from tests.support.waiting import eventually

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("queues:*:deaths")]

ORPHANS = (
    JOBS
    + """
@app.job("orphans")
def orphans(n: int) -> None:
    "Leaves processes behind that end by themselves, some at once, in groups and sessions of their own."
    mark("S", n)
    for seconds in (0, 0, 0.1, 0.5):
        subprocess.run(["sh", "-c", f"setsid sleep {seconds} & sleep {seconds} & exit 0"])
    mark("E", n)
"""
)


@pytest.fixture
def shop(project: MakeProject) -> Project:
    return project(jobs=ORPHANS)


@pytest.mark.fault(
    "20",
    "qd is PID 1 of a container, and its jobs leave processes behind",
    "no zombie is left, the exit of an orphan does not count as a worker's, TERM ends it with 0 (times: the stop)",
)
def test_as_pid_1_it_reaps_foreign_processes_and_handles_term(shop: Project, ledger: Ledger, figures: Figures) -> None:
    work = shop.work("-w", "2", within=processes.new_namespace())
    work.wait_line("master.ready")
    ledger.push(20, job="orphans")
    ledger.wait_all()
    assert work.matches(r"master\[1\]")
    init = psutil.Process(processes.namespace_init(work))
    eventually(
        lambda: len(init.children(recursive=True)) == 4, 20, what="only the template, the keeper and two workers"
    )
    assert not work.matches("died|boot_failed|WARN|ERROR")
    began = time.monotonic()
    init.send_signal(signal.SIGTERM)
    work.ends_clean()
    figures.tell(ledger)
    figures.add(back=[time.monotonic() - began], p99=0.6)
    ledger.conserve()


@pytest.fixture
def crowd(shop: Project) -> Iterator[Bystanders]:
    """A namespace whose PID 1 only reaps."""
    init = Procs([*processes.new_namespace(), sys.executable, "-c", processes.REAPER], cwd=shop.root, env=os.environ)
    try:
        yield Bystanders(processes.namespace_init(init))
    finally:
        init.sweep()


def kill_and_reuse_pid(work: Procs, crowd: Bystanders, ledger: Ledger, process: psutil.Process) -> None:
    """Kill the process, and let another process reuse its PID."""
    (number,) = processes.by_inner_pid([process])
    start = len(work.lines)
    ledger.kills.append(Kill(number, time.monotonic()))
    process.kill()
    work.wait_line("(worker|keeper|template).died", start=start)
    crowd.take(number)


def at_rest(work: Procs, asked: int) -> bool:
    """Whether each requested reload has started, and the last one and its old template have ended."""
    changes = [match[1] for match in work.matches(r"master\.(reloading|reloaded|reload_refused)")]
    over = changes.count("reloading") >= asked and changes[-1] != "reloading"
    return over and len(work.children("qd: template")) == 1


@pytest.mark.fault(
    "21",
    "pids are reused at once: unrelated processes get the pids of dead workers, keepers, templates and masters",
    "no unrelated process is signaled or mistaken for one of qd's",
)
def test_a_process_that_reuses_a_pid_is_not_touched(
    shop: Project, ledger: Ledger, figures: Figures, crowd: Bystanders
) -> None:
    work = shop.work("-w", "3", "--max-crashes", "1000", within=crowd.words)
    work.wait_line("master.ready")
    master = work.child("qd: master")
    for number in range(6):
        (n,) = ledger.push(seconds=50, again=0.0)
        with_job = ledger.wait_start(n).pid  # reloads continue: workers are replaced meanwhile
        kill_and_reuse_pid(work, crowd, ledger, processes.by_inner_pid(work.children("qd: worker"))[with_job])
        if number == 2:
            kill_and_reuse_pid(work, crowd, ledger, work.child("qd: keeper"))
        if number == 4:
            eventually(lambda: at_rest(work, asked=4), what="one template, which serves")
            kill_and_reuse_pid(work, crowd, ledger, work.child("qd: template"))
        # TTIN and TTOU come first: the kernel discards a pending CONT when one of them is sent.
        for each in (signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGHUP):
            master.send_signal(each)
        ledger.wait_all()
    assert not crowd.dead()
    (last,) = ledger.push(seconds=50, again=0.0)
    ledger.kills.append(Kill(ledger.wait_start(last).pid, time.monotonic()))
    gone = processes.by_inner_pid(work.children("qd: "))
    master.kill()
    work.wait()
    for number in gone:
        crowd.take(number)
    again = shop.work("-w", "2", within=crowd.words)
    again.wait_line("jobs?.requeued .*its master died")
    ledger.wait_end(last)
    ledger.wait_all()
    again.child("qd: master").terminate()
    again.ends_clean()
    assert not crowd.dead()
    for file in (shop.run / "qd").glob("*.live"):  # of the dead master; a later `qd health --live` would delete it
        file.unlink()
    ledger.conserve()
    figures.tell(ledger)
