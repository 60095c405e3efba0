"""Hand-made delay queues, and what each of them loses or doubles: the facts of docs/explanation/delay-queues.md.

Each consumer below is the usual one, on a real server. The tests show its mistake; the last ones show the same situation
with qd.
"""

from __future__ import annotations

import os
import select
import signal
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from qd.config.settings import ConnectionSettings
from qd.drivers.base import ClientIdentity
from qd.drivers.redis.queue import RedisQueue
from qd.drivers.types import Outgoing, Reserved
from qd.payload.format import key_of, read
from tests.contract.keyspace.test_queue import job
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("clean_redis")
DUE, NEVER = 1, 2**40


def killed(body: Callable[[], None]) -> None:
    """Run `body` in a forked process, which kills itself in it."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# -- watching keys expire


class Watcher:
    """PSUBSCRIBE to the expiry of keys: SET order:42 "" PX 1800000, and wait for the event."""

    def __init__(self, server: Server) -> None:
        self.client = server.client()
        self.client.call("PSUBSCRIBE", "__keyevent@0__:expired")

    def hears(self, seconds: float) -> bytes | None:
        sock = self.client._sock
        assert sock is not None
        if not select.select([sock], [], [], seconds)[0]:
            return None
        name: bytes = self.client._reply()[3]
        return name


@pytest.fixture
def events(redis: Client) -> Iterator[None]:
    redis.call("CONFIG", "SET", "notify-keyspace-events", "Ex")
    yield
    redis.call("CONFIG", "SET", "notify-keyspace-events", "")


@pytest.mark.usefixtures("events")
def test_an_expiry_without_a_subscriber_is_lost(server: Server, redis: Client):
    """A deploy, a restart, a broken connection: Redis publishes the event once, to the current subscribers."""
    redis.call("SET", "order:42", "", "PX", 20)
    eventually(lambda: redis.call("EXISTS", "order:42") == 0, 20)
    watcher = Watcher(server)
    redis.call("SET", "order:43", "", "PX", 1)
    assert watcher.hears(20) == b"order:43"  # it receives new events
    assert watcher.hears(0.05) is None  # and never the one of order:42
    watcher.client.close()


@pytest.mark.usefixtures("events")
def test_every_consumer_receives_an_expiry(server: Server, redis: Client):
    watchers = [Watcher(server), Watcher(server)]
    redis.call("SET", "order:42", "", "PX", 1)
    assert [watcher.hears(20) for watcher in watchers] == [b"order:42", b"order:42"]
    for watcher in watchers:
        watcher.client.close()


# -- a sorted set and a loop


def test_read_then_run_then_remove_runs_twice(server: Server, redis: Client):
    """Two consumers read before either has removed the member."""
    redis.call("ZADD", "delay", DUE, "order:42")
    consumers = [server.client(), server.client()]
    seen = [consumer.call("ZRANGEBYSCORE", "delay", "-inf", DUE) for consumer in consumers]
    ran = [member for members in seen for member in members]
    for consumer in consumers:
        consumer.call("ZREM", "delay", "order:42")
        consumer.close()
    assert ran == [b"order:42", b"order:42"]


def test_remove_then_run_loses_the_job_of_a_killed_consumer(server: Server, redis: Client):
    """ZREM decides which consumer runs it; from then on no other process knows of it."""
    redis.call("ZADD", "delay", DUE, "order:42")

    def consume() -> None:
        with server.client() as client:
            (member,) = client.call("ZRANGEBYSCORE", "delay", "-inf", DUE)
            if client.call("ZREM", "delay", member) == 1:
                die()  # an OOM killer, a deploy, a power cut: before the work is done

    killed(consume)
    assert redis.call("EXISTS", "delay") == 0


def test_remove_then_push_loses_the_job_between_two_commands(server: Server, redis: Client):
    """Moving a delayed job into a list, without a script."""
    redis.call("ZADD", "delay", DUE, "order:42")

    def move() -> None:
        with server.client() as client:
            (member,) = client.call("ZRANGEBYSCORE", "delay", "-inf", DUE)
            client.call("ZREM", "delay", member)
            die()
            client.call("RPUSH", "ready", member)

    killed(move)
    assert redis.keys() == []


def test_a_cancel_by_zrem_is_too_late_for_a_moved_job(redis: Client):
    """ZREM returns 0, and the job runs anyway."""
    redis.call("ZADD", "delay", DUE, "order:42")
    redis.call("RPUSH", "ready", "order:42")  # the mover has begun
    redis.call("ZREM", "delay", "order:42")
    assert redis.call("ZREM", "delay", "order:42") == 0
    assert redis.call("LPOP", "ready") == b"order:42"


def test_a_job_dispatched_again_with_other_arguments_waits_twice(redis: Client):
    """Members are compared as text: one different byte makes another job."""
    redis.call("ZADD", "delay", NEVER, '{"order":42,"at":1}')
    redis.call("ZADD", "delay", NEVER, '{"order":42,"at":2}')
    assert redis.call("ZCARD", "delay") == 2
    redis.call("DEL", "delay")


# -- a time wheel


class Wheel:
    """Sixty slots of one second each; a tick reads the current slot."""

    def __init__(self, redis: Client) -> None:
        self.redis = redis

    def add(self, name: str, now: int, delay: int) -> None:
        self.redis.call("RPUSH", f"wheel:{(now + delay) % 60}", name)

    def tick(self, now: int) -> list[bytes]:
        slot = f"wheel:{now % 60}"
        found: list[bytes] = self.redis.call("LRANGE", slot, 0, -1)
        self.redis.call("DEL", slot)
        return found


def test_a_wheel_skips_the_slots_of_a_pause(redis: Client):
    """The wheel stalled for two seconds: jobs due meanwhile run a round later, or never."""
    wheel = Wheel(redis)
    wheel.add("order:42", now=100, delay=5)
    assert [name for now in (103, 104, 107, 108) for name in wheel.tick(now)] == []
    assert redis.call("LLEN", "wheel:45") == 1
    redis.call("DEL", "wheel:45")


def test_a_wheel_in_memory_is_lost_with_its_process(redis: Client):
    def wheel() -> None:
        slots: dict[int, list[str]] = {5: ["order:42"]}
        assert slots
        die()

    killed(wheel)
    assert redis.keys() == []  # order:42 is lost


# -- dead letters: messages with a time to live that expire from one queue into the next


def test_a_message_with_a_short_delay_waits_behind_one_with_a_long_delay(redis: Client):
    """Only the head of such a queue can expire, since a queue keeps its order."""
    waiting = deque([("in an hour", 3600), ("in a second", 1)])

    def fallen(now: int) -> list[str]:
        found = []
        while waiting and waiting[0][1] <= now:
            found.append(waiting.popleft()[0])
        return found

    assert fallen(now=60) == []
    assert fallen(now=3600) == ["in an hour", "in a second"]


# -- the same situations with qd


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[[int], RedisQueue]]:
    opened: list[RedisQueue] = []

    def make(slot: int) -> RedisQueue:
        settings = ConnectionSettings(name="redis", url=server.url, retry_after=30.0)
        opened.append(RedisQueue(settings, ClientIdentity("Tok3nTok3n", slot)))
        return opened[-1]

    yield make
    opened[0].clear("a")
    for queue in opened:
        queue.close()


def test_one_of_two_workers_reserves_the_job(connect):
    """Reading and reserving are one step on the server."""
    one, two = connect(1), connect(2)
    one.later("a", job(42), 0.001)
    found: list[Reserved] = []

    def taken() -> bool:
        found.extend(held for held in [one.turn(None, ["a"]).reserved] if held is not None)
        return bool(found)

    eventually(taken, 20)
    assert two.turn(None, ["a"]).reserved is None
    assert one.ack(found[0])


@pytest.mark.leaves("queues:a:owners")
def test_the_job_of_a_killed_worker_stays_reserved(connect, server: Server, redis: Client):
    queue = connect(1)
    queue.push("a", job(42))

    def work() -> None:
        settings = ConnectionSettings(name="redis", url=server.url, retry_after=30.0)
        assert RedisQueue(settings, ClientIdentity("Tok3nTok3n", 2)).turn(None, ["a"]).reserved is not None
        die()

    killed(work)
    (member,) = redis.call("ZRANGE", "queues:a:reserved", 0, -1)
    assert read(member).id == "id42"  # its keeper, or the end of its lease, requeues it
    redis.call("DEL", "queues:a:reserved")


def test_a_cancel_works_until_a_worker_reserves_the_job(connect, redis: Client):
    queue, name = connect(1), "shop.remind:order:42"
    key = key_of("id42", name)
    queue.post([Outgoing("a", job(42, qd={"key": key}), 60.0, key=key)])
    (member,) = redis.call("ZRANGE", "queues:a:delayed", 0, -1)
    redis.call("RPUSH", "queues:a", member)  # some program moves it
    redis.call("ZREM", "queues:a:delayed", member)
    assert queue.cancel_keyed("a", name) is True
    assert queue.turn(None, ["a"]).reserved is None
