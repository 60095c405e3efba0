"""A proxy between a real `qd work` and its server: replies cut at any byte or swallowed, requests held back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from qd.drivers.keyspace.base import script
from tests.support.ledger import JOBS, Ledger
from tests.support.network import Action, Proxy
from tests.support.processes import Procs
from tests.support.project import MakeProject, Project
from tests.support.redis import Client
from tests.support.reliability import Figures
from tests.support.servers.redis import Server
from tests.support.waiting import BROUGHT, eventually

FAILED = pytest.mark.leaves("queues:*:failed", "queues:*:failed_at")
pytestmark = [pytest.mark.usefixtures("clean_redis"), FAILED]
TIMEOUT = 5.0  # seconds a reply may take

MORE = (
    JOBS
    + """
@app.job("again", tries=5)
def again(n: int) -> None:
    mark("S", n)
    if current_job().attempt == 1:
        current_job().release()
    mark("E", n)

@app.job("bad", tries=1)
def bad(n: int) -> None:
    mark("S", n)
    raise ValueError(n)
"""
)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.socket) as made:
        yield made


@pytest.fixture
def shop(project: MakeProject, proxy: Proxy) -> Project:
    return project(jobs=MORE, url=proxy.url)


def waits(work: Procs, redis: Client) -> bool:
    """Whether the worker waits: its title is set before its first turn, and a blocked client has made a turn."""
    return bool(work.children("waiting on")) and "blocked_clients:1\r" in redis.text("INFO", "clients")


@pytest.fixture
def work(shop: Project, redis: Client, request: pytest.FixtureRequest) -> Procs:
    """One worker that has made a turn and waits. An indirect parameter sets its retry_after."""
    shop.config(f"retry_after = {getattr(request, 'param', 30)}")
    started = shop.work("-w", "1", "--sleep", "1", "--log-level", "debug")
    eventually(lambda: waits(started, redis), 20, what="a worker that waits")
    return started


def sha(name: str) -> str:
    return script(name).sha


@pytest.fixture
def turn(mode: str) -> str:
    """The script of the turn of these workers."""
    return "turn" if mode == "1" else "lanes"


def settled(ledger: Ledger, n: int) -> None:
    """Wait until job n has started and every job was answered."""
    ledger.wait_start(n)
    kinds = ("", ":delayed", ":reserved")
    eventually(lambda: not any(ledger.client.call("EXISTS", f"queues:default{kind}") for kind in kinds), 20)


def ends_well(work: Procs, ledger: Ledger, figures: Figures, **limits: Any) -> None:
    assert not work.matches("lease_lost|lease.lost|lease.expired|Traceback|crashes=")
    work.stop()
    ledger.conserve()
    figures.tell(ledger)
    figures.add(**limits)


# -- silence


SILENCE = pytest.mark.fault(
    "29",
    "a reply swallowed by the network without an error: of a wait, a reserve, an ack, a renewal",
    "detected after 5 s without an answer (a renewal: 2 s); the reserved job is found within a second",
)


@SILENCE
@pytest.mark.parametrize("what", ["wait", "reserve", "ack"])
def test_a_swallowed_reply_is_detected_and_its_job_found(
    what: str, work: Procs, ledger: Ledger, proxy: Proxy, figures: Figures, turn: str
) -> None:
    if what == "wait":
        fault = proxy.on("BLPOP", "swallow")
        assert fault.met.wait(20)
    elif what == "reserve":
        fault = proxy.on(sha(turn), "swallow")
    else:
        (first,) = ledger.push(seconds=1.5)
        ledger.wait_start(first)
        fault = proxy.on(sha(turn), "swallow")
        assert fault.done.wait(20)
    (n,) = ledger.push()
    assert fault.done.wait(20)
    struck = time.monotonic()
    began = ledger.wait_start(n, seconds=TIMEOUT + BROUGHT)
    ledger.wait_all()
    assert began.attempt == 1
    detected = TIMEOUT + (1 if what == "wait" else 0)
    ends_well(work, ledger, figures, back=[max(0.0, began.at - struck - detected)], p99=1.0)


@SILENCE
@pytest.mark.parametrize("work", [5], indirect=True)
def test_a_swallowed_renewal_loses_no_lease(work: Procs, ledger: Ledger, proxy: Proxy, figures: Figures) -> None:
    (n,) = ledger.push(seconds=9)
    ledger.wait_start(n)
    for times in (1, 2):
        fault = proxy.on(sha("beat"), "hold")  # it does not reach the server
        assert fault.met.wait(20)
        work.wait_line("redis.away", 20, count=times)
        work.wait_line("redis.back", 20, count=times)
        fault.let_go()
    least = 5.0

    def over() -> bool:
        nonlocal least
        least = min([least, *ledger.leases()])
        return bool(ledger.ends(n))

    eventually(over, 20, every=0.05, what="the end of the job")
    assert least > 0, "its lease expired meanwhile"
    ledger.wait_all()
    ends_well(work, ledger, figures)


# -- late requests


@pytest.mark.fault(
    "29b",
    "a reserving call delayed on the network until its worker has moved on",
    "it reserves no job and ends no lease",
)
@pytest.mark.parametrize("work", [2], indirect=True)
def test_a_late_call_reserves_nothing(work: Procs, ledger: Ledger, proxy: Proxy, figures: Figures, turn: str) -> None:
    fault = proxy.on(sha(turn), "hold")
    assert fault.met.wait(20)
    (first,), (second,) = ledger.push(seconds=3.5), ledger.push()
    ledger.wait_start(first, seconds=TIMEOUT + 20)
    fault.let_go()
    assert fault.done.wait(20)
    most = 0

    def over() -> bool:
        nonlocal most  # checked all the time: a lease that is not renewed expires soon
        most = max(most, ledger.client.call("ZCARD", "queues:default:reserved"))
        return bool(ledger.ends(first))

    eventually(over, what="the end of the first job")
    assert most <= 1
    ledger.wait_end(second)
    ledger.wait_all()
    ends_well(work, ledger, figures)


@pytest.mark.fault(
    "29c",
    "a reply lost on the network, and then the server unreachable for a second",
    "the worker first queries what it holds",
)
def test_a_lost_reply_followed_by_an_outage_loses_no_job(
    work: Procs, ledger: Ledger, proxy: Proxy, figures: Figures, turn: str
) -> None:
    (first,) = ledger.push(seconds=1.5)
    ledger.wait_start(first)
    (second,) = ledger.push()
    proxy.refuse()  # only new connections; the current one stays until the fault
    fault = proxy.on(sha(turn), "reset")  # it acks the first and reserves the second
    assert fault.done.wait(20)
    work.wait_line("redis.broken", 20, count=4)
    proxy.heal()
    ledger.wait_end(second)
    ledger.wait_all()
    ends_well(work, ledger, figures)


# -- cuts


def cut(work: Procs, ledger: Ledger, proxy: Proxy, what: str, step: int, turn: str) -> int:
    """Cut the reply of one call at a later byte each time, until one arrives whole. Returns the number of cuts."""
    job, name = {
        "reserve": ("work", turn),
        "ack": ("work", turn),
        "release": ("again", "release"),
        "bury": ("bad", "bury"),
    }[what]
    for cuts, byte in enumerate(range(0, 10_000, step)):
        action: Action = "reset" if cuts % 2 else "close"
        if what == "ack":
            (n,) = ledger.push(seconds=0.05)
            ledger.wait_start(n)
            fault = proxy.on(sha(name), action, byte)
        else:
            eventually(lambda: waits(work, ledger.client))
            fault = proxy.on(sha(name), action, byte)
            (n,) = ledger.push(job=job)
        assert fault.done.wait(10)
        settled(ledger, n)
        if fault.whole:
            return cuts
    raise AssertionError("no reply is that long")


@pytest.mark.fault(
    "30",
    "the reply to a reserve, an ack, a release or a bury truncated at any byte",
    "the next reply belongs to the next call",
)
@pytest.mark.parametrize("what", ["reserve", "ack", "release", "bury"])
@pytest.mark.parametrize("step", [20, pytest.param(1, marks=pytest.mark.slow)])
def test_the_job_of_a_cut_reply_is_found(
    what: str, step: int, work: Procs, ledger: Ledger, proxy: Proxy, figures: Figures, turn: str
) -> None:
    for job in ("work", "again", "bad"):  # loads every script
        (n,) = ledger.push(job=job)
        settled(ledger, n)
    cuts = cut(work, ledger, proxy, what, step if what in ("reserve", "ack") else 1, turn)
    assert cuts >= 2
    runs = 2 if what == "release" else 1
    assert {len(ledger.starts(n)) for n in ledger.pushed[3:]} == {runs}
    work.stop()
    assert not ledger.lost()
    figures.tell(ledger)
    figures.add(cuts=cuts)
