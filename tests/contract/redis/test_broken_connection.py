"""A connection that breaks between a call and its reply: the held job is found again, nothing is lost or done twice."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from qd.config.settings import ConnectionSettings
from qd.drivers.base import ClientIdentity
from qd.drivers.redis.queue import RedisQueue
from qd.drivers.types import Released, Reserved
from qd.errors import ConnectionLost
from qd.payload.format import read
from qd.payload.reservation import answered, original, saving
from tests.contract.keyspace.test_queue import job, take
from tests.support.network import Proxy
from tests.support.payloads import push_many
from tests.support.redis import Seen
from tests.support.servers.redis import Server

T = TypeVar("T")
EACH = 7  # bytes from one cut to the next


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.socket) as made:
        yield made


@pytest.fixture
def seen(server: Server) -> Iterator[Seen]:
    with server.client() as client:
        yield Seen(client)


@pytest.fixture
def queue(proxy: Proxy) -> Iterator[RedisQueue]:
    """A queue behind the proxy, with an open connection and loaded scripts."""
    made = RedisQueue(
        ConnectionSettings(name="redis", url=proxy.url, retry_after=30.0), ClientIdentity("Tok3nTok3n", 1)
    )
    made.push("warm", job(0))
    made.bury(take(made, "warm"), b"{}", b"raw")
    made.push("warm", job(0))
    made.release(take(made, "warm"), Released(job(0)))
    made.ack(take(made, "warm"))
    made.later("warm", job(0), 60)
    yield made
    made.close()


def cuts(proxy: Proxy, prepare: Callable[[], T], operation: Callable[[T], object]) -> Iterator[T]:
    """Prepare and run repeatedly, with the reply cut at a later byte each time, until one arrives whole. Yields the
    prepared value each time the reply was lost."""
    for byte in range(0, 10_000, EACH):
        prepared = prepare()
        proxy.cut(byte=byte)
        try:
            operation(prepared)
        except ConnectionLost:
            yield prepared
        else:
            proxy.heal()
            assert byte
            return


def test_a_turn_whose_reply_is_lost_is_found_again_by_its_owner(queue, proxy, seen):
    def one_in_hand_and_one_ready() -> Reserved:
        queue.clear("a")
        for held in seen.reserved("a"):
            seen.call("ZREM", "a", "reserved", held)
        push_many(queue, [("a", job(1), None), ("a", job(2), None)])
        return take(queue)

    for done in cuts(proxy, one_in_hand_and_one_ready, lambda done: queue.turn(done, ["a"])):
        mine = queue.held(["a"])
        assert mine is not None
        assert mine.mark != done.mark  # the turn included the ack
        assert b'"id2"' in mine.member
        assert list(seen.reserved("a")) == [mine.member]
        assert queue.ack(mine)
        assert seen.everywhere("a").total() == 0


def test_an_ack_with_a_lost_reply_was_executed(queue, proxy, seen):
    def in_hand() -> Reserved:
        queue.push("a", job(1))
        return take(queue)

    for _ in cuts(proxy, in_hand, queue.ack):
        assert queue.held(["a"]) is None
        assert seen.everywhere("a").total() == 0


@pytest.mark.parametrize("way", ["ready", "delayed", "failed"])
def test_an_answer_with_a_lost_reply_was_executed_once(queue, proxy, seen, way):
    queue.push("a", job(1))
    held = take(queue)
    text = answered(held.member, held.mark)
    ways: dict[str, Callable[[], object]] = {
        "ready": lambda: queue.release(held, Released(text)),
        "delayed": lambda: queue.release(held, Released(text, 60)),
        "failed": lambda: queue.bury(held, b"{}", text),
    }
    proxy.cut()
    with pytest.raises(ConnectionLost):
        ways[way]()
    assert queue.held(["a"]) is None  # so the worker does not repeat the answer; a repeated one adds nothing
    assert ways[way]() is False
    assert seen.everywhere("a") == {text: 1}
    assert {"ready": seen.ready("a"), "delayed": seen.delayed("a"), "failed": seen.failed("a")}[way]


def test_a_checkpoint_with_a_lost_reply_is_found_again(queue, proxy, seen):
    queue.push("a", job(1))
    held = take(queue)
    member = saving(held.member, held.mark, b"7")
    assert queue.checkpoint(held, held.member)  # loads the script
    proxy.cut()
    with pytest.raises(ConnectionLost):
        queue.checkpoint(held, member)
    mine = queue.held(["a"])
    assert (mine.mark, mine.member) == (held.mark, member)
    assert queue.ack(mine)


def test_a_late_checkpoint_is_found_again(queue, proxy, seen, server, monkeypatch):
    """The checkpoint arrives between the two calls of held(): the old payload is no longer leased, and nothing is lost."""
    queue.push("a", job(1))
    held = take(queue)
    late = RedisQueue(ConnectionSettings(name="redis", url=server.url), ClientIdentity("Tok3nTok3n", 1))
    owned = queue.owned

    def then_late(name: str, owner: str) -> bytes | None:
        found: bytes | None = owned(name, owner)
        late.checkpoint(held, saving(held.member, held.mark, b"7"))
        return found

    monkeypatch.setattr(queue, "owned", then_late)
    mine = queue.held(["a"])
    late.close()
    assert mine is not None
    assert read(mine.member).checkpoint == b"7"
    assert queue.ack(mine)


def test_a_call_waits_no_longer_than_its_timeout(queue, proxy, seen):
    queue.patience(60, 60)
    queue.turn(None, ["a"])
    proxy.silence()
    began = time.monotonic()
    with queue.within(0.2):
        for _ in range(2):
            with pytest.raises(ConnectionLost, match="no answer in time"):
                queue.turn(None, ["a"])
    assert time.monotonic() - began < 60  # the timeout of the connection itself
    assert (queue.connection.connect_timeout, queue.connection.timeout) == (60, 60)
    proxy.heal()
    queue.turn(None, ["a"])
    assert queue.connection._sock.gettimeout() == 60


@pytest.mark.parametrize("byte", [0, 1, 3])
def test_a_push_with_a_lost_reply_raises_and_is_not_repeated(queue, proxy, seen, byte):
    proxy.cut(byte=byte)
    with pytest.raises(ConnectionLost, match="broke"):
        queue.push("a", job(1))
    assert seen.ready("a") == [job(1)]


def test_the_reply_after_a_cut_belongs_to_the_next_command(queue, proxy, seen):
    push_many(queue, [("a", job(n), None) for n in range(5)])
    for _ in cuts(proxy, lambda: None, lambda _: queue.sizes("a")):
        sizes = queue.sizes("a")
        assert (sizes.ready, sizes.delayed, sizes.failed) == (5, 0, 0)
        assert queue.held(["a"]) is None


def test_the_third_reply_of_a_pipeline_can_be_lost(queue, proxy, seen):
    proxy.cut(reply=2)
    with pytest.raises(ConnectionLost):
        queue.sizes("a")
    assert queue.sizes("a").ready == 0


@pytest.mark.parametrize("operation", ["push", "turn", "wait"])
def test_a_silent_network_is_noticed_by_the_timeout(queue, proxy, seen, operation):
    queue.turn(None, ["a"])
    proxy.silence()
    queue.patience(0.2, 0.2)
    if operation == "wait":
        queue.wait(["a"], 0.05, -1)  # a wait has no reply to lose: the next call raises
    else:
        with pytest.raises(ConnectionLost, match="no answer in time"):
            queue.push("a", job(1)) if operation == "push" else queue.turn(None, ["a"])
    with pytest.raises(ConnectionLost, match="no answer in time"):
        queue.turn(None, ["a"])
    proxy.heal()
    queue.patience(20, 20)
    queue.push("a", job(2))
    assert seen.ready("a") == [job(2)]
    assert queue.ack(take(queue))


def test_a_turn_that_reached_a_silent_server_is_found_again(queue, proxy, seen):
    queue.push("a", job(1))
    proxy.cut()  # executed, without a reply
    with pytest.raises(ConnectionLost):
        queue.turn(None, ["a"])
    proxy.silence()
    queue.patience(0.2, 0.2)
    with pytest.raises(ConnectionLost):
        queue.held(["a"])
    proxy.heal()
    queue.patience(20, 20)
    mine = queue.held(["a"])
    assert mine is not None
    assert queue.ack(mine)


def test_an_idle_connection_that_the_server_has_closed_is_not_used_again(server, seen):
    """After CLIENT KILL or the server's own `timeout` no call fails: after an idle second the connection is checked."""
    queue = RedisQueue(
        ConnectionSettings(name="redis", url=server.url, retry_after=30.0), ClientIdentity("Tok3nTok3n", 1)
    )
    number = queue.connection.call("CLIENT", "ID")
    seen.client.call("CLIENT", "KILL", "ID", number)
    queue.connection._used -= 2  # idle for two seconds
    queue.push("a", job(1))
    assert queue.connection.call("CLIENT", "ID") != number
    assert queue.ack(take(queue))
    queue.close()


