"""Locks of unique jobs: acquired in the step that sends, freed only by their owner, and removed with cleared jobs."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from qd.drivers.redis.queue import RedisQueue
from qd.drivers.types import Free, Hold, Outgoing, Released
from qd.errors import QdError
from tests.contract.conftest import ONE
from tests.contract.keyspace.test_queue import job, take
from tests.support.payloads import push_many

LOCK = "shop.charge:order:42"
one_place = pytest.mark.parametrize("place", ONE, indirect=True)


def unique(n: int, *, delay: float = 0.0, lock: str = LOCK, hold: float = 60.0, queue: str = "a") -> Outgoing:
    payload = job(n, uuid=f"id{n}", qd={"unique": lock})
    return Outgoing(queue, payload, delay, lock, f"id{n}", hold)


def lock_of(seen, name: str = LOCK) -> str | None:
    found = seen.client.call("GET", f"{seen.prefix}qd:unique:{name}")
    return found.decode() if found is not None else None


def test_a_second_unique_job_is_not_sent_and_the_first_is_named(queue, seen):
    assert queue.post([unique(1)]) == [None]
    assert queue.post([unique(2)]) == ["id1"]
    assert queue.post([unique(3, delay=60)]) == ["id1"]
    assert (queue.sizes("a").ready, queue.sizes("a").delayed) == (1, 0)
    assert queue.free(LOCK, "id2") is False
    assert queue.free(LOCK, "id1") is True
    assert queue.post([unique(4, delay=60)]) == [None]
    assert queue.sizes("a").delayed == 1


def test_each_of_many_unique_jobs_has_its_own_answer(queue, seen):
    plain = [Outgoing("a", job(9)), Outgoing("b", job(8), 60.0)]
    sent = [unique(1), plain[0], unique(2), unique(3, lock="other"), plain[1], unique(4, queue="b")]
    assert queue.post(sent) == [None, None, "id1", None, None, "id1"]
    assert (queue.sizes("a").ready, queue.sizes("b").delayed, queue.sizes("b").ready) == (3, 1, 0)


def test_the_lock_lasts_for_the_delay_of_the_job_plus_its_duration(queue, seen):
    queue.post([unique(1, delay=100.0, hold=50.0)])
    assert 120_000 < seen.client.call("PTTL", f"{seen.prefix}qd:unique:{LOCK}") <= 150_000


def test_the_end_of_the_job_frees_only_its_own_lock(queue, seen):
    queue.post([unique(1)])
    held = take(queue)
    assert queue.ack(held, [Free(LOCK, "id1")])
    assert lock_of(seen) is None
    queue.push("a", job(3))
    held = take(queue)
    queue.post([unique(2)])
    assert queue.ack(held, [Free(LOCK, "id1")])
    assert lock_of(seen) == "id2"


def test_reserving_or_releasing_the_job_renews_its_lock(queue, seen):
    queue.post([unique(1, hold=50.0)])
    key = f"{seen.prefix}qd:unique:{LOCK}"
    seen.client.call("EXPIRE", key, 40)
    held = take(queue)
    assert seen.client.call("TTL", key) > 1000  # a day: the payload has no other duration
    assert queue.release(held, Released(held.member, 60.0), [Hold(LOCK, "id1", 210.0)])
    assert 100 < seen.client.call("TTL", key) <= 210


@pytest.mark.parametrize(("hold", "seconds"), [(10**30, 3_153_600_000), ("1.2.3", 86_400)])
def test_a_forged_lock_duration_does_not_block_a_worker(queue, seen, hold, seconds):
    payload = job(1, uuid="id1", qd={"unique": LOCK, "hold": "HOLD"}).replace(b'"HOLD"', str(hold).encode())
    assert queue.post([Outgoing("a", payload, 0.0, LOCK, "id1", 60.0)]) == [None]
    held = take(queue)
    assert seconds - 60 < seen.client.call("TTL", f"{seen.prefix}qd:unique:{LOCK}") <= seconds
    assert queue.ack(held, [Free(LOCK, "id1")])


@pytest.mark.parametrize("spoilt", ["", "delayed", "notify"])
def test_a_rejected_unique_job_leaves_no_lock(queue, seen, spoilt):
    seen.call("SET", "b", spoilt, "x")
    with pytest.raises(QdError, match="is a string and not a"):
        queue.post([unique(1, queue="b", delay=0.5 if spoilt else 0.0)])
    assert lock_of(seen) is None
    seen.call("DEL", "b", spoilt)
    queue.clear("b")
    assert queue.post([unique(2)]) == [None]
    assert lock_of(seen) == "id2"


def test_clearing_a_queue_frees_the_locks_of_its_jobs(queue, seen):
    queue.post([unique(1, delay=60), unique(2, lock="x"), Outgoing("a", job(3))])
    assert queue.clear("a") == 3
    assert (lock_of(seen), lock_of(seen, "x")) == (None, None)


def test_clearing_a_queue_leaves_other_locks(queue, seen):
    """A payload may have anything in its arguments, and its lock may have a new owner."""
    queue.post([unique(1, queue="b")])
    queue.push("a", job(7, uuid="id7", data={"unique": LOCK}, qd={"unique": LOCK}))
    assert queue.clear("a") == 1
    assert lock_of(seen) == "id1"


def test_a_long_queue_is_cleared_in_steps(queue, seen):
    push_many(queue, [("a", job(n), None) for n in range(2500)] + [("a", job(n), 60.0) for n in range(1500)])
    assert queue.clear("a") == 4000
    assert queue.sizes("a").ready == queue.sizes("a").delayed == 0


@one_place
def test_one_of_many_concurrent_producers_sends(connect, seen):
    answers: list[list[str | None]] = []

    def produce(queue: RedisQueue, first: int) -> None:
        answers.append(queue.post([unique(first + n, lock=f"l{n}") for n in range(50)]))

    threads = [threading.Thread(target=produce, args=(connect(slot), slot * 100)) for slot in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(50):
        answers_for_n = Counter(answer[n] for answer in answers)
        assert answers_for_n[None] == 1
        assert len(answers_for_n) == 2
    assert connect().sizes("a").ready == 50


# -- one round trip


@one_place
def test_many_queues_and_delays_are_one_write_and_one_read(queue, seen, monkeypatch):
    queue.push("c", job(0))
    reads: list[int] = []
    real = queue.connection.read_all

    def read_all(count):
        reads.append(count)
        return real(count)

    monkeypatch.setattr(queue.connection, "read_all", read_all)
    sent = [Outgoing("abc"[n % 3], job(n), float(n % 2 * 60)) for n in range(3000)] + [unique(9000), unique(9001)]
    answers = queue.post(sent)
    assert answers == [None] * 3001 + ["id9000"]
    assert sum(reads) - reads[0] <= reads[0]  # at most once more, for scripts that the server had not loaded
    assert len(reads) <= 2
    assert queue.post(sent[:3000]) == [None] * 3000
    assert len(reads) <= 3


@one_place
def test_scripts_are_loaded_once_after_a_flush(queue, seen):
    push_many(queue, [("a", job(n), None) for n in range(10)])
    seen.client.call("SCRIPT", "FLUSH")
    assert (
        queue.post([Outgoing("a", job(n)) for n in range(2500)] + [unique(1), Outgoing("b", job(1), 9.0)])
        == [None] * 2502
    )
    assert queue.sizes("a").ready == 2511
