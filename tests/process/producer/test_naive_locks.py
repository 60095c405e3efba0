"""The two ways to unlock that are broken, on a real server and in the bad order of things: both let two in. Ours does not.

The owner is slow: its ttl is over when it comes to unlock, and another has the lock by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from qd import Qd
from qd.errors import LockLost
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

KEY = "naive"
pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("qd:mutex:{*}:fence")]


class Naive:
    """SET NX PX with an owner's token, as everybody takes it."""

    def __init__(self, redis: Client, token: bytes) -> None:
        self.redis, self.token = redis, token

    def take(self, seconds: float) -> bool:
        return bool(self.redis.call("SET", KEY, self.token, "NX", "PX", round(seconds * 1000)) == b"OK")

    def plain_del(self) -> Iterator[None]:
        """Broken: it deletes whatever stands there."""
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


def test_a_plain_del_frees_the_lock_of_another(three: list[Naive]):
    slow, second, third = three
    assert slow.take(0.05)
    expired(slow.redis, KEY)
    assert second.take(60)  # and it works now
    assert not third.take(60)
    list(slow.plain_del())
    assert third.take(60)  # while the second is inside: two hold it


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
