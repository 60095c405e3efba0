"""What must not stop the renewal of locks, nor be told twice or wrongly: listeners, servers that hang, lost answers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import pytest

from qd import Qd, events
from qd.drivers.connections import ThreadConnections
from qd.errors import ConnectionLost, LockError, LockLost
from qd.locks.lease import HeldLock, renewals
from qd.process.shield import shield
from qd.store.locks import Mutex
from tests.support.network import Proxy
from tests.support.redis import Client, in_thread
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("qd:mutex:{*}:fence", "qd:mutex:{*}:wake:*")]

HOW = {
    "extend": lambda lock: lock.extend(),
    "release": lambda lock: lock.release(),
    "with": lambda lock: lock.__exit__(None, None, None),
}


# -- listeners


@pytest.mark.parametrize("how", [*HOW, "renewal"])
def test_a_listener_may_do_with_the_lock_what_it_likes(app: Qd, redis: Client, how: str):
    lock = app.lock("report", ttl=2 if how == "renewal" else 30, renew=how == "renewal")
    heard: list[str] = []

    @app.on(events.LockLost)
    def told(event: events.LockLost) -> None:
        assert shield.depth == 0
        for each in (lock.extend, lock.release):
            with pytest.raises(LockError):
                each()
        heard.append(threading.current_thread().name)

    assert lock.acquire()
    redis.call("DEL", "qd:mutex:{report}")
    if how != "renewal":
        thread = in_daemon(lambda: HOW[how](lock), LockLost)
        eventually(lambda: heard, what="the listener's end")
        thread.join(10)
        assert heard == [thread.name]
    eventually(lambda: heard == ["qd-lock-lost"] if how == "renewal" else True)


def in_daemon(body: Callable[[], object], error: type[Exception]) -> threading.Thread:
    """A thread that hangs fails the test, and does not hold it up."""

    def run() -> None:
        with pytest.raises(error):
            body()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_a_listener_that_takes_long_costs_the_other_locks_nothing(app: Qd, redis: Client):
    heard, enough = threading.Event(), threading.Event()

    @app.on(events.LockLost)
    def told(event: events.LockLost) -> None:
        heard.set()
        enough.wait(30)

    lost, other = app.lock("lost", ttl=4, renew=True), app.lock("other", ttl=4, renew=True)
    assert lost.acquire()
    with other:
        redis.call("DEL", "qd:mutex:{lost}")
        assert heard.wait(20)
        until = other._held.until  # type: ignore[union-attr]
        eventually(lambda: other._held.until > until + 2, what="two renewals of the other")  # type: ignore[union-attr]
        enough.set()


def test_a_loss_that_two_threads_find_at_once_is_told_once(app: Qd, monkeypatch: pytest.MonkeyPatch):
    told: list[events.LockLost] = []
    app.on(events.LockLost)(told.append)
    lock, meet = app.lock("report", ttl=30), threading.Barrier(2)
    assert lock.acquire()
    hold = lock._mine("look")

    def slow(self: HeldLock) -> str:
        with suppress(threading.BrokenBarrierError):  # one comes, and the other must not
            meet.wait(0.2)
        return "its ttl was over"

    monkeypatch.setattr(HeldLock, "_why", slow)
    hold.until = time.monotonic()
    thread = in_thread(hold.look)
    assert hold.look()
    thread.join(10)
    hold.lose()
    with pytest.raises(LockLost):
        lock.release()
    assert [event.token for event in told] == [hold.token]


# -- servers


def pid_of(server: Server) -> int:
    assert server.process is not None
    return server.process.pid


@pytest.fixture
def frozen() -> Iterator[Server]:
    """A server of the test's own, which it may stop by SIGSTOP."""
    with Server() as own:
        yield own
        os.kill(pid_of(own), signal.SIGCONT)


def test_a_server_that_hangs_costs_the_locks_on_another_nothing(app: Qd, frozen: Server):
    far, near = Qd(frozen.url), app.lock("near", ttl=4, renew=True)
    hung = [far.lock(f"far {number}", ttl=600, renew=True) for number in range(5)]
    for lock in hung:
        assert lock.acquire()
    with near:
        os.kill(pid_of(frozen), signal.SIGSTOP)
        for lock in hung:
            hold = lock._mine("renew")
            hold.due = time.monotonic()  # as after 200 s
            renewals(hold).add(hold)
        until = near._held.until  # type: ignore[union-attr]
        eventually(lambda: near._held.until > until + 2, 20, what="renewals of the near one")  # type: ignore[union-attr]
        assert not near.lost
    os.kill(pid_of(frozen), signal.SIGCONT)
    for lock in hung:
        lock.release()
    far.connections.close_all()


