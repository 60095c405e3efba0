"""Effects of an answer: applied in the same step, once, and only for the holder of the lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from qd.config.settings import ConnectionSettings
from qd.drivers.base import ClientIdentity
from qd.drivers.redis.queue import RedisQueue
from qd.drivers.types import Effect, Free, Push, Released, Reserved
from qd.errors import ConnectionLost, ServerRefused
from qd.log import Log
from qd.worker.connection import HeldJob, WorkerConnection
from qd.worker.queues import Rota
from tests.contract.conftest import ONE
from tests.contract.keyspace.test_queue import FAILED, job, steal, take
from tests.support.network import Proxy
from tests.support.redis import Seen
from tests.support.servers.redis import Server

one_place = pytest.mark.parametrize("place", ONE, indirect=True)
pytestmark = pytest.mark.leaves(*FAILED)
NEXT = job(7)


def answer(way: str, queue: RedisQueue, held: Reserved, *effects: Effect) -> bool:
    ways: dict[str, Callable[[], bool]] = {
        "ack": lambda: queue.ack(held, effects),
        "release": lambda: queue.release(held, Released(job(1), 60), effects),
        "bury": lambda: queue.bury(held, b"{}", job(1), effects),
    }
    return ways[way]()


every_way = pytest.mark.parametrize("way", ["ack", "release", "bury"])


@pytest.fixture
def held(queue: RedisQueue, seen: Seen) -> Reserved:
    queue.push("a", job(1))
    return take(queue)


def lock(seen: Seen, owner: str) -> str:
    key = f"{seen.prefix}qd:unique:n"
    seen.client.call("SET", key, owner)
    return key


def keyed(seen: Seen, *fields: Any) -> str:
    key = seen.key("a", "keyed")
    seen.client.call("HSET", key, *fields)
    return key


# -- each of them


@every_way
def test_a_job_is_pushed_with_the_answer(queue, seen, held, way):
    assert answer(way, queue, held, Push("b", NEXT))
    assert (seen.ready("b"), seen.tokens("b"), seen.reserved("a"), seen.owners("a")) == ([NEXT], 1, {}, {})


@every_way
@pytest.mark.parametrize(("delay", "tokens"), [(0.5, 1), (60, 0)])
def test_a_job_pushed_with_a_delay_is_due_after_it(queue, seen, held, way, delay, tokens):
    before = seen.now()
    assert answer(way, queue, held, Push("b", NEXT, delay))
    assert before + delay <= seen.delayed("b")[NEXT] <= seen.now() + delay + 0.001
    assert (seen.ready("b"), seen.tokens("b")) == ([], tokens)


@every_way
def test_a_lock_is_freed_by_its_owner_only(queue, seen, held, way):
    key = lock(seen, "me")
    assert answer(way, queue, held, Free("n", "me"))
    assert seen.client.call("GET", key) is None


@every_way
def test_a_lock_held_by_another_owner_stays(queue, seen, held, way):
    key = lock(seen, "another")
    assert answer(way, queue, held, Free("n", "me"))
    assert seen.client.call("GET", key) == b"another"
    seen.client.call("DEL", key)


# -- all or nothing


@every_way
def test_all_effects_of_an_answer_are_applied(queue, seen, held, way):
    key = lock(seen, "me")
    assert answer(way, queue, held, Push("b", NEXT), Free("n", "me"), Push("c", job(8)), Push("b", job(9)))
    assert (seen.ready("b"), seen.ready("c"), seen.client.call("GET", key)) == ([NEXT, job(9)], [job(8)], None)


@every_way
def test_no_effect_is_applied_if_the_lease_was_lost(queue, seen, held, way):
    key = lock(seen, "me")
    steal(seen, held)
    assert answer(way, queue, held, Push("b", NEXT), Push("b", job(8), 60), Free("n", "me")) is False
    assert seen.every_key() == [key]
    seen.client.call("DEL", key)


@one_place
@every_way
def test_a_rejected_effect_rejects_the_whole_answer(queue, seen, held, way):
    """Otherwise each retry would apply the preceding effects again."""
    in_the_way = seen.key("c")
    seen.client.call("SET", in_the_way, "no list")
    before = seen.dump()
    for _ in range(2):
        with pytest.raises(ServerRefused, match="WRONGTYPE"):
            answer(way, queue, held, Push("b", NEXT), Push("c", job(8)))
        assert seen.dump() == before
    seen.client.call("DEL", in_the_way)
    assert answer(way, queue, held, Push("b", NEXT), Push("c", job(8)))
    assert (seen.ready("b"), seen.ready("c")) == ([NEXT], [job(8)])


# -- a lost reply


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.socket) as made:
        yield made


@pytest.fixture
def broken(proxy: Proxy) -> Iterator[RedisQueue]:
    """A worker's connection through the proxy; the server has loaded the scripts."""
    made = RedisQueue(
        ConnectionSettings(name="redis", url=proxy.url, retry_after=30.0), ClientIdentity("Tok3nTok3n", 2)
    )
    for way in ("ack", "release", "bury"):
        made.push("c", job(0))
        answer(way, made, take(made, "c"))
    made.clear("c")
    yield made
    made.close()


@one_place
@every_way
@pytest.mark.parametrize("byte", [0, 2])
def test_an_answer_with_a_lost_reply_applies_its_effects_once(broken, proxy, seen, way, byte):
    connection = WorkerConnection(broken, Rota(("a",)), Log("worker", write=lambda line: None), lambda seconds: None)
    broken.push("a", job(1))
    held, tries = take(broken), list[Reserved]()

    def then_answer(job: Reserved) -> bool:
        tries.append(job)
        return answer(way, broken, job, Push("b", NEXT))

    proxy.cut(byte=byte)
    assert connection.until_answered(HeldJob(held), then_answer) is None
    assert (len(tries), seen.ready("b"), seen.reserved("a"), seen.owners("a")) == (1, [NEXT], {}, {})
    assert answer(way, broken, held, Push("b", NEXT)) is False  # a repeated answer adds nothing
    assert seen.ready("b") == [NEXT]


@one_place
@every_way
def test_an_answer_that_never_arrived_is_repeated_with_its_effects(broken, proxy, seen, way):
    connection = WorkerConnection(
        broken, Rota(("a",)), Log("worker", write=lambda line: None), lambda seconds: proxy.heal()
    )
    broken.push("a", job(1))
    held = take(broken)
    proxy.refuse()
    broken.close()
    assert connection.until_answered(HeldJob(held), lambda job: answer(way, broken, job, Push("b", NEXT))) is True
    assert seen.ready("b") == [NEXT]


@one_place
def test_a_broken_connection_raises(broken, proxy, seen):
    broken.push("a", job(1))
    held = take(broken)
    proxy.cut()
    with pytest.raises(ConnectionLost):
        broken.ack(held, [Push("b", NEXT)])
