"""A worker is killed, or its connection reset, at each point in the life of a job: row 4."""

from __future__ import annotations

import signal
import time

import pytest

from qd.config.settings import ConnectionSettings
from qd.drivers.base import ClientIdentity
from qd.drivers.redis.queue import RedisQueue
from tests.support.faults import ACTIONS, POINTS, Failing
from tests.support.ledger import Ledger
from tests.support.processes import Procs
from tests.support.project import Project, Start
from tests.support.redis import Client
from tests.support.reliability import Figures
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("queues:*:deaths")]
AGAIN = {("fired", "kill9"), ("ack_sent", "kill9")}  # the job ended without an ack: only these may run twice


def back_after(ledger: Ledger, failing: Failing) -> float:
    """One failure with a running and a waiting job. Returns the seconds until both have run and were answered."""
    failing.arm()
    ledger.push(2)
    at = failing.hit()
    ledger.wait_all()
    return time.monotonic() - at


@pytest.mark.fault(
    "4",
    "kill -9, and a reset connection, at each of seven points in the life of a job",
    "each job is back at once, found by its owner and not by its lease; twice only if killed between end and ack",
)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("point", POINTS)
def test_a_failure_at_any_point_loses_no_job(
    point: str, action: str, shop: Project, ledger: Ledger, figures: Figures, server: Server
) -> None:
    shop.url = server.tcp_url
    shop.config('retry_after = "60s"')
    failing = Failing(shop, point, action)
    work = failing.work("-w", "1")
    times = [back_after(ledger, failing) for _ in range(20 if figures.strict else 3)]
    work.stop()  # then all of its lines are read
    assert len(work.matches("worker.died")) == (len(times) if action == "kill9" else 0)
    ledger.conserve(doubles=ledger.pushed if (point, action) in AGAIN else ())
    figures.add(lost=len(ledger.lost()), doubles=len(ledger.doubles()), back=times, p50=0.5, p99=1.0)


@pytest.mark.fault(
    "4a",
    "the reserving call of a killed worker reaches Redis after the worker's death was handled",
    "the next worker in its slot finds the job (times: from its first poll)",
)
@pytest.mark.parametrize("polled", [False, True], ids=["a new successor", "a successor that polled before"])
def test_a_late_reservation_of_a_dead_worker_is_found_by_its_successor(
    polled: bool, start: Start, ledger: Ledger, figures: Figures, server: Server, redis: Client
) -> None:
    work = start("--sleep", "1")
    if not polled:
        pause(work)
    work.child("qd: worker").kill()
    work.wait_line("worker.died")
    if polled:
        work.child("waiting on")
        pause(work)
    slot = int(work.child("paused").cmdline()[0].split()[2])
    (token,) = eventually(lambda: redis.hash("qd:masters"), what="its keeper's first report")
    late = RedisQueue(ConnectionSettings("redis", url=server.url), ClientIdentity(token, slot))
    ledger.push()
    assert late.turn(None, ["default"]).reserved is not None
    late.close()
    at = time.monotonic()
    work.signal(signal.SIGCONT)
    ledger.wait_all(20)
    figures.add(lost=len(ledger.lost()), back=[ledger.ends(0)[0].at - at], p99=1.5)
    work.stop()
    ledger.conserve()


def pause(work: Procs) -> None:
    work.signal(signal.SIGUSR2)
    work.wait_line("master.paused")
