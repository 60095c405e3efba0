"""A connection to Redis: waits end with a token, a signal or the timeout; a keeper is notified of each broken connection;
slow replies time out."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from qd.drivers.redis.connection import RedisConnection
from qd.drivers.types import BeatRequest
from qd.errors import ConnectionLost, ServerBusy
from tests.contract.conftest import ONE
from tests.contract.keyspace.test_queue import job, take
from tests.support.network import FakeServer, in_parts
from tests.support.payloads import push_many
from tests.support.waiting import eventually

# --- waiting for a job


LONG = 30.0  # seconds; a test that waits this long fails


@pytest.fixture
def wake() -> Iterator[tuple[int, int]]:
    """A worker's mailbox: the end it polls, and the end a signal handler writes to."""
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


class Waiting:
    """`queue.wait` in a thread: done() when it has returned."""

    def __init__(self, queue, queues, seconds, fd):
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(queue, queues, seconds, fd), daemon=True)
        self.thread.start()

    def _run(self, *args):
        try:
            args[0].wait(*args[1:])
        except BaseException as error:
            self.error = error

    def done(self) -> None:
        self.thread.join(10)
        assert not self.thread.is_alive()
        assert self.error is None


def blocked(seen) -> bool:
    return bool("blocked_clients:0" not in seen.client.text("INFO", "clients"))


@pytest.mark.parametrize("delay", [None, 0.3])
def test_a_wait_ends_when_a_job_is_pushed(connect, seen, wake, delay):
    worker, producer = connect(), connect()
    waiting = Waiting(worker, ["a", "b"], LONG, wake[0])
    eventually(lambda: blocked(seen))
    push_many(producer, [("b", job(1), delay)])
    waiting.done()
    if delay is None:
        assert worker.ack(take(worker, "a", "b"))
    else:  # woken to wait less; on a slow machine the job is due already
        turn = worker.turn(None, ["a", "b"])
        assert turn.next_due is not None or worker.ack(turn.reserved)


def test_a_wait_ends_at_once_if_there_is_a_token(queue, seen, wake):
    queue.push("a", job(1))
    queue.wait(["a"], LONG, wake[0])
    assert queue.ack(take(queue))


def test_a_wait_ends_after_its_timeout(queue, seen, wake):
    queue.wait(["a", "b"], 0.01, wake[0])
    assert seen.every_key() == []


def test_a_wait_needs_no_mailbox(queue, seen):
    queue.wait(["a"], 0.01, -1)


def test_a_signal_ends_a_wait_and_the_connection_stays_usable(queue, seen, wake):
    waiting = Waiting(queue, ["a"], LONG, wake[0])
    eventually(lambda: blocked(seen))
    os.write(wake[1], b"\0")
    waiting.done()
    eventually(lambda: not blocked(seen))  # the server no longer has a blocked client
    queue.push("a", job(1))
    assert seen.tokens("a") == 1
    assert queue.ack(take(queue))


def test_a_token_that_came_with_a_signal_is_put_back(queue, seen, wake):
    queue.push("a", job(1))
    os.write(wake[1], b"\0")
    queue.wait(["a"], LONG, wake[0])
    eventually(lambda: seen.tokens("a") == 1)
    assert queue.ack(take(queue))


@pytest.mark.parametrize("place", ONE, indirect=True)
def test_surplus_tokens_end_one_wait(place, queue, seen, wake):
    seen.call("RPUSH", "a", "notify", "1", "1", "1")
    queue.wait(["a"], LONG, wake[0])
    assert seen.tokens("a") == 2
    assert queue.turn(None, ["a"]).reserved is None
    assert seen.tokens("a") == 0  # the turn found the queue empty


# --- broken and idle connections


REQUEST = BeatRequest("Tok3nTok3n", "", 30.0, True, 1e12, [1])


def cut(queue, server) -> None:
    """The server closes the connection, some time after its last use."""
    number = queue.connection.call("CLIENT", "ID")
    with server.client() as client:
        client.call("CLIENT", "KILL", "ID", number)
    queue.connection._used -= 5


@pytest.mark.parametrize("place", ONE, indirect=True)
def test_a_keeper_is_notified_that_an_idle_connection_was_closed(queue, seen, server):
    queue.beat(["a"], REQUEST)
    cut(queue, server)
    with pytest.raises(ConnectionLost, match="closed the connection"):
        queue.beat(["a"], REQUEST)
    assert queue.beat(["a"], REQUEST).reclaimed == 0


@pytest.mark.parametrize("place", ONE, indirect=True)
def test_a_producer_is_not_notified_that_an_idle_connection_was_closed(queue, seen, server):
    queue.push("a", job(1))
    cut(queue, server)
    queue.push("a", job(2))
    assert queue.sizes("a").ready == 2


@pytest.mark.parametrize("place", ONE, indirect=True)
@pytest.mark.parametrize("send", [lambda q: q.push("a", job(1)), lambda q: q.post_one("a")], ids=["push", "post"])
def test_a_connection_to_a_replica_is_closed_after_readonly(queue, seen, server, send):
    """After any call: a connection is not used again after READONLY."""
    queue.post_one = lambda name: push_many(queue, [(name, job(1), None), (name, job(2), None)])
    queue.sizes("a")
    with server.client() as client:
        client.call("REPLICAOF", "127.0.0.1", "1")
        try:
            with pytest.raises(ServerBusy, match="READONLY"):
                send(queue)
            assert not queue.connection.connected
        finally:
            client.call("REPLICAOF", "NO", "ONE")


# --- slow replies


def test_a_reply_that_arrives_too_slowly_times_out() -> None:
    with FakeServer(in_parts(b"$100\r\n", b"x", 102, pause=0.05)) as liar:
        wire = RedisConnection(
            liar.url, timeout=1.0
        )  # the whole reply takes five seconds, each part a twentieth of one
        with pytest.raises(ConnectionLost, match=r"no answer in time \(1 s\); a change may have taken effect"):
            wire.call("PING")
        assert not wire.connected


def test_a_large_reply_may_take_longer_than_the_timeout() -> None:
    part = b"x" * (1 << 15) + b"\r\n"
    whole = b"*60\r\n" + b"$%d\r\n" % (1 << 15)
    with FakeServer(in_parts(whole, part + b"$%d\r\n" % (1 << 15), 59, pause=0.07, tail=part)) as liar:
        wire = RedisConnection(
            liar.url, timeout=4.0
        )  # the parts take at least 4.1, and the machine may stall during one of them
        assert [len(item) for item in wire.call("LRANGE", "a", 0, -1)] == [1 << 15] * 60
        wire.close()
