"""app.limiter on a real server: exact across processes, in order, and a wait that ends passes its turn on."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path

import pytest

from qd import Qd, current_job
from qd.errors import ArgumentError, ConnectionLost, DeclarationError
from qd.middleware import RateLimited
from tests.support.payloads import push
from tests.support.processes import Procs
from tests.support.project import GENTLE, SOURCE, MakeProject
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("qd:rate:*")]
TURNS, STARTS = "qd:rate:{stripe}:turns", "qd:rate:{stripe}:starts"


def test_no_window_has_more_starts_than_the_limit_from_all_processes(server: Server, redis: Client, tmp_path: Path):
    """Four processes, 60 starts, by the server's own clock; the window's zset is copied before it forgets them."""
    code = """
from qd import Qd
from qd.store.locks import Rate
starts, start = [], Rate.start

def noted(self, *about):
    answer = start(self, *about)
    if not answer.wait:
        starts.append(answer.at)
    return answer

Rate.start = noted
limiter = Qd().limiter("stripe", 10, per=0.4)
for _ in range(15):
    assert limiter.acquire()
with open("starts", "a") as file:
    file.write("".join(f"{at!r}\\n" for at in starts))
"""
    env = {"PYTHONPATH": str(SOURCE), "QD_REDIS_URL": server.url, "PATH": os.environ["PATH"]}
    started = [Procs([sys.executable, "-c", code], cwd=tmp_path, env=env) for _ in range(4)]
    for each in started:
        assert each.process.wait(60) == 0, each.all_lines
    starts = sorted(float(line) for line in (tmp_path / "starts").read_text().splitlines())
    assert len(starts) == 60
    assert all(later - sooner >= 0.4 - 1e-6 for sooner, later in zip(starts, starts[10:], strict=False))


def test_a_limit_that_is_reached_refuses_at_once(app: Qd, redis: Client):
    limiter = app.limiter("stripe", 3, per=60)
    assert limiter.left() == 3
    assert [limiter.try_acquire() for _ in range(4)] == [True, True, True, False]
    assert limiter.left() == 0
    assert not limiter.acquire(timeout=30)  # at once: its turn would come later than that
    assert redis.call("EXISTS", TURNS) == 0  # a caller that did not wait delays no other
    assert redis.call("ZCARD", STARTS) == 3
    assert repr(limiter) == "<limiter 'stripe' 3 per 60 s>"


def test_waiters_start_in_the_order_in_which_they_came(app: Qd, redis: Client):
    limiter, served = app.limiter("stripe", 1, per=1), list[int]()  # who comes a second late has no turn any more

    def wait(number: int) -> None:
        with limiter:
            served.append(number)

    assert limiter.acquire()
    threads = []
    for number in range(3):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        eventually(lambda number=number: redis.call("ZCARD", TURNS) + len(served) == number + 1)  # type: ignore[misc]
    for thread in threads:
        thread.join(20)
    assert served == [0, 1, 2]


def test_coroutines_wait_without_blocking_the_loop_and_leave_when_they_are_cancelled(app: Qd, redis: Client):
    async def main() -> None:
        limiter = app.limiter("stripe", 1, per=30)
        async with limiter:
            assert not await limiter.atry_acquire()
        waiting = asyncio.create_task(limiter.aacquire())
        while not redis.call("ZCARD", TURNS):
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert redis.call("ZCARD", TURNS) == 0
        quick = app.limiter("quick", 1, per=0.1)
        assert [await quick.aacquire(5) for _ in range(3)] == [True, True, True]

    asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.leaves("queues:default:failed", "queues:default:failed_at")
def test_a_timeout_ends_a_wait_in_a_job_and_gives_its_turn_away(project: MakeProject, app: Qd, redis: Client):
    shop = project(
        JOBS
        + """
@app.job("waits", tries=1, timeout=1)
def waits() -> None:
    try:
        app.limiter("stripe", 1, per=60).acquire()
    except BaseException as error:
        note("ended", type(error).__name__)
        raise
