"""Waiting for a job ends with a token, a signal or the timeout, and takes no other token."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from tests.contract.conftest import ONE
from tests.contract.keyspace.test_queue import job, take
from tests.support.waiting import eventually

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
    producer.push_many([("b", job(1), delay)])
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
def test_surplus_tokens_only_end_waits(place, queue, seen, wake):
    seen.call("RPUSH", "a", "notify", "1", "1", "1")
    for left in (2, 1, 0):
        queue.wait(["a"], LONG, wake[0])
        assert queue.turn(None, ["a"]).reserved is None
        assert seen.tokens("a") == left