def test_a_taking_that_a_slow_server_does_when_nobody_waits_any_more_is_over_soon(frozen: Server):
    app, client = Qd(frozen.url), frozen.client()
    assert app.lock("warm", ttl=1).acquire()
    os.kill(pid_of(frozen), signal.SIGSTOP)
    lock = app.lock("report", ttl=600)
    with pytest.raises(ConnectionLost):
        lock.acquire(timeout=0.2)
    os.kill(pid_of(frozen), signal.SIGCONT)
    eventually(lambda: client.call("EXISTS", "qd:mutex:{report}:fence"), what="the late taking")
    assert client.call("PTTL", "qd:mutex:{report}") <= 1500
    assert app.lock("report", ttl=30).acquire(timeout=10)
    client.close()


def test_a_taking_that_is_heard_of_too_late_is_made_again(app: Qd, redis: Client, monkeypatch: pytest.MonkeyPatch):
    take, taken = Mutex.take, list[int]()

    def slow(self: Mutex, *about, **more):
        answer = take(self, *about, **more)
        if not taken:
            redis.call("DEL", "qd:mutex:{report}")  # as its moment being over
        taken.append(answer.token)
        return answer

    monkeypatch.setattr(Mutex, "take", slow)
    with app.lock("report", ttl=30) as lock:
        assert len(taken) == 2
        assert lock.token == taken[1]
        assert redis.call("PTTL", "qd:mutex:{report}") > 20_000


# -- answers that were lost


@pytest.mark.parametrize("how", ["release", "with"])
def test_a_giving_back_whose_answer_was_lost_is_no_loss(server: Server, redis: Client, how: str):
    with Proxy(server.socket) as proxy:
        app = Qd(proxy.url)
        told: list[events.LockLost] = []
        app.on(events.LockLost)(told.append)
        with app.lock("report", ttl=30):
            pass  # the scripts are known
        lock = app.lock("report", ttl=30)
        assert lock.acquire()
        fault = proxy.on("EVALSHA", "reset")
        HOW[how](lock)
        assert fault.done.is_set()
        assert not lock.lost
        assert not lock.held
        assert told == []
        assert redis.call("EXISTS", "qd:mutex:{report}") == 0
        app.connections.close_all()


@pytest.mark.parametrize("over", [False, True])
def test_a_release_that_is_called_again_after_a_lost_answer_is_no_loss_within_the_ttl(
    app: Qd, redis: Client, over: bool
):
    lock = app.lock("report", ttl=30)
    assert lock.acquire()
    hold = lock._mine("release")
    hold._release_sent = True  # and the answer was lost
    redis.call("DEL", "qd:mutex:{report}")
    if over:
        hold.until = time.monotonic()
        with pytest.raises(LockLost, match=r"its ttl of 30 s was over"):
            lock.release()
    else:
        lock.release()
    assert lock.lost == over


# -- extend


def test_a_renewed_lock_that_is_extended_by_less_than_its_ttl_is_renewed_in_time(app: Qd, redis: Client):
    with app.lock("report", ttl=6, renew=True) as lock:
        lock.extend(2)
        eventually(lambda: redis.call("PTTL", "qd:mutex:{report}") > 2000, what="its renewal")
        assert not lock.lost


def test_connections_that_are_closed_by_two_at_once_are_closed(app: Qd, redis: Client):
    """By close_all, and by the end of the thread that renewed."""
    own, closed = ThreadConnections(app.settings), list[str | None]()

    class Closes:
        def __init__(self, name: str | None) -> None:
            self.name = name

        def close(self) -> None:
            closed.append(self.name)
            own.close()  # as the other thread does just then

    own.queues = {name: cast(Any, Closes(name)) for name in (None, "redis", "far")}
    own.close()
    assert sorted(map(str, closed)) == ["None", "far", "redis"]
