"""app.lock on a real server: never two inside, in order, through kills and alarms."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qd import Lock, LockError, LockTaken, Qd
from qd.drivers.connections import open_queue
from qd.locks.lock import MOST
from tests.support.payloads import push
from tests.support.project import GENTLE, MakeProject
from tests.support.redis import WAIT_LIST, Client, in_thread, wait_for_waiters
from tests.support.servers.redis import Server
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

# What stays for a while: the last token; what one was handed, or woken by, that had just left.
pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("qd:mutex:{*}:fence", "qd:mutex:{*}:wake:*")]


# -- one at a time


def test_of_eight_processes_never_two_are_inside_and_their_tokens_grow(program, tmp_path: Path):
    code = """
for _ in range(25):
    with app.lock("report", ttl=30) as lock:
        os.close(os.open("inside", os.O_CREAT | os.O_EXCL))  # raises when another is inside
        with open("tokens", "a") as file:
            file.write(f"{lock.token}\\n")
        os.unlink("inside")
"""
    started = [program(code) for _ in range(8)]
    for each in started:
        assert each.process.wait(60) == 0, each.all_lines
    tokens = [int(line) for line in (tmp_path / "tokens").read_text().splitlines()]
    assert len(tokens) == 200
    assert tokens == sorted(set(tokens))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter asks again after twenty seconds and counts as present for a minute, even if this process is suspended."""
    monkeypatch.setattr("qd.locks.lock.THERE", 60.0)
    monkeypatch.setattr("qd.store.locks.THERE", 60.0)


@pytest.mark.usefixtures("patient")
def test_waiters_get_the_lock_in_the_order_in_which_they_came(app: Qd, redis: Client):
    served: list[int] = []

    def wait(number: int) -> None:
        with app.lock("report", ttl=30):
            served.append(number)

    with app.lock("report", ttl=30):
        threads = []
        for number in range(6):
            threads.append(in_thread(lambda number=number: wait(number)))  # type: ignore[misc]
            wait_for_waiters(redis, number + 1)
        assert not app.lock("report", ttl=30).acquire(blocking=False)
    for thread in threads:
        thread.join(20)
    assert served == [0, 1, 2, 3, 4, 5]


@pytest.mark.usefixtures("patient")
def test_a_released_lock_goes_to_the_first_waiter_at_once_and_to_no_later_caller(app: Qd, redis: Client):
    """It does not wait until the waiter asks by itself."""
    lock = app.lock("report", ttl=30)
    assert lock.acquire()
    got = threading.Event()
    thread = in_thread(lambda: got.set() if app.lock("report", ttl=30).acquire() else None)
    wait_for_waiters(redis, 1)
    lock.release()
    assert got.wait(10)
    assert not app.lock("report", ttl=30).acquire(blocking=False)
    thread.join(10)
    redis.call("DEL", "qd:mutex:{report}")


def test_a_wait_ends_with_its_timeout_and_leaves_the_line(app: Qd, redis: Client):
    with app.lock("report", ttl=30) as lock:
        other = app.lock("report", ttl=30, timeout=0.2)
        assert not other.acquire(timeout=0.2)
        with pytest.raises(LockTaken, match=rf"'report' was not free within 0.2 s: process {os.getpid()} on "), other:
            pass
        assert redis.call("ZCARD", WAIT_LIST) == 0
        assert lock.owner() == app.lock("report", ttl=1).owner()
        assert lock.owner().pid == os.getpid()  # type: ignore[union-attr]
        assert lock.held
        assert not other.held
        assert not other.lost
        with pytest.raises(LockError, match=r"never taken"):
            _ = other.token
    assert not lock.held
    assert not lock.locked()


def test_a_lock_object_is_acquired_once_at_a_time(app: Qd):
    lock = app.lock("report", ttl=30)
    with pytest.raises(LockError, match=r"not held by this object: release\(\) comes after acquire\(\)"):
        lock.release()
    with lock:
        first = lock.token
        with pytest.raises(LockError, match="held already by this object"):
            lock.acquire()
    with lock:
        assert lock.token > first


# -- the dead


def test_the_lock_of_a_killed_owner_goes_to_the_next_when_its_ttl_is_over(app: Qd, program):
    owner = program(
        "lock = app.lock('report', ttl=3, renew=True)\nlock.acquire()\nprint('in', flush=True)\ntime.sleep(60)"
    )
    eventually(lambda: owner.output == ["in"], 20)
    mine = app.lock("report", ttl=30)
    assert not mine.acquire(timeout=3.4)  # it is renewed
    os.kill(owner.pid, signal.SIGKILL)
    assert mine.acquire(timeout=10)
    mine.release()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_waiter_that_dies_or_is_stopped_delays_no_other_waiter(app: Qd, redis: Client, program, how: signal.Signals):
    lock = app.lock("report", ttl=60)
    assert lock.acquire()
    dead = program("app.lock('report', ttl=60).acquire()")
    wait_for_waiters(redis, 1)
    got = threading.Event()
    thread = in_thread(lambda: got.set() if app.lock("report", ttl=60).acquire() else None)
    wait_for_waiters(redis, 2)
    os.kill(dead.pid, how)
    lock.release()
    assert got.wait(20)  # and not after the 60 s of the dead one's ttl
    thread.join(10)
    redis.call("DEL", "qd:mutex:{report}")


