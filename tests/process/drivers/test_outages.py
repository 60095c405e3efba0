"""A server that is slow, gone, read-only, full, or cuts every connection: nothing is lost or doubled, one log line each."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator

import hiredis
import psutil
import pytest

from tests.support.payloads import failed, push
from tests.support.processes import Procs
from tests.support.project import MakeProject, Project, ready
from tests.support.redis import Client
from tests.support.reliability import Figures
from tests.support.servers.redis import Server
from tests.support.waiting import eventually
from tests.support.witness import JOBS, LASTS, Witness

LOADED = (
    JOBS
    + LASTS
    + """
@app.job("tick", tries=3)
def tick(n: int) -> None:
    note("tick", n)
    time.sleep(0.002)

@app.job("hang", timeout=1)
def hang() -> None:
    try:
        note("hang", os.getpid())
        time.sleep(60)
    finally:
        note("ended", type(sys.exc_info()[1]).__name__)

@app.job("flaky", tries=2, backoff=0)
def flaky() -> None:
    note("flaky", current_job().attempt)
    raise ValueError("once more")
"""
)


@pytest.fixture
def own() -> Iterator[Server]:
    """A server that the test may mistreat."""
    with Server() as server:
        yield server


@pytest.fixture
def client(own: Server) -> Iterator[Client]:
    with own.client() as client:
        yield client


@pytest.fixture
def shop(project: MakeProject, own: Server) -> Project:
    return project(jobs=LOADED, url=own.url)


def harass(act: Callable[[], object], every: float, witness: Witness, count: int) -> int:
    """Do it again and again until so many have ticked, and not before another one has: a machine on which nothing gets done
    in `every` seconds is left the time that it needs. Returns how often."""
    times, last, before = 0, 0.0, 0

    def look() -> bool:
        nonlocal times, last, before
        ticked = len(witness.starting("tick"))
        if time.monotonic() - last >= every and ticked > before:
            act()
            times, last, before = times + 1, time.monotonic(), ticked
        return ticked >= count

    eventually(look, 90)
    return times


def every_tick_once(witness: Witness, work: Procs, client: Client, count: int, figures: Figures) -> None:
    """Conservation: each job ran, none twice, none is left anywhere."""
    eventually(lambda: not client.call("ZCARD", "queues:default:reserved"), what="every job acked")
    ran = Counter(line.split()[1] for line in witness.starting("tick"))
    figures.add(lost=count - len(ran), doubles=sum(times > 1 for times in ran.values()))
    assert len(ran) == count
    assert [n for n, times in ran.items() if times > 1] == []
    assert not work.matches("crashes=|lease_lost")
    for key in ("queues:default", "queues:default:delayed", "queues:default:failed"):
        assert not client.call("EXISTS", key), f"{key} is left"


def told_once(work: Procs) -> None:
    assert len(work.matches("redis.away")) == len(work.matches("redis.back")) == 1


def push_ticks(client: Client, count: int) -> None:
    for n in range(count):
        push(client, "tick", n=n)


@pytest.mark.fault(
    "28b", "Redis stopped (SIGSTOP) for longer than it may take to answer", "a timeout still ends its job in time"
)
@pytest.mark.modes("1", "prefetch", why="a thread that hangs in C sees no timeout: rows 51 and 55")
def test_a_server_that_hangs_for_seconds_delays_jobs_and_nothing_else(
    shop: Project, witness: Witness, own: Server, client: Client
) -> None:
    work = ready(shop, workers=3)
    push(client, "slow", seconds=4)
    witness.wait("start")
    push_ticks(client, 20)
    witness.wait("tick", 20)
    assert own.process is not None
    push(client, "hang")
    witness.wait("hang")
    own.process.send_signal(signal.SIGSTOP)
    assert witness.wait("ended", seconds=20) == ["ended JobTimeout"]  # a timeout needs no server
    work.wait_line("redis.away", 20)
    witness.wait("end")
    own.process.send_signal(signal.SIGCONT)
    work.wait_line("redis.back", 20)
    work.wait_line("job.failed .*job=hang .*JobTimeout")
    push_ticks(client, 40)
    witness.wait("tick", 60)
    client.call("DEL", "queues:default:failed", "queues:default:failed_at")
    assert len(witness.starting("start")) == len(witness.starting("hang")) == 1
    told_once(work)
    work.stop()
    assert not client.call("ZCARD", "queues:default:reserved")


@pytest.mark.fault("16b", "every connection to Redis cut each 100 ms", "each of 1,500 jobs ran once")
def test_cutting_every_connection_again_and_again_loses_and_doubles_nothing(
    shop: Project, witness: Witness, client: Client, figures: Figures
) -> None:
    push_ticks(client, 1500)
    work = shop.work("-w", "2", "--log-level", "warning")
    witness.wait("tick")
    times = harass(lambda: client.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"), 0.1, witness, 1500)
    assert times > 3
    every_tick_once(witness, work, client, 1500, figures)
    work.stop()


@pytest.mark.fault("26", "SCRIPT FLUSH each 50 ms", "no line in the log; each of 1,500 jobs ran once")
def test_losing_every_script_again_and_again_is_not_noticed(
    shop: Project, witness: Witness, client: Client, figures: Figures
) -> None:
    push_ticks(client, 1500)
    work = shop.work("-w", "2", "--log-level", "warning")
    witness.wait("tick")
    times = harass(lambda: client.call("SCRIPT", "FLUSH"), 0.05, witness, 1500)
    assert times > 3
    every_tick_once(witness, work, client, 1500, figures)
    assert work.lines == []
    work.stop()


def wakes_a_second(process: psutil.Process, seconds: float = 1.0) -> float:
    """How often it went to sleep and was woken, over at least so long."""
    began, before = time.monotonic(), process.num_ctx_switches().voluntary
    eventually(lambda: time.monotonic() - began > seconds, what="a while")
    return (process.num_ctx_switches().voluntary - before) / (time.monotonic() - began)


def test_workers_wait_for_a_server_that_was_never_there_without_spinning(project: MakeProject) -> None:
    shop = project(jobs=JOBS, url="unix:///nowhere/redis.sock")
    work = shop.work("-w", "1")
    work.wait_line("redis.away")
    (worker,) = eventually(lambda: work.children("worker 0"), what="a worker")
    assert eventually(lambda: wakes_a_second(worker) < 20, 20, what="few looks a second")
    work.stop()


def test_a_wrong_password_is_logged_once_and_not_shown_and_workers_wait(
    project: MakeProject, own: Server, client: Client
) -> None:
    shop = project(jobs=LOADED, url=f"unix://:hunter2@{own.socket}")
    witness = Witness(shop)
    client.call("CONFIG", "SET", "requirepass", "hunter2")
    work = ready(shop, workers=2)
    client.call("CONFIG", "SET", "requirepass", "another")
    client.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    work.wait_line("redis.away")
    work.wait_line("refuses this user or password")
    push(client, "quick")
    client.call("CONFIG", "SET", "requirepass", "hunter2")
    work.wait_line("redis.back")
    witness.wait("quick")
    told_once(work)
    assert not work.matches("hunter2")
    work.stop()


@pytest.mark.fault("16", "Redis is made a replica and refuses every write for 5 s", "no ack lost; one line each way")
def test_a_server_that_is_a_replica_for_a_while_is_waited_out(
    shop: Project, witness: Witness, client: Client, figures: Figures, mode: str
) -> None:
    work = ready(shop, workers=1)
    lasting = 8 if mode == "concurrency" else 1  # so many that nothing runs beside them
    push(client, "lasts", count=lasting)
    push_ticks(client, 20)
    witness.wait("start", lasting)
    client.call("REPLICAOF", "127.0.0.1", "1")
    at = time.monotonic()
    work.wait_line("redis.away .*READONLY")
    witness.go()
    witness.wait("end")
    eventually(lambda: time.monotonic() >= at + 5)
    assert not witness.starting("tick")
    client.call("REPLICAOF", "NO", "ONE")
    at = time.monotonic()
    witness.wait("tick")
    figures.add(back=[time.monotonic() - at], p99=2.0)
    work.wait_line("redis.back")
    assert not work.matches("Traceback")
    witness.wait("tick", 20)
    every_tick_once(witness, work, client, 20, figures)
    assert len(witness.starting("start")) == lasting
    told_once(work)
    work.stop()


@pytest.mark.fault(
    "27",
    "Redis at its maxmemory, noeviction",
    "a push fails naming maxmemory; all other calls work, and the queue drains",
)
def test_a_full_server_refuses_pushes_in_words_and_is_worked_off(
    shop: Project, witness: Witness, client: Client, figures: Figures
) -> None:
    work = ready(shop, workers=1)
    push(client, "slow", seconds=1.5)
    push_ticks(client, 20)
    push(client, "flaky")
    witness.wait("start")
    client.call("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(hiredis.ReplyError, match="OOM"):
        push(client, "quick")
    refused = shop.qd("dispatch", "quick")
    assert refused.returncode == 69
    assert "maxmemory" in refused.stderr
    assert "Traceback" not in refused.stderr
    witness.wait("tick", 20)
    work.wait_line("job.failed .*job=flaky")
    client.call("CONFIG", "SET", "maxmemory", "0")
    push(client, "quick")
    witness.wait("quick")
    assert witness.starting("flaky") == ["flaky 1", "flaky 2"]
    assert len(failed(client)) == 1
    client.call("DEL", "queues:default:failed", "queues:default:failed_at")
    every_tick_once(witness, work, client, 20, figures)
    assert len(witness.starting("start")) == 1
    assert not work.matches("redis.away")
    work.stop()
