"""Locks are renewed; lost, forked and expired locks are reported, and never let two inside."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from qd import Qd, events
from qd.drivers.connections import ThreadConnections
from qd.errors import ConnectionLost, LockError, LockLost
from qd.locks.lease import HeldLock, renewals
from qd.process.shield import shield
from qd.store.locks import Mutex
from tests.support.network import Proxy
from tests.support.redis import Client, in_thread, wait_for_blocked_waiter
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("clean_redis")


# -- renewal: slow listeners, hanging servers, lost replies


HOW = {
    "extend": lambda lock: lock.extend(),
    "release": lambda lock: lock.release(),
    "with": lambda lock: lock.__exit__(None, None, None),
}


# -- listeners


@pytest.mark.leaves("qd:mutex:{*}:fence", "qd:mutex:{*}:wake:*")
@pytest.mark.parametrize("how", [*HOW, "renewal"])
def test_a_listener_may_do_with_the_lock_what_it_likes(app: Qd, redis: Client, how: str):
    lock = app.lock("report", ttl=2 if how == "renewal" else 30, renew=how == "renewal")
    heard: list[str] = []

    @app.on(events.LockLost)
    def on_lost(event: events.LockLost) -> None:
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


@pytest.mark.leaves("qd:mutex:{*}:fence", "qd:mutex:{*}:wake:*")
def test_a_listener_that_takes_long_costs_the_other_locks_nothing(app: Qd, redis: Client):
    heard, enough = threading.Event(), threading.Event()

    @app.on(events.LockLost)
    def on_lost(event: events.LockLost) -> None:
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


@pytest.mark.leaves("qd:mutex:{*}:fence", "qd:mutex:{*}:wake:*")
def test_a_loss_that_two_threads_find_at_once_is_reported_once(app: Qd, monkeypatch: pytest.MonkeyPatch):
    reported: list[events.LockLost] = []
    app.on(events.LockLost)(reported.append)
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
    assert [event.token for event in reported] == [hold.token]


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


@pytest.mark.leaves("qd:mutex:{*}:fence", "qd:mutex:{*}:wake:*")
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


@pytest.mark.leaves("qd:mutex:{*}:fence", "qd:mutex:{*}:wake:*")
def test_a_lock_that_a_slow_server_grants_after_its_waiter_has_left_is_freed_soon(frozen: Server):
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


@pytest.mark.leaves("qd:mutex:{*}:fence", "qd:mutex:{*}:wake:*")
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


@pytest.mark.leaves("qd:mutex:{*}:fence", "qd:mutex:{*}:wake:*")
@pytest.mark.parametrize("how", ["release", "with"])
def test_a_giving_back_whose_answer_was_lost_is_no_loss(server: Server, redis: Client, how: str):
    with Proxy(server.socket) as proxy:
        app = Qd(proxy.url)
        reported: list[events.LockLost] = []
        app.on(events.LockLost)(reported.append)
        with app.lock("report", ttl=30):
            pass  # the scripts are known
        lock = app.lock("report", ttl=30)
        assert lock.acquire()
        fault = proxy.on("EVALSHA", "reset")
        HOW[how](lock)
        assert fault.done.is_set()
        assert not lock.lost
        assert not lock.held
        assert reported == []
        assert redis.call("EXISTS", "qd:mutex:{report}") == 0
        app.connections.close_all()


@pytest.mark.leaves("qd:mutex:{*}:fence", "qd:mutex:{*}:wake:*")
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


@pytest.mark.leaves("qd:mutex:{*}:fence", "qd:mutex:{*}:wake:*")
def test_a_renewed_lock_that_is_extended_by_less_than_its_ttl_is_renewed_in_time(app: Qd, redis: Client):
    with app.lock("report", ttl=6, renew=True) as lock:
        lock.extend(2)
        eventually(lambda: redis.call("PTTL", "qd:mutex:{report}") > 2000, what="its renewal")
        assert not lock.lost


@pytest.mark.leaves("qd:mutex:{*}:fence", "qd:mutex:{*}:wake:*")
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


# -- lost, forked and orphaned locks


# What stays for a while: the last token; what one was handed, or woken by, that had just left.


# -- lost


@pytest.fixture
def lost(app: Qd) -> list[events.LockLost]:
    reported: list[events.LockLost] = []
    app.on(events.LockLost)(reported.append)
    return reported


@pytest.mark.leaves("qd:mutex:{*}:fence", "qd:mutex:{*}:wake:*")
def test_the_renewal_reports_a_lost_lock(app: Qd, redis: Client, lost: list[events.LockLost], caplog):
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


@pytest.mark.leaves("qd:mutex:{*}:fence", "qd:mutex:{*}:wake:*")
def test_without_renewal_the_next_call_reports_a_lost_lock(app: Qd, redis: Client, lost: list[events.LockLost]):
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


@pytest.mark.leaves("qd:mutex:{*}:fence", "qd:mutex:{*}:wake:*")
def test_an_error_of_the_block_goes_before_a_lost_lock(app: Qd, redis: Client, lost: list[events.LockLost]):
    def block() -> None:
        with app.lock("report", ttl=30):
            redis.call("DEL", "qd:mutex:{report}")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    assert len(lost) == 1


@pytest.mark.leaves("qd:mutex:{*}:fence", "qd:mutex:{*}:wake:*")
def test_a_lock_whose_server_stays_away_is_lost_when_its_ttl_is_over(lost_with: Callable[[Qd], list]):
    with Server() as own:
        app = Qd(own.url)
        reported = lost_with(app)
        lock = app.lock("report", ttl=0.5, renew=True)
        assert lock.acquire()
        own.kill()
        eventually(lambda: reported)
        assert lock.lost
        with pytest.raises(ConnectionLost):
            lock.release()


@pytest.fixture
def lost_with() -> Callable[[Qd], list]:
    def listening(app: Qd) -> list:
        reported: list[events.LockLost] = []
        app.on(events.LockLost)(reported.append)
        return reported

    return listening


@pytest.mark.leaves("qd:mutex:{*}:fence", "qd:mutex:{*}:wake:*")
def test_a_block_that_is_done_does_not_fail_because_the_server_is_away(caplog):
    with Server() as own:
        app = Qd(own.url)
        with app.lock("report", ttl=30):
            own.kill()
        assert "could not be released and stays locked until its ttl expires" in caplog.text


# -- copies


@pytest.mark.leaves("qd:mutex:{*}:fence", "qd:mutex:{*}:wake:*")
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


@pytest.mark.leaves("qd:mutex:{*}:fence", "qd:mutex:{*}:wake:*")
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


@pytest.mark.leaves("qd:mutex:{*}:fence", "qd:mutex:{*}:wake:*")
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


@pytest.mark.leaves("qd:mutex:{*}:fence", "qd:mutex:{*}:wake:*")
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


@pytest.mark.leaves("qd:mutex:{*}:fence", "qd:mutex:{*}:wake:*")
def test_a_server_that_never_answered_is_reported_at_once_and_one_that_stays_unreachable_after_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
):
    with Server() as own:
        app = Qd(own.url)
        lock, other = app.lock("report", ttl=60), app.lock("report", ttl=60)
        assert lock.acquire()
        wait, waits = Mutex.wait, list[Mutex]()

        def left_alone(self: Mutex, *about: Any) -> None:
            waits.append(self)
            own.kill()  # it is in the queue of the lock, and the server has answered
            wait(self, *about)

        monkeypatch.setattr(Mutex, "wait", left_alone)
        with pytest.raises(ConnectionLost):
            other.acquire(timeout=3)
        assert len(waits) == 1
        with pytest.raises(ConnectionLost):
            app.lock("report", ttl=60).acquire()  # would wait without end


# -- two broken ways to unlock, in the worst order of events: both let two owners in, qd's does not
# The owner is slow: its TTL has passed when it unlocks.


KEY = "naive"


class Naive:
    """SET NX PX with an owner's token, as everybody takes it."""

    def __init__(self, redis: Client, token: bytes) -> None:
        self.redis, self.token = redis, token

    def take(self, seconds: float) -> bool:
        return bool(self.redis.call("SET", KEY, self.token, "NX", "PX", round(seconds * 1000)) == b"OK")

    def plain_del(self) -> Iterator[None]:
        """Broken: it deletes the key, whatever its value is."""
        self.redis.call("DEL", KEY)
        yield

    def get_then_del(self) -> Iterator[None]:
        """Broken: it looks first, but what it has seen is old when it deletes. `yield`: here another has its turn."""
        mine = self.redis.call("GET", KEY) == self.token
        yield
        if mine:
            self.redis.call("DEL", KEY)