# -- long work


def test_a_lock_is_renewed_while_its_block_runs(app: Qd):
    with app.lock("report", ttl=3, renew=True) as lock:
        assert not app.lock("report", ttl=1).acquire(timeout=4)
        assert lock.held
        assert not lock.lost
    assert not lock.locked()
    with app.lock("report", ttl=600, renew=True):
        assert "qd-locks" in [thread.name for thread in threading.enumerate()]
    eventually(lambda: "qd-locks" not in [thread.name for thread in threading.enumerate()])


def test_extend_holds_it_longer_and_renewal_makes_it_no_shorter(app: Qd, redis: Client):
    with app.lock("report", ttl=3, renew=True) as lock:
        lock.extend(60)
        assert not app.lock("report", ttl=1).acquire(timeout=1.3)  # longer than until it would have been renewed
        assert redis.call("PTTL", "qd:mutex:{report}") > 40_000
    with app.lock("report", ttl=20) as lock:
        lock.extend()
        assert lock.held


# -- in a worker

RIGHTS = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "acl.md"
WAITING = (
    JOBS
    + """
import asyncio

@app.job("waits", tries=1, timeout=1)
def waits() -> None:
    note("waits")
    try:
        with app.lock("report", ttl=60):
            note("got it")
    except BaseException as error:
        note("ended", type(error).__name__)
        raise

@app.job("awaits", tries=1, timeout=1)
async def awaits() -> None:
    note("waits")
    try:
        async with app.lock("report", ttl=60):
            note("got it")
    except asyncio.CancelledError:
        note("ended", "JobTimeout")
        raise
"""
)


@pytest.mark.leaves("queues:default:failed", "queues:default:failed_at")
@pytest.mark.parametrize("job", ["waits", "awaits"])
def test_a_timeout_ends_a_wait_in_a_job_and_leaves_the_line(project: MakeProject, app: Qd, redis: Client, job: str):
    shop = project(WAITING)
    shop.program = GENTLE
    witness = Witness(shop)
    with app.lock("report", ttl=60):
        push(redis, job)
        work = shop.work("-w", "1")
        assert witness.wait("ended") == ["ended JobTimeout"]
        eventually(lambda: redis.call("ZCARD", WAIT_LIST) == 0, 20)
        work.wait_line("job.failed", 20)
        assert not work.matches("killed")
    work.stop()
    assert witness.starting("got") == []


# -- coroutines