"""
    )
    shop.program = GENTLE
    witness = Witness(shop)
    assert app.limiter("stripe", 1, per=60).acquire()
    push(redis, "waits")
    work = shop.work("-w", "1")
    assert witness.wait("ended") == ["ended JobTimeout"]
    eventually(lambda: redis.call("ZCARD", TURNS) == 0, 20)
    work.wait_line("job.failed", 20)
    work.stop()


def test_it_shares_its_window_with_the_middleware_of_that_name(project: MakeProject, redis: Client, server: Server):
    shop = project(
        JOBS
        + """
from qd.middleware import RateLimited
app.limit("stripe", 2, per=60)

@app.job("charge", middleware=[RateLimited("stripe")])
def charge() -> None:
    note("charge")
"""
    )
    witness = Witness(shop)
    app = Qd(server.url)
    assert app.limiter("stripe", 2, per=60).try_acquire()
    push(redis, "charge")
    shop.work_off()
    assert witness.lines == ["charge"]
    assert not app.limiter("stripe", 2, per=60).try_acquire()
    app.connections.close_all()


def test_figures_are_given_or_declared_and_never_both_ways(app: Qd):
    app.limit("stripe", 100, per=60)
    assert app.limiter("stripe").limit == app.limiter("stripe", 100, per=60).limit
    with pytest.raises(DeclarationError, match="'stripe' is already declared with 100 per 60 s"):
        app.limiter("stripe", 10, per=60)
    with pytest.raises(DeclarationError, match="no limit 'other' is declared"):
        app.limiter("other")
    with pytest.raises(DeclarationError, match="needs both values"):
        app.limiter("other", 10)
    with pytest.raises(DeclarationError, match="lets nothing run"):
        app.limiter("other", 0, per=60)
    for odd in (True, 1.5, "5"):
        with pytest.raises(DeclarationError, match=r"the limit 'other' of .* per 60 s is not a whole number of starts"):
            app.limiter("other", odd, per=60)  # type: ignore[arg-type]
        with pytest.raises(DeclarationError, match=r"is not a whole number of starts"):
            app.limit("other", odd, per=60)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"the name of the limiter 'a\{b\}' has a '\{'"):
        app.limiter("a{b}", 1, per=60)


def test_an_unreachable_server_is_reported():
    with Server() as own:
        app = Qd(own.url)
        own.kill()
        with pytest.raises(ConnectionLost):
            app.limiter("stripe", 1, per=60).acquire()


# -- without a server


def test_in_a_fake_locks_are_kept_in_memory_and_limits_let_everything_through(server: Server, redis: Client):
    app = Qd("redis://127.0.0.1:1")
    served: list[int] = []

    def wait(number: int) -> None:
        with app.lock("report", ttl=30):
            served.append(number)

    with app.fake():
        lock = app.lock("report", ttl=30, renew=True)
        with lock:
            assert not app.lock("report", ttl=30).acquire(timeout=0.05)
            thread = threading.Thread(target=wait, args=(1,))
            thread.start()
            lock.extend(60)
            assert lock.owner().pid == os.getpid()  # type: ignore[union-attr]
            assert served == []
        thread.join(10)
        assert served == [1]
        short = app.lock("report", ttl=0.02)
        assert short.acquire()
        assert app.lock("report", ttl=30).acquire(timeout=5)
        assert short.lost
        limiter = app.limiter("stripe", 1, per=60)
        assert limiter.acquire()
        assert limiter.try_acquire()
        assert limiter.left() == 1
    with app.fake():
        assert app.lock("report", ttl=30).acquire(blocking=False)  # each block begins with no lock


def test_inline_jobs_take_locks_in_memory():
    app = Qd("redis://127.0.0.1:1")
    seen: list[object] = []

    @app.job("report", middleware=[RateLimited("stripe", 1, per=60)])
    def report() -> None:
        with app.lock("report", ttl=30) as lock:
            seen.append((current_job().name, lock.locked()))

    with app.inline():
        report.dispatch()
        report.dispatch()
    assert seen == [("report", True), ("report", True)]
