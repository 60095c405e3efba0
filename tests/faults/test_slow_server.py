"""A server that hangs for seconds or replies late: timeouts work without a server, and no lease is lost. Row 28."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from tests.support.ledger import JOBS, Ledger
from tests.support.network import Proxy
from tests.support.project import MakeProject
from tests.support.redis import Client
from tests.support.reliability import Figures
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

STUCK = """
@app.job("stuck", timeout=1, tries=1)
def stuck(n: int, how: str) -> None:
    mark("S", n)
    sum(range(10**12)) if how == "in C" else time.sleep(60)
"""


@pytest.fixture
def own() -> Iterator[Server]:
    with Server("--enable-debug-command", "yes") as server:
        yield server


@pytest.fixture
def proxy(own: Server) -> Iterator[Proxy]:
    with Proxy(own.socket) as proxy:
        yield proxy


def asleep(client: Client) -> None:
    client.call("DEBUG", "SLEEP", "5")


def paused(client: Client) -> None:
    client.call("CLIENT", "PAUSE", "3000", "ALL")


def late(client: Client) -> None:
    """Each reply is 0.2 s late from the start; see the test."""


@pytest.mark.fault(
    "28",
    "Redis holds all clients for 3 s, hangs for 5 s, answers 0.2 s late; jobs are stuck meanwhile",
    "stuck jobs are still killed on time (times: after their timeout); with retry_after = 10 s no lease is lost",
)
@pytest.mark.parametrize("act", [asleep, paused, late])
@pytest.mark.modes("1", "prefetch", why="a job that keeps the interpreter's lock stops those beside it, too")
def test_timeouts_work_without_a_server(
    act: Callable[[Client], None], project: MakeProject, own: Server, proxy: Proxy, figures: Figures
) -> None:
    proxy.lag = 0.2 if act is late else 0.0
    shop = project(jobs=JOBS + STUCK, config='retry_after = "10s"\n', url=proxy.url)
    with own.client() as client, own.client() as other:
        ledger = Ledger(shop, client)
        work = shop.work("-w", "3")
        work.wait_line("master.ready")
        long, in_c, soft = (
            ledger.push(seconds=4) + ledger.push(job="stuck", how="in C") + ledger.push(job="stuck", how="sleep")
        )
        for n in (long, in_c, soft):
            ledger.wait_start(n)
        acting = threading.Thread(target=act, args=(other,))
        acting.start()
        killed = work.wait_line(r"job\.killed .*reason=timeout .*job=stuck .*took=(\d\.\d+)", 20)
        assert float(killed[1]) < 5, "the kill waited for the server"
        acting.join()
        for n in (long, soft):
            assert len(ledger.starts(n)) == 1
        ledger.wait_end(long)
        eventually(lambda: client.call("HLEN", "queues:default:failed") == 2, 20, what="both failed")
        eventually(lambda: not client.call("ZCARD", "queues:default:reserved"), what="the long one acked")
        work.stop()
        assert sorted(note.n for note in ledger.starts()) == [long, in_c, soft]
        assert not work.matches("lease")
        ledger.conserve()
        figures.add(lost=len(ledger.lost()), doubles=len(ledger.doubles()), back=[float(killed[1]) - 1], p99=0.5)