@pytest.fixture
def threads(app: Qd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Coroutines use threads, as on a connection without asyncio."""
    monkeypatch.setattr(app.connections, "make", lambda settings, name: open_queue(settings, name))


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("way", ["the loop's connection", "threads"])
def test_async_with_waits_without_blocking_the_loop(app: Qd, redis: Client, request: pytest.FixtureRequest, way: str):
    """More tasks wait than the loop has threads to share; the one that releases the lock still gets one."""
    served: list[int] = []
    if way == "threads":
        request.getfixturevalue("threads")

    async def wait(number: int) -> None:
        async with app.lock("report", ttl=30) as lock:
            await lock.aextend(60)
            assert await lock.aowner() is not None
            served.append(number)

    async def main() -> None:
        lock = app.lock("report", ttl=30)
        assert await lock.aacquire()
        tasks = [asyncio.create_task(wait(number)) for number in range(40)]
        while redis.call("ZCARD", WAIT_LIST) < MOST:
            await asyncio.sleep(0.01)
        assert not await app.lock("report", ttl=30).aacquire(timeout=0.1)  # it does not come to the line
        gone = asyncio.create_task(app.lock("report", ttl=30).aacquire())
        await asyncio.sleep(0.05)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert redis.call("ZCARD", WAIT_LIST) == MOST
        waits = [each for each in threading.enumerate() if each.name.startswith("qd-lock-wait")]
        assert len(waits) == (MOST if way == "threads" else 0)
        async with app.lock("another", ttl=30) as other:  # is not kept from anybody by them
            task = asyncio.create_task(app.lock("another", ttl=30).aacquire(timeout=20))
            while not redis.call("ZCARD", "qd:mutex:{another}:line"):
                await asyncio.sleep(0.01)
            await other.arelease()
            assert await task
        redis.call("DEL", "qd:mutex:{another}")
        assert not await app.lock("report", ttl=30).aacquire(blocking=False)
        await lock.arelease()
        await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(main(), 30))
    assert sorted(served) == list(range(40))
    assert not app.lock("report", ttl=1).locked()


@pytest.mark.parametrize("way", ["the loop's connection", "threads"])
def test_a_cancelled_task_leaves_the_line_and_gives_back_what_it_was_handed(
    app: Qd, redis: Client, request: pytest.FixtureRequest, way: str
):
    if way == "threads":
        request.getfixturevalue("threads")

    async def main() -> None:
        lock = app.lock("report", ttl=30)
        assert await lock.aacquire()
        waiting = asyncio.create_task(app.lock("report", ttl=30).aacquire())
        while redis.call("ZCARD", WAIT_LIST) < 1:
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert redis.call("ZCARD", WAIT_LIST) == 0
        await lock.arelease()
        for _ in range(30):  # cancelled at any point of a taking that succeeds
            task = asyncio.create_task(app.lock("report", ttl=30).aacquire())
            await asyncio.sleep(0.0002 * (_ % 10))
            task.cancel()
            if (await asyncio.gather(task, return_exceptions=True))[0] is not True:
                assert not app.lock("report", ttl=1).locked()
            else:
                redis.call("DEL", "qd:mutex:{report}")

    asyncio.run(main())


# -- refused


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda app: app.lock("", ttl=30), "the name of a lock is ''"),
        (lambda app: app.lock(7, ttl=30), "the name of a lock is 7: give a text"),
        (lambda app: app.lock("a{b}", ttl=30), r"has a '\{': give printable characters without braces"),
        (lambda app: app.lock("a\nb", ttl=30), r"has a '\\n'"),
        (lambda app: app.lock("x" * 201, ttl=30), "has 201 characters: give 200 at most"),
        (lambda app: app.lock("a", ttl=None), r'ttl=None: without one .* app.lock\("a", ttl=30, renew=True\)'),
        (lambda app: app.lock("a", ttl=0), "ttl=0: without one"),
        (lambda app: app.lock("a", ttl=-1), "the lock 'a': ttl: -1 is not a duration"),
        (lambda app: app.lock("a", ttl="30s"), "'30s' is text: write 30"),
        (lambda app: app.lock("a", ttl=1e-9), "less than a millisecond"),
        (lambda app: app.lock("a", ttl=1, timeout=-1), "the lock 'a': timeout: -1"),
        (lambda app: app.lock("a", ttl=1).acquire(timeout="x"), "the lock 'a': timeout: 'x'"),
    ],
)
def test_what_means_nothing_is_refused_in_one_line(app: Qd, make: Callable[[Qd], Lock], message: str):
    with pytest.raises(TypeError, match=message) as caught:
        make(app)
    assert "\n" not in str(caught.value)


@pytest.fixture
def rights(redis: Client) -> Iterator[list[str]]:
    """Those that docs/how-to/acl.md names for locks, given to the user `narrow`."""
    words = RIGHTS.read_text().split("(locks.md) | `")[1].split("`")[0].split()
    redis.call("ACL", "SETUSER", "narrow", "reset", "on", ">pw", "-@all", *words)
    yield words
    redis.call("ACL", "DELUSER", "narrow")


@pytest.mark.leaves("qd:rate:*")
def test_the_rights_that_the_page_names_are_enough(server: Server, redis: Client, rights: list[str]):
    app = Qd(f"unix://narrow:pw@{server.socket}")
    with app.lock("report", ttl=3, renew=True) as lock:
        lock.extend()
        assert not app.lock("report", ttl=1).acquire(timeout=1.3)
        thread = in_thread(lambda: app.lock("report", ttl=0.01).acquire())
        wait_for_waiters(redis, 1)
    thread.join(10)
    limiter = app.limiter("stripe", 1, per=2)
    assert [limiter.acquire(), limiter.acquire(20)] == [True, True]
    assert limiter.left() <= 1
    worker = next(line.split() for line in RIGHTS.read_text().splitlines() if line.startswith("ACL SETUSER qd-worker"))
    assert {right for right in rights if right.startswith("+")} <= {*worker, "+set", "+mget"}
    app.connections.close_all()


def test_a_lock_of_another_connection(redis: Client, server: Server, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qd.toml").write_text(
        f'[connections.redis]\nurl = "{server.url}"\n[connections.far]\nurl = "{server.url}"\nprefix = "far_"\n'
    )
    app = Qd()
    with app.lock("report", ttl=30), app.lock("report", ttl=30, connection="far"):
        assert redis.call("EXISTS", "qd:mutex:{report}", "far_qd:mutex:{report}") == 2
    redis.call("DEL", "far_qd:mutex:{report}:fence")
    app.connections.close_all()