def expired(redis: Client, key: str) -> None:
    eventually(lambda: redis.call("EXISTS", key) == 0)


@pytest.fixture
def three(server: Server) -> Iterator[list[Naive]]:
    clients = [server.client() for _ in range(3)]
    yield [Naive(client, token) for client, token in zip(clients, (b"a", b"b", b"c"), strict=True)]
    clients[0].call("DEL", KEY)
    for client in clients:
        client.close()


@pytest.mark.leaves("qd:mutex:{*}:fence")
def test_a_plain_del_frees_the_lock_of_another(three: list[Naive]):
    slow, second, third = three
    assert slow.take(0.05)
    expired(slow.redis, KEY)
    assert second.take(60)  # and it works now
    assert not third.take(60)
    list(slow.plain_del())
    assert third.take(60)  # while the second is inside: two hold it


@pytest.mark.leaves("qd:mutex:{*}:fence")
def test_a_get_and_then_a_del_frees_the_lock_of_another(three: list[Naive]):
    slow, second, third = three
    assert slow.take(60)
    unlock = slow.get_then_del()
    next(unlock)  # it has looked: the lock is its own. Now it is slow, until its ttl is over
    slow.redis.call("PEXPIRE", KEY, 1)
    expired(slow.redis, KEY)
    assert second.take(60)
    assert not third.take(60)
    list(unlock)
    assert third.take(60)  # two hold it


@pytest.mark.leaves("qd:mutex:{*}:fence")
@pytest.mark.parametrize("unlock", ["release", "extend", "with"])
def test_ours_frees_nothing_that_is_anothers(server: Server, redis: Client, unlock: str):
    app = Qd(server.url)
    slow, second, third = (app.lock("ours", ttl=ttl) for ttl in (0.05, 60, 60))
    assert slow.acquire()
    expired(redis, "qd:mutex:{ours}")
    assert second.acquire(blocking=False)
    late: dict[str, Callable[[], object]] = {
        "release": slow.release,
        "extend": slow.extend,
        "with": lambda: slow.__exit__(None, None, None),
    }
    with pytest.raises(LockLost):
        late[unlock]()
    assert not third.acquire(blocking=False)
    assert second.held
    second.release()
    app.connections.close_all()
