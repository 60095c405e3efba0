"""Specifics of SQS: FIFO queues that keep their order on a retry, delays that SQS does not support, duplicate messages,
messages of other programs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from qd.config.load import load
from qd.drivers.broker import queue as broker_queue
from qd.drivers.broker.base import Delivery
from qd.drivers.broker.outbox import FEW, next_slice
from qd.drivers.connections import open_queue
from qd.drivers.sqs.queue import SqsQueue
from qd.drivers.types import BeatRequest, Released, Reserved
from qd.errors import ConnectionLost, QdError, ServerRefused, TooLarge
from qd.payload.build import make, with_relations
from qd.payload.format import Relations, read
from qd.payload.reservation import answered
from tests.support.payloads import push_many
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.servers.sqs import Sqs
from tests.support.waiting import eventually

FIFO = "orders.fifo"
Open = Callable[..., SqsQueue]


@pytest.fixture
def connect(sqs: Sqs, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """connect(slot=1, options="&shared=true", lease=30): a new connection."""
    for name, value in sqs.credentials.items():
        monkeypatch.setenv(name, value)
    client = sqs.client()
    client.create_queue(QueueName="mail")
    client.create_queue(QueueName=FIFO, Attributes={"FifoQueue": "true"})
    client.close()
    opened = list[SqsQueue]()

    def make_one(slot: int = 1, options: str = "", lease: int = 30, token: str = "Tok3nTok3n") -> SqsQueue:
        path = tmp_path / "qd.toml"
        path.write_text(
            f'[qd]\ndefault = "sqs"\ncontrol = "redis"\n[connections.redis]\nurl = "{server.url}"\n'
            f'[connections.sqs]\nurl = "{sqs.url}{options}"\nretry_after = {lease}\n'
        )
        found = open_queue(load(path, environ={}), "sqs", token=token, slot=slot)
        assert isinstance(found, SqsQueue)
        opened.append(found)
        return found

    yield make_one
    for queue in opened:
        queue.close()


def job(n: int, group: str = "") -> bytes:
    return make("quick", b'{"n":%d}' % n, created_at=1, extra={"tags": [f"group:{group}"]} if group else None)


def number(held: Reserved | None) -> int | None:
    return None if held is None else int(json.loads(bytes(read(held.member).data))["n"])


def take(queue: SqsQueue, name: str = FIFO) -> Reserved:
    found: Reserved = eventually(lambda: queue.turn(None, (name,)).reserved, what="a job")
    return found


def nothing(queue: SqsQueue, name: str = FIFO) -> bool:
    return queue.turn(None, (name,)).reserved is None


# -- order in a group


def test_a_retried_job_stays_ahead_of_its_group(connect: Open, redis: Client) -> None:
    queue = connect()
    push_many(queue, [(FIFO, job(1, "a"), None), (FIFO, job(2, "a"), None), (FIFO, job(3, "b"), None)])
    first, hand = take(queue), queue._current
    assert hand is not None
    assert queue.release(first, Released(answered(first.member, first.mark), 600.0))
    other = take(queue)
    assert number(other) == 3, "another group continues"
    assert queue.ack(other)
    assert nothing(queue), "its own group waits"
    assert queue.backend.messages.hide(FIFO, hand.handle, 0)  # ten minutes later
    for attempt in (2, 3):
        again = take(queue)
        assert (number(again), read(again.member).attempts) == (1, attempt)
        if attempt == 2:
            assert queue.release(again, Released(answered(again.member, again.mark)))
    assert queue.ack(again)
    last = take(queue)
    assert number(last) == 2
    assert queue.ack(last)
    assert not [key for key in redis.text("KEYS", "*") if "message" in key], "no payload of an ended job is kept"


def test_the_job_of_a_dead_worker_stays_ahead_of_its_group(connect: Open) -> None:
    queue, keeper = connect(), connect(0)
    push_many(queue, [(FIFO, job(1), None), (FIFO, job(2), None)])
    held = take(queue)
    assert keeper.owned(FIFO, "Tok3nTok3n/1") == held.member
    assert keeper.give_back(FIFO, "Tok3nTok3n/1", held.member, Released(held.member))
    assert queue.ack(held) is False, "it has lost it"
    again = take(connect(2))
    assert (number(again), read(again.member).attempts, read(again.member).crashes) == (1, 1, 1)


def test_a_fifo_job_with_an_expired_lease_keeps_its_position(connect: Open) -> None:
    queue, keeper = connect(lease=1), connect(0, lease=1)
    push_many(queue, [(FIFO, job(1), None), (FIFO, job(2), None)])
    take(queue)
    beaten = eventually(lambda: beat(keeper, reclaims=True).reclaimed)
    assert beaten == 1
    again = take(connect(2))
    assert (number(again), read(again.member).crashes) == (1, 1)


def beat(keeper: SqsQueue, *slots: int, reclaims: bool = False):
    until = 1e12 if reclaims else 0.0
    return keeper.beat((FIFO, "mail"), BeatRequest("Tok3nTok3n", "", keeper.settings.retry_after, True, until, slots))


def test_a_job_received_from_a_just_paused_queue_stays_there(connect: Open) -> None:
    queue, other = connect(), connect(2)
    push_many(queue, [(FIFO, job(1), None), (FIFO, job(2), None)])
    assert nothing(queue, "mail")
    queue.space.call("SET", *queue._keys(f"queues:{FIFO}:paused"), "{}")
    turn = queue.turn(None, (FIFO,))
    assert (turn.reserved, turn.paused) == (None, (FIFO,))
    other.wait((FIFO,), 1.0, -1)
    assert other.turn(None, (FIFO,)).reserved is None
    queue.space.call("EXPIRE", *queue._keys(f"queues:{FIFO}:paused"), 0)
    assert nothing(other, "mail")
    other.wait((FIFO,), 10.0, -1)
    queue.space.call("SET", *queue._keys(f"queues:{FIFO}:paused"), "{}")  # after the worker has received the message
    assert other.turn(None, (FIFO,)).reserved is None
    queue.space.call("EXPIRE", *queue._keys(f"queues:{FIFO}:paused"), 0)
    assert [number(held) for held in (take(queue),)] == [1]
    assert queue.backend.messages.counts(FIFO)[:3] == (1, 0, 1)


# -- sending


def test_each_rejected_job_is_reported_and_the_others_are_sent(connect: Open) -> None:
    queue, large = connect(token="", slot=0), make("large", b'"%s"' % (b"x" * 1_100_000), id="l1", created_at=1)
    jobs = [("mail", each, None) for each in (job(1), large, b"\xff", *[job(n) for n in range(2, 12)])]
    with pytest.raises(TooLarge) as error:
        push_many(queue, jobs)
    assert "did not accept 2 of 13 jobs for queue 'mail', the others were sent: large l1 (1100" in str(error.value)
    assert "a payload of 1 bytes: SQS accepts only text" in str(error.value)
    assert queue.backend.messages.counts("mail").ready == 11


def test_plain_jobs_do_not_need_the_control_connection(connect: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = connect(token="", slot=0)
    monkeypatch.setattr(queue.space, "_open", lambda: pytest.fail("the control connection was opened"))
    queue.push("mail", job(1))
    queue.later("mail", job(2), 60)
    assert queue.backend.messages.counts("mail")[:2] == (1, 1)
    monkeypatch.undo()


@pytest.mark.parametrize("name", ["mail.high", "x" * 81, "a b"])
def test_an_invalid_queue_name_is_rejected_before_a_request(connect: Open, name: str) -> None:
    with pytest.raises(ServerRefused, match=r"SQS cannot have a queue '.*': up to 80 letters"):
        connect(token="", slot=0).push(name, job(1))


# -- leases


def test_a_keeper_keeps_the_message_of_a_live_worker_hidden(connect: Open) -> None:
    queue, keeper = connect(lease=4), connect(0, lease=60)
    queue.push("mail", job(1))
    held = take(queue, "mail")
    beat(keeper, 1)
    assert keeper.backend.messages.receive("mail", 1, seconds=5) is None
    assert queue.ack(held)


def test_a_message_delivered_again_while_its_job_runs_stays_with_its_worker(connect: Open) -> None:
    """SQS does this after twelve hours, or if no keeper reached it. From then on the job has the new handle."""
    queue, other = connect(), connect(2)
    queue.push("mail", job(1))
    held = take(queue, "mail")
    name, before = queue._keys("queues:mail:qd-holding")[0], queue._current
    assert before is not None
    assert queue.backend.messages.hide("mail", before.handle, 0)
    assert nothing(other, "mail")
    id, _, handle = queue.space.call("HGET", name, queue.owner).decode().partition(" ")
    assert (id, handle != before.handle) == (before.id, True)
    assert queue.backend.messages.counts("mail")[:3] == (0, 0, 1), "hidden again"
    assert queue.ack(held)
    assert queue.backend.messages.counts("mail")[:3] == (0, 0, 0)


def test_a_message_received_during_shutdown_goes_back_at_once(connect: Open) -> None:
    queue, other = connect(), connect(2)
    queue.push("mail", job(1))
    queue.wait(("mail",), 5.0, -1)
    assert nothing(other, "mail"), "the message is reserved"
    queue.close()
    again = other.turn(None, ("mail",)).reserved
    assert (number(again), again and read(again.member).crashes) == (1, 0)


def test_a_message_delivered_again_after_its_end_is_deleted(connect: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, other = connect(), connect(2)
    queue.push("mail", job(1))
    held = take(queue, "mail")
    handle = queue.space.call("HGET", *queue._keys("queues:mail:qd-holding"), queue.owner).decode().split(" ")[1]
    with monkeypatch.context() as broken:
        broken.setattr(queue.backend.messages, "delete", lose)
        assert queue.ack(held)
    assert queue.backend.messages.hide("mail", handle, 0)
    assert nothing(other, "mail")
    assert other.backend.messages.counts("mail")[:3] == (0, 0, 0)


def lose(*_: object) -> bool:
    raise ConnectionLost("no answer in time")


def test_a_keeper_reports_a_waiting_queue_after_two_counts(connect: Open) -> None:
    keeper = connect(0)
    keeper.push("mail", job(1))
    assert beat(keeper).waiting == []
    assert beat(keeper).waiting == [], "it has not counted again"
    keeper._counted_at = float("-inf")
    assert beat(keeper).waiting == [1]
    held = take(connect(1), "mail")
    keeper._counted_at = float("-inf")
    keeper.backend._counted.clear()
    assert beat(keeper).waiting == []
    assert held is not None


# -- delays


def test_delays_that_sqs_does_not_support_wait_on_the_control_connection(connect: Open) -> None:
    queue = connect(options="&longest_delay=500")
    queue.later("mail", job(1), 500)
    queue.later("mail", job(2), 600)
    queue.later(FIFO, job(3), 300)
    assert (queue.backend.messages.counts("mail").delayed, queue.sizes("mail").delayed) == (1, 2)
    assert (queue.backend.messages.counts(FIFO).delayed, queue.sizes(FIFO).delayed) == (0, 1)
    assert nothing(queue)
    queue.space.call(
        "ZADD", *queue._keys(f"queues:{FIFO}:delayed"), "XX", 1, job_in_outbox(queue)
    )  # five minutes later
    keeper = connect(0)
    eventually(lambda: beat(keeper) and keeper.backend.messages.counts(FIFO).ready)
    assert number(take(queue)) == 3
    assert queue.clear("mail") == 1


def job_in_outbox(queue: SqsQueue) -> bytes:
    """The job in the outbox of the FIFO queue."""
    (found,) = queue.space.call("ZRANGE", *queue._keys(f"queues:{FIFO}:delayed"), 0, -1)
    return bytes(found)


# -- other programs


def test_jobs_of_laravel_run_and_count_attempts_if_queues_are_shared(connect: Open, sqs: Sqs) -> None:
    """A payload as Laravel's driver pushes it, without ID and attempts."""
    payload = (
        '{"uuid":"2f1b0c52-6b4a-4b7a-9f3e-0a3f6c1d2e4f","displayName":"quick","job":"quick","maxTries":null,'
        '"maxExceptions":null,"failOnTimeout":false,"backoff":null,"timeout":null,"data":{"n":7}}'
    )
    client = sqs.client()
    url = client.get_queue_url(QueueName="mail")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody=payload)
    got = client.receive_message(QueueUrl=url)["Messages"][0]
    client.change_message_visibility(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0)
    alone = connect()
    held = take(alone, "mail")
    assert (number(held), read(held.member).attempts, read(held.member).crashes) == (7, 1, 0)
    assert held.member.startswith(payload.encode()[:-1]), "its bytes are unchanged"
    assert alone.backend.messages.hide("mail", alone._current.handle if alone._current else "", 0)
    alone.space.call("FLUSHALL")
    shared = take(connect(2, options="&shared=true"), "mail")
    assert read(shared.member).attempts == 3
    client.close()


