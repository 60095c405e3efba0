"""The server is killed or unreachable while a real `qd work` runs: nothing is lost, one log line, jobs continue after it."""

from __future__ import annotations

import json
import re
import resource
import threading
import time
from collections.abc import Iterator

import hiredis
import pytest

from qd.payload.build import make
from tests.support.ledger import JOBS, Ledger
from tests.support.processes import Procs
from tests.support.project import MakeProject, Project
from tests.support.redis import Client
from tests.support.reliability import Figures
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

GONE = (OSError, hiredis.HiredisError)


@pytest.fixture
def fsync() -> str:
    return "no"


@pytest.fixture
def own(fsync: str) -> Iterator[Server]:
    """A server that the test may kill."""
    with Server("--appendonly", "yes", "--appendfsync", fsync) as server:
        yield server


@pytest.fixture
def client(own: Server) -> Iterator[Client]:
    with own.client() as client:
        yield client


@pytest.fixture
def shop(project: MakeProject, own: Server) -> Project:
    return project(jobs=JOBS, url=own.url)


@pytest.fixture
def ledger(shop: Project, client: Client) -> Ledger:
    return Ledger(shop, client)


def ready(shop: Project, workers: int, *arguments: str) -> Procs:
    work = shop.work("-w", str(workers), *arguments)
    eventually(lambda: len(work.children("waiting on")) == workers, 20, what="workers that wait")
    return work


class Producer:
    """Pushes one job after the other, and records which of them the server has acknowledged."""

    def __init__(self, own: Server, ledger: Ledger, count: int) -> None:
        self.client, self.ledger, self.count = own.client(), ledger, count
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        number = 0
        while len(self.ledger.pushed) < self.count:
            number += 1
            payload = make("work", json.dumps({"n": number, "seconds": 0.002}).encode(), created_at=int(time.time()))
            try:
                self.client.call("RPUSH", "queues:default", payload)
            except GONE:
                time.sleep(0.01)
            else:
                self.ledger.pushed.append(number)
        self.client.close()

    def over(self) -> bool:
        return not self.thread.is_alive()


def first_after(ledger: Ledger, moment: float) -> float:
    """The start of the first job after `moment`."""
    return min(eventually(lambda: [note.at for note in ledger.starts() if note.at > moment], what="a job"))


def nothing_left(client: Client) -> None:
    left = client.leftovers("*:notify")
    assert not left, f"keys left in Redis: {left}"


def logged_once(work: Procs) -> None:
    """Check for one line about the outage and one about its end, and no other warning or error."""
    assert len(work.matches("redis.away")) == len(work.matches("redis.back")) == 1
    others = [line for line in work.lines if " INFO " not in line and not re.search("redis.away|is_root", line)]
    assert not others, others


@pytest.mark.fault(
    "13", "kill -9 of Redis at a fifth of 2,000 jobs, during many pushes; back after 3 s", "one line each way"
)
@pytest.mark.parametrize("fsync", ["no", "always"])  # with everysec a write may wait for a sync, and be lost
def test_a_killed_server_loses_no_acknowledged_job(
    shop: Project, ledger: Ledger, own: Server, client: Client, figures: Figures
) -> None:
    work = ready(shop, 4, "--log-level", "info")
    storm = Producer(own, ledger, 2000)
    eventually(lambda: len(ledger.ends()) >= 400, 120, every=0.02, what="a fifth of the jobs")
    own.kill()
    killed = time.monotonic()
    eventually(lambda: time.monotonic() >= killed + 3)
    own.start()
    back = time.monotonic()
    client.close()  # its connection has ended with the server
    first = first_after(ledger, killed + 2)
    eventually(storm.over, 120, what="every push")
    ledger.wait_all(120)
    logged_once(work)
    work.stop()
    nothing_left(client)
    assert not ledger.lost()
    assert len(ledger.doubles()) <= 4
    figures.tell(ledger)
    figures.add(back=[max(0.0, first - back)], p99=2.0)


PUSH = """
import time
from jobs import work
from qd.errors import ConnectionLost
began = time.monotonic()
try:
    work.dispatch(0)
except ConnectionLost as error:
    print(error, time.monotonic() - began, sep="|")
"""


