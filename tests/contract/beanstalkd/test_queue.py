"""A turn on beanstalkd: one write deletes the finished job and reserves the next, whose lease also acks the finished one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qd.config.load import load
from qd.drivers.beanstalkd.broker import Beanstalkd as Backend
from qd.drivers.beanstalkd.client import BeanstalkdConnection
from qd.drivers.broker import queue as broker_queue
from qd.drivers.broker.queue import BrokerQueue
from qd.drivers.connections import open_queue
from qd.drivers.types import Released, Reserved
from qd.errors import ConnectionLost
from qd.payload.build import make
from qd.payload.format import read
from tests.support.payloads import push_many
from tests.support.redis import Client
from tests.support.servers.beanstalkd import Beanstalkd
from tests.support.servers.redis import Server
from tests.support.waiting import eventually

TOKEN = "Tok3nTok3n"
ENDED = "qd:at:tubes:queues:mail:qd-ended"
Open = Callable[[int], BrokerQueue]
pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.leaves("qd:at:tubes:qd:outbox")]


@pytest.fixture
def connect(beanstalkd: Beanstalkd, server: Server, tmp_path: Path) -> Iterator[Open]:
    """connect(slot): a new connection; closed at the end."""
    path, opened = tmp_path / "qd.toml", list[BrokerQueue]()
    path.write_text(
        f'[qd]\ndefault = "tubes"\ncontrol = "redis"\n[connections.redis]\nurl = "{server.url}"\n'
        f'[connections.tubes]\nurl = "{beanstalkd.url}"\n'
    )

    def one(slot: int) -> BrokerQueue:
        found = open_queue(load(path, environ={}), "tubes", token=TOKEN, slot=slot)
        assert isinstance(found, BrokerQueue)
        opened.append(found)
        return found

    yield one
    for queue in opened:
        queue.close()


@pytest.fixture
def queue(connect: Open) -> BrokerQueue:
    """A connection with jobs 1 to 3 in `mail`."""
    found = connect(1)
    push_many(found, [("mail", make("quick", b'{"n":%d}' % n, created_at=1), None) for n in (1, 2, 3)])
    return found


def number(held: Reserved | None) -> int | None:
    return None if held is None else int(json.loads(bytes(read(held.member).data))["n"])


def connection_of(queue: BrokerQueue) -> BeanstalkdConnection:
    assert isinstance(queue.backend, Backend)
    return queue.backend.connection


def broken(*_: Any) -> Any:
    raise ConnectionLost("broken")


def rest(queue: BrokerQueue, done: Reserved | None) -> list[int | None]:
    """The numbers of the remaining jobs; each is acked with the next turn."""
    found = list[int | None]()
    while (done := queue.turn(done, ("mail",)).reserved) is not None:
        found.append(number(done))
    return found


def test_a_turn_writes_once_to_beanstalkd_and_leaves_no_note(
    queue: BrokerQueue, redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, written = queue.turn(None, ("mail",)).reserved, list[bytes]()
    connection = connection_of(queue)
    write = connection.write

    def noted(command: bytes) -> None:
        written.append(command)
        write(command)

    monkeypatch.setattr(connection, "write", noted)
    turn = queue.turn(first, ("mail",))
    assert turn.acked
    (only,) = written
    assert [line.split()[0] for line in only.splitlines()] == [b"delete", b"reserve-with-timeout"]
    assert redis.call("EXISTS", ENDED) == 0
    assert rest(queue, turn.reserved) == [3]


def test_a_job_deleted_and_not_acked_by_a_killed_worker_runs_again(
    queue: BrokerQueue, connect: Open, redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper restores it from its lease, as any job that ended without an ack."""
    first = queue.turn(None, ("mail",)).reserved
    assert first is not None
    with monkeypatch.context() as patched:
        patched.setattr(queue.space, "run", broken)
        with pytest.raises(ConnectionLost):
            queue.turn(first, ("mail",))
    queue.backend.close()
    keeper = connect(0)
    assert keeper.owned("mail", queue.owner) == first.member
    assert keeper.give_back("mail", queue.owner, first.member, Released(first.member))
    assert sorted(map(str, rest(connect(2), None))) == ["1", "2", "3"]
    assert redis.call("EXISTS", ENDED) == 0


