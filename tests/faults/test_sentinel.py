"""A primary dies while a real `qd work` runs, and sentinels name another: all jobs it has acknowledged are done."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from qd.config.settings import ConnectionSettings
from qd.drivers.redis.queue import RedisQueue
from qd.errors import QdError
from qd.payload.build import make
from tests.support.ledger import JOBS, Ledger
from tests.support.processes import waiting
from tests.support.project import MakeProject, Project
from tests.support.reliability import Figures
from tests.support.servers.sentinel import Sentinel, role
from tests.support.waiting import eventually


@pytest.fixture
def sentinel() -> Iterator[Sentinel]:
    """Servers of its own for each test: after a failover sentinels wait for minutes before they do some things again."""
    with Sentinel() as servers:
        yield servers


@pytest.fixture
def shop(project: MakeProject, sentinel: Sentinel) -> Project:
    return project(jobs=JOBS, url=sentinel.url)


@pytest.fixture(autouse=True)
def restored(sentinel: Sentinel) -> Iterator[None]:
    """Restart a primary that a test has killed."""
    yield
    for node in sentinel.nodes:
        if node.process is None:
            sentinel.bring_back(node)


@pytest.fixture
def queue(sentinel: Sentinel) -> Iterator[RedisQueue]:
    """The connection of a producer."""
    found = RedisQueue(ConnectionSettings(name="redis", url=sentinel.url))
    found.patience(1.0, 1.0)
    yield found
    found.close()


class Producer:
    """Pushes one job after the other until stop(), and records the port of the server that acknowledged each."""

    def __init__(self, queue: RedisQueue) -> None:
        self.queue, self.by = queue, dict[int, int]()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        number = 0
        while not self.over.is_set():
            number += 1
            try:
                self.queue.push("default", payload(number))
                self.by[number] = self.queue.connection.target.port
            except QdError:
                time.sleep(0.02)
            time.sleep(0.002)

    def pushed(self, port: int) -> list[int]:
        """The numbers of the jobs that this server has acknowledged."""
        return [number for number, at in list(self.by.items()) if at == port]

    def stop(self) -> None:
        self.over.set()
        self.thread.join(20)
        assert not self.thread.is_alive()


def payload(number: int) -> bytes:
    return make("work", b'{"n":%d,"seconds":0.002}' % number, created_at=int(time.time()))


@contextmanager
def ledger_of(shop: Project, sentinel: Sentinel) -> Iterator[Ledger]:
    with sentinel.primary.client() as client:
        yield Ledger(shop, client)


@pytest.mark.fault(
    "46",
    "kill -9 of the primary under three sentinels during many pushes, and a requested failover",
    "all jobs that the new primary acknowledged are done; workers switch to it automatically; one line each way",
)
def test_jobs_acknowledged_by_the_new_primary_are_done(
    shop: Project, sentinel: Sentinel, queue: RedisQueue, figures: Figures
) -> None:
    old = sentinel.primary
    work = shop.work("-w", "2", "--log-level", "info")
    waiting(work, 2)
    storm = Producer(queue)
    eventually(lambda: len(storm.pushed(old.port)) > 100, what="pushes to the first primary")
    new = sentinel.failover(back=False)
    named = time.monotonic()
    eventually(lambda: len(storm.pushed(new.port)) > 200, what="pushes to the new primary")
    storm.stop()
    with ledger_of(shop, sentinel) as ledger:
        ledger.pushed = storm.pushed(new.port)
        ledger.wait_all()
        first = min(note.at for note in ledger.starts() if note.at > named)
        figures.add(lost=len(ledger.lost()), back=[first - named])
        assert not ledger.lost()
    assert f"127.0.0.1:{new.port}/0" in work.wait_line("redis.back").string
    assert len(work.matches("redis.away")) == len(work.matches("redis.back")) == 1, work.lines
    work.stop()


def test_clients_leave_a_primary_that_becomes_a_replica(shop: Project, sentinel: Sentinel, queue: RedisQueue) -> None:
    """For ten seconds, until a sentinel reconfigures it, it does not know the new primary, and loses all writes."""
    old = sentinel.primary
    work = shop.work("-w", "2", "--log-level", "warning")
    eventually(lambda: pushed(queue, 0), what="a push to the first primary")
    with sentinel.watchers[0].client() as client:
        client.call("SENTINEL", "FAILOVER", sentinel.service)
    new = eventually(lambda: sentinel.primary is not old and sentinel.primary, what="another primary")
    numbers = count(1)
    last = eventually(lambda: pushed(queue, n := next(numbers)) and queue.connection.target.port == new.port and n, 60)
    assert role(old) == "master", "the clients left only after it was reconfigured"
    with ledger_of(shop, sentinel) as ledger:
        ledger.pushed = [last]
        ledger.wait_all()
    work.stop()


def pushed(queue: RedisQueue, number: int) -> bool:
    try:
        queue.push("default", payload(number))
    except QdError:
        return False
    return True


def test_a_job_that_runs_during_a_failover_runs_once(shop: Project, sentinel: Sentinel, queue: RedisQueue) -> None:
    """Its lease expired while there was no primary: its own keeper may renew it first, on the new one."""
    shop.config("retry_after = 2")
    first, second = shop.work("-w", "1"), shop.work("-w", "1")
    waiting(first, 1)
    waiting(second, 1)
    queue.push("default", make("work", b'{"n":1,"seconds":7}', created_at=int(time.time())))
    with ledger_of(shop, sentinel) as ledger:
        ledger.wait_start(1)
        assert ledger.client.call("WAIT", "2", "5000") == 2
    sentinel.failover(back=False)
    with ledger_of(shop, sentinel) as ledger:
        ledger.pushed = [1]
        ledger.wait_all()
        assert len(ledger.starts(1)) == 1
    first.stop()
    second.stop()


def test_the_error_for_an_unknown_service_lists_the_known_ones(shop: Project, sentinel: Sentinel) -> None:
    done = shop.qd("status", QD_REDIS_URL=sentinel.url.replace(f"/{sentinel.service}/", "/shop/"))
    assert done.returncode == 69
    assert "knows no primary called 'shop' (known: qd)" in done.stderr
    assert done.stderr.count("\n") == 1