@pytest.mark.fault(
    "14",
    "Redis unreachable while jobs run, longer than their leases",
    "acks wait and are sent; a push fails with a named error; under 2 % of a CPU; one line each way",
)
@pytest.mark.parametrize(
    ("lease", "away"), [pytest.param(5, 8.0, id="8 s"), pytest.param(30, 60.0, id="60 s", marks=pytest.mark.slow)]
)
def test_jobs_outlast_an_outage(
    shop: Project, ledger: Ledger, own: Server, client: Client, figures: Figures, lease: int, away: float
) -> None:
    shop.config(f"retry_after = {lease}")
    work = ready(shop, 3, "--timeout", "300")
    short, long = ledger.push(seconds=2), ledger.push(seconds=away + 4)
    for n in (*short, *long):
        ledger.wait_start(n)
    own.kill()
    began, used = time.monotonic(), spent(work)
    error, _, took = shop.python(PUSH).stdout.partition("|")
    assert str(own.socket) in error
    assert float(took) < (5.5 if figures.strict else 15)
    eventually(lambda: time.monotonic() - began >= away, away + 20, every=0.1)
    percent = 100 * (spent(work) - used) / (time.monotonic() - began)
    assert percent < (2 if figures.strict else 20)
    own.start()
    back = time.monotonic()
    client.close()  # its connection has ended with the server
    work.wait_line("redis.back", 20)
    figures.add(back=[time.monotonic() - back], p99=1.0, cpu_percent=round(percent, 2))
    (fresh,) = ledger.push()
    assert ledger.wait_start(fresh).at - back < (2 if figures.strict else 10)
    ledger.wait_all()
    logged_once(work)
    work.stop()
    nothing_left(client)
    ledger.conserve()
    figures.tell(ledger)


def spent(work: Procs) -> float:
    """CPU seconds of all processes so far."""
    return sum(sum(process.cpu_times()[:2]) for process in work.session())


@pytest.mark.fault(
    "16c",
    "Redis killed; back, it loads for 3 s before it serves (LOADING)",
    "treated as an outage; one line each way",
)
def test_jobs_continue_after_a_server_has_loaded_its_data(
    shop: Project, ledger: Ledger, own: Server, client: Client, figures: Figures
) -> None:
    client.call("EVAL", "for i = 1, 8000 do redis.call('HSET', 'filler', i, i) end", 0)
    work = ready(shop, 2)
    (short,), waiting = ledger.push(seconds=2), ledger.push(20, seconds=0.15)
    ledger.wait_start(short)
    own.kill()
    client.close()
    with own.client() as other:
        replies = [""]
        looking = threading.Thread(target=lambda: eventually(lambda: "LOADING" in note_refusal(other, replies), 20))
        looking.start()
        own.start("--key-load-delay", "400")
        back = time.monotonic()
        looking.join(20)
    assert "LOADING" in replies[-1]
    ledger.wait_end(waiting[-1])
    ledger.wait_all()
    logged_once(work)
    work.stop()
    client.call("DEL", "filler")
    nothing_left(client)
    ledger.conserve()
    figures.tell(ledger)
    later = [note.at for note in ledger.starts() if note.at > back - 0.5]
    figures.add(back=[max(0.0, min(later) - back)], p99=2.0)


def refusal(client: Client) -> str:
    """The error reply to a write; empty if the server accepts it or is unreachable."""
    try:
        client.call("DEL", "none")
    except hiredis.ReplyError as error:
        return str(error)
    except GONE:
        client.close()
    return ""


def note_refusal(client: Client, replies: list[str]) -> str:
    replies.append(refusal(client))
    return replies[-1]


@pytest.mark.fault(
    "27b",
    "Redis cannot write its append-only file (disk full), then it can again",
    "a push fails with this reason; acks wait and are sent; one line each way",
)
@pytest.mark.parametrize("fsync", ["no"])  # with always the server would exit
def test_jobs_continue_after_a_full_disk_has_space_again(
    shop: Project, ledger: Ledger, own: Server, client: Client, figures: Figures
) -> None:
    client.call("SET", "filler", b"x" * 500_000)
    work = ready(shop, 2)
    (running,), waiting = ledger.push(seconds=2), ledger.push(10)
    ledger.wait_start(running)
    (log,) = own.folder.glob("appendonlydir/*.incr.aof")
    assert own.process is not None
    before = resource.prlimit(own.process.pid, resource.RLIMIT_FSIZE, (log.stat().st_size, resource.RLIM_INFINITY))
    eventually(lambda: "MISCONF" in refusal(client), 20, what="a server that rejects writes")
    work.wait_line("redis.away .*MISCONF")
    refused = shop.qd("dispatch", "work", "n=0")
    assert refused.returncode == 69
    assert "MISCONF" in refused.stderr
    ledger.wait_end(running)
    resource.prlimit(own.process.pid, resource.RLIMIT_FSIZE, before)
    eventually(lambda: not refusal(client), 20, what="a server that accepts writes")
    back = time.monotonic()
    work.wait_line("redis.back", 20)
    figures.add(back=[time.monotonic() - back], p99=2.0)
    ledger.wait_end(waiting[-1])
    ledger.wait_all()
    logged_once(work)
    work.stop()
    client.call("DEL", "filler")
    nothing_left(client)
    ledger.conserve()
    figures.tell(ledger)