SHAPES = {
    "as Laravel and qd push it": (b'{"job":5,"data":{"a":[]},"attempts":0,"delay":null}', True),
    "attempted by PHP": (b'{"job":5,"attempts":2,"data":[1.0]}', True),
    "without attempts": (b'{"job":5,"data":[1.0]}', False),
    "reserved before": (b'{"job":5,"attempts":1,"rsv":"Tok3nTok3n.1.1.-","data":[1.0]}', False),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_job_found_again_equals_the_pushed_one_except_for_qd_keys(queue, proxy, seen, shape):
    """The lost reply had the original text at the position of the mark, which is now derived as one attempt less. This is
    exact for a payload that has a count and was never reserved; otherwise qd's own keys may differ, but no other byte."""
    pushed, exact = SHAPES[shape]
    queue.push("a", pushed)
    proxy.cut()
    with pytest.raises(ConnectionLost):
        queue.turn(None, ["a"])
    mine = queue.held(["a"])
    found = original(mine.member, mine.start, mine.length, mine.before)
    assert (found == pushed) is exact
    assert others(found) == others(pushed)
    assert queue.ack(mine)


def others(raw: bytes) -> dict[str, object]:
    return {key: value for key, value in json.loads(raw).items() if key not in ("attempts", "rsv")}