# -- jobs in the outbox


def test_one_turn_reserves_a_job_from_the_outbox(connect: Open) -> None:
    """Otherwise a worker with --stop-when-empty would leave a job behind."""
    queue = connect()
    assert nothing(queue, "mail")
    queue.outbox.note(["mail"])
    queue.space.call("RPUSH", *queue._keys("queues:mail"), job(1))
    held = queue.turn(None, ("mail",)).reserved
    assert number(held) == 1
    assert held is not None
    assert queue.ack(held)


def test_one_turn_waits_for_a_job_that_another_process_is_sending(
    connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = connect(), connect(slot=2)
    sending, sender = queue._keys("queues:mail:qd-sending", "queues:mail:qd-sender")
    queue.space.call("RPUSH", sending, job(1))
    queue.space.call("SET", sender, "elsewhere", "PX", 60_000)
    looks = list[float]()

    def paused(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:  # the other process is done
            other.push("mail", job(1))
            other.space.call("EXPIRE", sending, 0)
            other.space.call("EXPIRE", sender, 0)

    monkeypatch.setattr("qd.drivers.broker.queue.time.sleep", paused)
    held = queue.turn(None, ("mail",)).reserved
    monkeypatch.undo()
    assert number(held) == 1
    assert held is not None
    assert queue.ack(held)


def unwanted(queue: str, error: Exception) -> None:
    raise AssertionError(f"{queue}: {error}")


# -- a large outbox, and jobs that SQS never accepts


def test_a_job_that_sqs_never_accepts_fails_and_blocks_no_other(connect: Open) -> None:
    queue = connect(options="&longest_delay=0")
    never = make("quick", '{"n":"\uffff"}'.encode(), created_at=1, uuid="u1", id="i1")
    never = with_relations(never, "i1", Relations(unique="one"))
    queue.space.call("SET", *queue._keys("qd:unique:one"), "u1")
    queue.later("mail", never, 0.001)
    queue.later("mail", job(2), 0.002)
    eventually(lambda: not queue.outbox.forward_all(["mail"], unwanted) and queue.sizes("mail").ready == 1)
    assert number(take(queue, "mail")) == 2
    assert queue.space.call("EXISTS", *queue._keys("qd:unique:one")) == 0, "its lock is held"
    (stored,) = queue.space.call("HVALS", *queue._keys("queues:mail:failed"))
    record = json.loads(stored.partition(b"\n")[0])
    assert (record["error"], record["job"], record["uuid"]) == ("NeverTaken", "quick", "u1")
    assert "SQS accepts only text" in record["reason"]
    assert stored.partition(b"\n")[2] == never


def test_a_full_outbox_is_sent_in_time_slices(connect: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a keeper would not renew leases meanwhile, and a dispatch would take as long."""
    queue, sent, jobs = connect(), list[bytes](), [job(n) for n in range(200)]
    queue.outbox.note(["mail"])
    queue.space.call("RPUSH", *queue._keys("queues:mail"), *jobs)
    monkeypatch.setattr("qd.drivers.broker.outbox.BUDGET", 0.01)

    def slowly(name: str, some: Sequence[tuple[bytes, float]]) -> list[QdError | None]:
        sent.extend([payload for payload, _ in some])
        time.sleep(0.02)
        return [None] * len(some)

    monkeypatch.setattr(queue.backend, "send", slowly)
    assert queue.outbox.forward_all(["mail"], unwanted)
    assert len(sent) == FEW, "it continued after its time slice"
    assert queue.sizes("mail").ready == 200 - FEW
    assert beat(queue).more, "the keeper must continue at once"
    queue.outbox.try_to_forward(["mail"])
    assert len(sent) < 200
    eventually(lambda: not queue.outbox.forward_all(["mail"], unwanted))
    assert sent == jobs
    assert queue.space.call("EXISTS", *queue._keys("queues:mail:qd-resent", "queues:mail:qd-sender")) == 0


def test_the_slice_size_adapts_to_the_duration() -> None:
    assert [next_slice(jobs, 0.01) for jobs in (10, 60, 100)] == [20, 100, 100]
    assert [next_slice(jobs, 5.0) for jobs in (100, 20, 10)] == [50, 10, 10]
    assert next_slice(30, 0.5) == 30


def test_reserved_jobs_are_counted_right_after_others_ended(connect: Open) -> None:
    queue = connect()
    for n in range(3):
        queue.push("mail", job(n))
    for _ in range(2):
        assert queue.ack(take(queue, "mail"))
    assert queue.backend.reserve(["mail"], 0.0) is not None, "received and not yet leased"
    assert (queue.sizes("mail").ready, queue.sizes("mail").reserved) == (0, 1)


def test_a_missing_queue_does_not_block_others(connect: Open) -> None:
    """Neither in the outbox, where a wrong name may stay for hours, nor for a worker that serves both."""
    queue = connect(options="&longest_delay=0")
    for name in ("nope", "mail"):
        queue.later(name, job(1), 0.001)
    away = eventually(lambda: beat(queue).away)
    assert dict(away).keys() == {"nope"}
    assert "queue 'nope' does not exist" in dict(away)["nope"]
    eventually(lambda: beat(queue) and queue.sizes("mail").delayed == 0)
    held = queue.turn(None, ("nope", "mail")).reserved
    assert number(held) == 1
    assert held is not None
    with pytest.raises(ConnectionLost, match="does not exist"):
        queue.turn(held, ("nope", "mail"))
    assert queue.held(("mail",)) is None, "its ack waited for another queue"


def test_a_job_is_acked_before_the_next_one_is_requested(connect: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request may take long, and a worker that is killed meanwhile has finished its job."""
    queue, other, owned = connect(), connect(2), list[bytes | None]()
    queue.push("mail", job(1))
    held = take(queue, "mail")
    look = queue.backend.reserve

    def looked(queues: Sequence[str], seconds: float, wake: int = -1) -> Delivery | None:
        owned.append(other.owned("mail", queue.owner))
        return look(queues, seconds, wake)

    monkeypatch.setattr(queue.backend, "reserve", looked)
    assert queue.turn(held, ("mail",)).acked
    assert owned == [None]


def test_a_beat_without_a_request_to_sqs_does_not_report_recovery(
    connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = connect(0)
    assert beat(keeper).broke is None

    def away(*_: object) -> None:
        raise ConnectionLost("away")

    monkeypatch.setattr(keeper.backend, "counts", away)
    assert beat(keeper).broke is None, "waiting jobs are counted every 30 seconds"
    monkeypatch.setattr(keeper.outbox, "forward_all", away)
    assert beat(keeper).broke is not None
    monkeypatch.setattr(keeper.outbox, "forward_all", lambda *_: False)
    assert beat(keeper).broke is not None


def test_a_message_received_before_a_lost_control_connection_runs_if_still_reserved(
    connect: Open, sqs: Sqs, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = connect()
    monkeypatch.setattr(broker_queue, "SURELY", -1.0)
    for still in (True, False):
        queue.push("mail", job(1))
        assert nothing(queue), "it reads which queues are paused"

        def broken(*_: Any) -> Any:
            raise ConnectionLost("broken")

        with monkeypatch.context() as patched:
            patched.setattr(queue.space, "run", broken)
            with pytest.raises(ConnectionLost):
                queue.turn(None, ("mail",))
        assert queue._pending is not None
        if still:
            assert queue.turn(take(queue, "mail"), ("mail",)).acked
        else:
            queue.backend.messages.delete("mail", queue._pending.handle)
            assert nothing(queue, "mail")