def test_a_step_that_was_not_executed_is_repeated(
    queue: BrokerQueue, redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = queue.turn(None, ("mail",)).reserved
    with monkeypatch.context() as patched:
        patched.setattr(queue.space, "run", broken)
        with pytest.raises(ConnectionLost):
            queue.turn(first, ("mail",))
    mine = queue.held(("mail",))
    assert (mine and mine.mark) == (first and first.mark)
    turn = queue.turn(first, ("mail",))
    assert (turn.acked, number(turn.reserved)) == (True, 2)
    assert rest(queue, turn.reserved) == [3]
    assert redis.call("EXISTS", ENDED) == 0


def test_a_step_with_a_lost_reply_has_acked_the_right_job(queue: BrokerQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    first, run = queue.turn(None, ("mail",)).reserved, queue.space.run

    def lost(*words: Any) -> Any:
        run(*words)
        broken()

    with monkeypatch.context() as patched:
        patched.setattr(queue.space, "run", lost)
        with pytest.raises(ConnectionLost):
            queue.turn(first, ("mail",))
    second = queue.held(("mail",))
    assert number(second) == 2
    assert rest(queue, second) == [3]


def test_a_job_put_back_by_a_broken_connection_is_acked_and_deleted(
    queue: BrokerQueue, connect: Open, beanstalkd: Beanstalkd
) -> None:
    """The connection broke while the job ran, so beanstalkd offers the job to another worker."""
    other, first = connect(2), queue.turn(None, ("mail",)).reserved
    connection_of(queue).close()
    eventually(lambda: other.backend.counts("mail").ready == 3)
    second = other.turn(None, ("mail",)).reserved
    assert number(second) == 2, "the first is leased: it was put back"
    turn = queue.turn(first, ("mail",))
    assert (turn.acked, number(turn.reserved)) == (True, 3)
    assert rest(other, second) == []
    assert rest(queue, turn.reserved) == []
    with beanstalkd.client() as client:
        assert "mail" not in client.tubes() or client.stats_tube("mail")["current-jobs-delayed"] == 0


def left_with_a_delivery(queue: BrokerQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """beanstalkd has delivered job 1, and the control connection breaks before the worker has leased it."""
    with monkeypatch.context() as patched:
        patched.setattr(queue.space, "run", broken)
        with pytest.raises(ConnectionLost):
            queue.turn(None, ("mail",))


def test_a_delivery_past_its_time_to_run_is_not_run_twice(
    connect: Open, beanstalkd: Beanstalkd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile beanstalkd has delivered it to another worker, which has run it."""
    late, other = connect(1), connect(2)
    with beanstalkd.client() as client:
        client.use("mail")
        client.put(make("quick", b'{"n":1}', created_at=1), ttr=1)
    late.turn(None, ("other",))  # reads which queues are paused
    left_with_a_delivery(late, monkeypatch)
    job: Reserved | None = None

    def is_taken() -> bool:
        """A worker that is stopped for more than half a second in the middle of this gives its delivery up."""
        nonlocal job
        other.wait(("mail",), 1.0, -1)
        job = other.turn(None, ("mail",)).reserved
        return job is not None

    assert eventually(is_taken, 30)
    assert number(job) == 1
    assert rest(other, job) == []
    assert late.held(("mail",)) is None
    assert rest(late, None) == []


def test_a_delivery_on_a_broken_connection_is_not_run_twice(
    queue: BrokerQueue, connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = connect(2)
    queue.turn(None, ("other",))
    left_with_a_delivery(queue, monkeypatch)
    connection_of(queue).close()
    assert eventually(lambda: other.backend.counts("mail").ready == 3)
    monkeypatch.setattr(broker_queue, "SURELY", -1.0)
    assert rest(other, None) == [1, 2, 3]
    assert rest(queue, None) == []


def test_a_reserved_delivery_is_kept_while_the_control_connection_is_unreachable(
    queue: BrokerQueue, connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Releasing it would count as an attempt in beanstalkd."""
    queue.turn(None, ("other",))
    left_with_a_delivery(queue, monkeypatch)
    monkeypatch.setattr(broker_queue, "SURELY", -1.0)
    first = queue.turn(None, ("mail",)).reserved
    assert number(first) == 1
    assert rest(connect(2), None) == [2, 3]
    assert rest(queue, first) == []
