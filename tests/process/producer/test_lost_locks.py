"""Locks that are lost, forked, or left by their server: told, and held by one at a time all the same."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qd import LockError, Qd, events
from qd.errors import ConnectionLost, LockLost
from qd.store.locks import Mutex
from tests.support.redis import Client, in_thread, wait_for_blocked_waiter
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

# What stays for a while: the last token; what one was handed, or woken by, that had just left.
pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("qd:mutex:{*}:fence", "qd:mutex:{*}:wake:*")]


# -- lost


@pytest.fixture
def lost(app: Qd) -> list[events.LockLost]:
    told: list[events.LockLost] = []
    app.on(events.LockLost)(told.append)
    return told


def test_a_lost_lock_is_told_by_the_renewal(app: Qd, redis: Client, lost: list[events.LockLost], caplog):
    lock = app.lock("report", ttl=4, renew=True)

    def block() -> None:
        with lock:
            redis.call("FLUSHALL")
            eventually(lambda: lost)
            assert lock.lost
            assert not lock.held
            assert lost == [events.LockLost("report", lock.token)]

    with pytest.raises(LockLost, match="'report' was lost while it was held: it was deleted"):
        block()
    assert lost == [events.LockLost("report", lock.token)]
    assert [record.name for record in caplog.records] == ["qd.locks"]
    assert "the lock 'report' was lost (token " in caplog.text


def test_a_lost_lock_without_renewal_is_told_by_what_comes_next(app: Qd, redis: Client, lost: list[events.LockLost]):
    late = app.lock("report", ttl=0.05)
    assert late.acquire()
    eventually(lambda: redis.call("EXISTS", "qd:mutex:{report}") == 0)
    with app.lock("report", ttl=30) as other:
        with pytest.raises(LockLost, match=r"its ttl of 0.05 s was over"):
            late.extend()
        with pytest.raises(LockLost):
            late.release()
        assert other.held
        assert other.locked()
        assert late.lost
    assert [event.token for event in lost] == [late.token]
    assert late.token < other.token


def test_an_error_of_the_block_goes_before_a_lost_lock(app: Qd, redis: Client, lost: list[events.LockLost]):
    def block() -> None:
        with app.lock("report", ttl=30):
            redis.call("DEL", "qd:mutex:{report}")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    assert len(lost) == 1


def test_a_lock_whose_server_stays_away_is_lost_when_its_ttl_is_over(lost_with: Callable[[Qd], list]):
    with Server() as own:
        app = Qd(own.url)
        told = lost_with(app)
        lock = app.lock("report", ttl=0.5, renew=True)
        assert lock.acquire()
        own.kill()
        eventually(lambda: told)
        assert lock.lost
        with pytest.raises(ConnectionLost):
            lock.release()


@pytest.fixture
def lost_with() -> Callable[[Qd], list]:
    def listening(app: Qd) -> list:
        told: list[events.LockLost] = []
        app.on(events.LockLost)(told.append)
        return told

    return listening


def test_a_block_that_is_done_does_not_fail_because_the_server_is_away(caplog):
    with Server() as own:
        app = Qd(own.url)
        with app.lock("report", ttl=30):
            own.kill()
        assert "could not be released and stays locked until its ttl expires" in caplog.text


# -- copies


def test_a_forked_copy_neither_renews_nor_releases(app: Qd):
    with app.lock("report", ttl=3, renew=True) as lock:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with pytest.raises(LockError, match=rf"held by process {os.getppid()}, of which this one"):
                    lock.release()
                held = lock.held
                lock.__exit__(None, None, None)
                names = [thread.name for thread in threading.enumerate()]
                code = 0 if not held and not lock.lost and "qd-locks" not in names else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert lock.held
        assert not app.lock("report", ttl=1).acquire(timeout=3.4)


def test_a_copy_that_outlives_its_owner_does_not_keep_the_lock(app: Qd, program):
    owner = program("""
lock = app.lock("report", ttl=0.6, renew=True)
lock.acquire()
if os.fork() == 0:
    print("copy", flush=True)
    time.sleep(60)
time.sleep(60)
""")
    eventually(lambda: owner.output == ["copy"], 20)
    os.kill(owner.pid, signal.SIGKILL)
    lock = app.lock("report", ttl=30)
    assert lock.acquire(timeout=10)
    lock.release()


# -- outages


def test_a_waiter_outlives_a_restart_of_the_server(tmp_path: Path):
    with Server("--appendonly", "yes", "--appendfsync", "always") as own:
        app = Qd(own.url)
        lock = app.lock("report", ttl=60)
        assert lock.acquire()
        got: list[bool] = []
        thread = in_thread(lambda: got.append(app.lock("report", ttl=60).acquire(timeout=30)))
        wait_for_blocked_waiter(own)
        own.kill()
        own.start()
        wait_for_blocked_waiter(own)
        lock.release()
        thread.join(20)
        assert got == [True]


def test_a_server_that_lost_the_lock_gives_it_to_the_next_and_tells_its_owner():
    with Server() as own:
        app = Qd(own.url)
        lock = app.lock("report", ttl=60)
        assert lock.acquire()
        other = app.lock("report", ttl=60)
        thread = in_thread(lambda: other.acquire(timeout=30))
        wait_for_blocked_waiter(own)
        own.kill()
        own.start()
        thread.join(20)
        assert other.held
        assert other.token > lock.token
        with pytest.raises(LockLost):
            lock.extend()
        assert other.locked()


def test_a_server_that_is_not_there_is_told_at_once_and_one_that_stays_away_after_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
):
    with Server() as own:
        app = Qd(own.url)
        lock, other = app.lock("report", ttl=60), app.lock("report", ttl=60)
        assert lock.acquire()
        wait, waits = Mutex.wait, list[Mutex]()

        def left_alone(self: Mutex, *about: Any) -> None:
            waits.append(self)
            own.kill()  # it stands in line, and has heard of the server
            wait(self, *about)

        monkeypatch.setattr(Mutex, "wait", left_alone)
        with pytest.raises(ConnectionLost):
            other.acquire(timeout=3)
        assert len(waits) == 1
        with pytest.raises(ConnectionLost):
            app.lock("report", ttl=60).acquire()  # would wait without end
