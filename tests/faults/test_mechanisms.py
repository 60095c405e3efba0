"""The mechanisms behind the promises, each in a quick test of its own; test_switched_off.py switches them off."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.ledger import JOBS, Ledger
from tests.support.processes import Procs
from tests.support.project import MakeProject, Project, Start
from tests.support.redis import Client
from tests.support.reliability import Figures
from tests.support.servers.redis import KEEPS, Server
from tests.support.waiting import eventually


def two_masters(shop: Project) -> list[Procs]:
    found = [shop.work("-w", "1"), shop.work("-w", "1")]
    for work in found:
        work.wait_line("master.ready")
    return found


@pytest.mark.parametrize("how", ["sleep", "hold"])
def test_a_lease_is_renewed_as_long_as_its_worker_lives(
    project: MakeProject, clean_redis: Client, figures: Figures, how: str
) -> None:
    shop = project(jobs=JOBS, config='retry_after = "2s"\n')
    ledger, masters = Ledger(shop, clean_redis), two_masters(shop)
    (n,) = ledger.push(seconds=7, how=how)
    eventually(lambda: ledger.ends(n) or len(ledger.starts(n)) > 1, 40, what="the end of the job, or its second start")
    assert len(ledger.starts(n)) == 1
    ledger.wait_all()
    for work in masters:
        work.stop()
    ledger.conserve()
    figures.tell(ledger)


NAP = """
import asyncio

@app.job("nap", timeout=0)
async def nap(n: int) -> None:
    mark("S", n)
    await asyncio.sleep(6)  # a lease that was not renewed is lost after 2.7 to 4 s
    mark("E", n)
"""


def test_the_leases_of_all_jobs_of_a_worker_are_renewed(project: MakeProject, clean_redis: Client) -> None:
    shop = project(jobs=JOBS + NAP, config='retry_after = "2s"\n')
    ledger, work = Ledger(shop, clean_redis), shop.work("-w", "1", "--concurrency", "10")
    ledger.push(10, job="nap")
    eventually(lambda: len(ledger.ends()) >= 10, 40, what="ten ends, also if jobs that lost their lease run again")
    work.stop()
    assert not work.matches("lease")
    assert len(ledger.starts()) == 10
    ledger.conserve()


def test_no_lease_is_reclaimed_right_after_an_outage(project: MakeProject, figures: Figures) -> None:
    with Server(*KEEPS) as server:
        shop = project(jobs=JOBS, url=server.url, config='retry_after = "1s"\n')
        client = server.client()
        ledger, masters = Ledger(shop, client), two_masters(shop)
        for n in ledger.push(2, seconds=6.5):
            ledger.wait_start(n)
        server.kill()
        time.sleep(2.5)  # longer than the lease, as in the promise
        server.start()
        client.close()
        ledger.wait_end(0)
        assert not [line for work in masters for line in work.matches("lease")]
        ledger.wait_all()
        for work in masters:
            work.stop()
        assert len(ledger.starts()) == 2
        ledger.conserve()
        figures.tell(ledger)
        client.close()


NO_ALARM = """
@app.job("deaf")
def deaf(n: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    mark("S", n)
    time.sleep(60)
"""


@pytest.mark.leaves("queues:default", "queues:default:notify")
def test_a_job_ended_at_the_stop_timeout_is_handed_back_with_its_attempt(
    project: MakeProject, clean_redis: Client
) -> None:
    shop = project(jobs=JOBS + NO_ALARM)
    ledger, work = Ledger(shop, clean_redis), shop.work("-w", "1", "--stop-timeout", "1s")
    (n,) = ledger.push(job="deaf")
    ledger.wait_start(n)
    work.stop(seconds=20)
    (payload,) = clean_redis.text("LRANGE", "queues:default", "0", "-1")
    assert '"attempts":0' in payload
    assert '"crashes"' not in payload


def test_the_kernel_prefers_to_kill_a_worker_over_the_master(start: Start, clean_redis: Client) -> None:
    work = start(workers=2)
    adjusted = lambda pid: int(Path(f"/proc/{pid}/oom_score_adj").read_text())  # noqa: E731
    workers = eventually(lambda: len(work.children("qd: worker")) == 2 and work.children("qd: worker"))
    assert all(adjusted(worker.pid) > adjusted(work.pid) for worker in workers)
    assert all(adjusted(keeper.pid) <= adjusted(work.pid) for keeper in work.children("qd: keeper"))
    work.stop()
