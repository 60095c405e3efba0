"""One suite for every driver, first half: the calls of base.Connector, in this process, against the real server."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from qd.config.load import load
from qd.dispatch.batch import Batch
from qd.drivers.base import Connector, KeeperConnector
from qd.drivers.keyspace.sending import left_by
from qd.drivers.types import Count, Effect, Entry, NewBatch, Released, Reserved
from qd.errors import ConnectionLost, QdError, ServerBusy, ServerRefused
from qd.events import Listeners
from qd.payload.build import make, with_more_relations
from qd.payload.format import read
from qd.payload.reservation import answered, original
from qd.store.base import keyspace_store
from qd.store.failed import FailedStore
from qd.store.locks import Places
from tests.contract.kinds import Tried, drained, job_of, number, take
from tests.support.payloads import push_many
from tests.support.waiting import eventually

AWAY = (ConnectionLost, ServerBusy, ServerRefused)


def answer(held: Reserved) -> bytes:
    """The payload as a worker releases it."""
    return answered(held.member, held.mark)


def put(tried: Tried, queue: Connector, *numbers: int, name: str = "default") -> None:
    push_many(queue, [(name, job_of("quick", n), None) for n in numbers])


def in_order(tried: Tried, held: Iterable[Reserved], expected: list[int]) -> bool:
    """Whether the jobs have this order. If the driver declares no order, only that they are complete."""
    found = [number(each) for each in held]
    assert sorted(found) == sorted(expected)
    return found == expected or not tried.can("order")


def test_gaps_are_declared_with_their_meaning(tried: Tried) -> None:
    limits = tried.connect().limits
    assert set(limits) == tried.kind.limits
    assert all(words and "\n" not in words for words in limits.values())


# -- order


def test_jobs_are_reserved_in_order(tried: Tried) -> None:
    queue = tried.connect()
    for n in (1, 2):
        queue.push("default", job_of("quick", n))
    put(tried, queue, *range(3, 13))
    queue.push("default", job_of("quick", 13))
    assert in_order(tried, drained(queue, 13), list(range(1, 14)))
    assert tried.empty()


def test_a_driver_serves_queues_in_the_order_given(tried: Tried) -> None:
    queue = tried.connect()
    put(tried, queue, 1, name="low")
    put(tried, queue, 2, name="high")
    put(tried, queue, 3, name="default")
    put(tried, queue, 4, name="high")
    found = [number(held) for held in drained(queue, 4, "high", "default", "low")]
    assert (found if tried.can("order") else [*sorted(found[:2]), *found[2:]]) == [2, 4, 3, 1]


# -- delay


def test_a_delayed_job_is_not_reserved_before_it_is_due(tried: Tried) -> None:
    queue, producer = tried.connect(), tried.connect(slot=2)
    before = time.monotonic()
    producer.later("default", job_of("quick", 1), 2.0)
    push_many(producer, [("default", job_of("quick", 2), 3600), ("default", job_of("quick", 3), None)])
    taken: dict[int, float] = {}
    for held in drained(queue, 2):
        taken[number(held)] = time.monotonic() - before
        assert read(held.member).attempts == 1
    assert set(taken) == {1, 3}
    assert taken[1] >= 2.0
    assert (tried.sizes().delayed, tried.sizes().ready) == (1, 0)
    tried.connect().clear("default")


# -- attempts and answers


def test_each_reserve_after_a_release_counts_an_attempt(tried: Tried) -> None:
    queue = tried.connect()
    payload = job_of("quick", 1)
    queue.push("default", payload)
    for attempt in (1, 2, 3):
        held = take(queue)
        found = read(held.member)
        assert (found.attempts, found.crashes, bytes(found.data)) == (attempt, 0, b'{"n": 1}')
        if attempt == 1:
            assert original(held.member, held.start, held.length, held.before) == payload
        if attempt < 3:
            assert queue.release(held, Released(answer(held)))
    assert queue.ack(held)
    assert tried.empty()


def test_a_released_job_goes_to_the_tail(tried: Tried) -> None:
    queue = tried.connect()
    put(tried, queue, 1, 2, 3)
    held = take(queue)
    assert queue.release(held, Released(answer(held)))
    assert in_order(tried, drained(queue, 3), [2, 3, 1])


def test_a_job_that_is_handed_back_goes_to_the_head(tried: Tried) -> None:
    queue = tried.connect()
    put(tried, queue, 1, 2, 3)
    held = take(queue)
    assert queue.release(held, Released(answer(held), head=True))
    assert in_order(tried, drained(queue, 3), [1, 2, 3] if tried.can("head") else [2, 3, 1])


def test_a_job_released_with_a_delay_runs_after_it(tried: Tried) -> None:
    queue = tried.connect()
    put(tried, queue, 1)
    held, before = take(queue), time.monotonic()
    assert queue.release(held, Released(answer(held), 2.0))
    put(tried, queue, 2)
    taken: dict[int, tuple[int, float]] = {}
    for held in drained(queue, 2):
        taken[number(held)] = read(held.member).attempts, time.monotonic() - before
    assert (taken[1][0], taken[2][0]) == (2, 1)
    assert taken[1][1] >= 2.0
    assert tried.empty()


def test_an_ack_removes_the_job_and_a_second_one_fails(tried: Tried) -> None:
    queue = tried.connect()
    put(tried, queue, 1)
    held = take(queue)
    assert tried.sizes().reserved == 1
    assert queue.ack(held) is True
    assert queue.ack(held) is False
    assert tried.empty()


@pytest.mark.parametrize("how", ["release", "delay", "bury"])
def test_an_answer_after_the_ack_adds_nothing(tried: Tried, how: str) -> None:
    queue = tried.connect()
    put(tried, queue, 1)
    held = take(queue)
    assert queue.ack(held)
    if how == "bury":
        assert queue.bury(held, b"{}", job_of("quick", 1)) is False
    else:
        assert queue.release(held, Released(answer(held), 60 if how == "delay" else 0)) is False
    assert tried.empty()
    assert tried.sizes().failed == 0


def test_every_answer_frees_the_lock_places_of_its_attempt(tried: Tried) -> None:
    """Also the answer of a keeper. A place acquired by a later attempt stays."""
    queue = tried.connect()
    store, space = keyspace_store(queue), queue.kept
    lock, slots = Places("qd:lock:one", 1, 60), Places("qd:slots:two", 2, 60)

    def held() -> tuple[Reserved, str, tuple[Effect, ...]]:
        put(tried, queue, 1)
        job = take(queue)
        owner = read(job.member).uuid or ""
        assert lock.take(store, owner, job.mark) == slots.take(store, owner, job.mark) == 0
        return job, owner, left_by(*space, owner)

    def dead(job: Reserved, effects: tuple[Effect, ...]) -> bool:
        keeping = cast(KeeperConnector, tried.connect(token="Keep3rKeep"))
        return keeping.give_back("default", "Tok3nTok3n/1", job.member, Released(answer(job)), effects)

    ways: list[Callable[[Reserved, tuple[Effect, ...]], bool]] = [
        lambda job, effects: queue.ack(job, effects),
        lambda job, effects: queue.bury(job, b"{}", answer(job), effects),
        dead,
    ]
    for way in ways:
        job, owner, effects = held()
        assert len(effects) == 4
        assert way(job, effects)
        assert left_by(*space, owner) == ()
        assert lock.take(store, "another", "mark") == 0
        assert lock.free(store, "another", "mark")
    again = take(queue)
    owner = read(again.member).uuid or ""
    assert lock.take(store, owner, "an attempt before") == 0
    effects = left_by(*space, owner)
    assert lock.take(store, owner, "a later attempt") == 0
    assert queue.ack(again, effects)
    assert lock.take(store, "another", "mark") > 0
    assert lock.free(store, owner, "a later attempt")
    assert not store.fields(f"qd:places:{owner}")


def test_a_buried_job_is_stored_and_does_not_run(tried: Tried) -> None:
    queue, payload = tried.connect(), job_of("quick", 1)
    queue.push("default", payload)
    put(tried, queue, 2)
    held = take(queue)
    record = {"uuid": read(payload).uuid, "job": "quick", "error": "ValueError", "reason": "no", "attempts": 1}
    assert queue.bury(held, json.dumps(record).encode(), payload)
    assert [number(held) for held in drained(queue, 1)] == [2]
    assert tried.empty()
    assert tried.sizes().failed == 1
    (kept,) = tried.failed()
    assert (kept["queue"], kept["job"], kept["error"], kept["payload"]) == (
        "default",
        "quick",
        "ValueError",
        payload.decode(),
    )


def test_failed_jobs_beyond_the_limit_are_dropped_and_counted(tried: Tried) -> None:
    tried.shop.config("[failed]\nmax_count = 2\n")
    queue = tried.connect()
    put(tried, queue, 1, 2, 3, 4, 5)
    for _ in range(5):
        assert queue.bury(take(queue), b"{}", b"{}")
    assert tried.sizes().failed == 2
    (fill,) = FailedStore(keyspace_store(queue)).fills(["default"])
    assert (fill.bytes, fill.dropped) == (10, 3)
    assert fill.dropped_at is not None
    assert tried.empty()


def test_a_batch_reports_how_many_failed_jobs_cannot_be_retried(tried: Tried, caplog: pytest.LogCaptureFixture) -> None:
    tried.shop.config("[failed]\nmax_count = 2\n")
    queue = tried.connect()
    settings = load(tried.shop.root / "qd.toml", environ=tried.shop.env())
    sender = SimpleNamespace(connector=lambda name: queue, _settings=lambda: settings, _listeners=Listeners())
    batch = Batch("B", cast(Any, sender), queue.settings.name)
    ids = ["u1", "u2", "u3", "u4", "u5"]
    made = [make("boom", b'{"n":1}', uuid=id, id=id, created_at=int(time.time())) for id in ids]
    jobs = {id: with_more_relations(raw, read(raw), batch="B") for id, raw in zip(ids, made, strict=True)}
    queue.batches.send(NewBatch("B", "import", True, {}), [Entry("default", id, raw, 0.0) for id, raw in jobs.items()])
    for _ in range(4):
        held = take(queue)
        uuid = read(held.member).uuid or ""
        assert queue.bury(held, b"{}", jobs[uuid], [Count("B", uuid, "failed", f"default {held.mark}")])
    last = take(queue)
    assert queue.ack(last, [Count("B", read(last.member).uuid or "", "failed", "")]), "cancelled: it has no record"
    assert batch.dropped == 3
    assert batch.retry_failed() == 2
    message = "batch B: 3 of its failed jobs cannot be retried, their records are gone: `then` will not run"
    assert [line.message for line in caplog.records if line.name == "qd.batches"] == [message]
    assert batch.dropped == 3, "jobs that were sent again are not lost"
    held = take(queue)
    count, first = read(held.member).failed_before
    assert (count, first is not None and abs(time.time() - first) < 600) == (1, True)
    uuid = read(held.member).uuid or ""
    assert queue.bury(held, b"{}", jobs[uuid], [Count("B", uuid, "failed", f"default {held.mark}")])
    assert batch.dropped == 3
    assert batch.retry_failed() == 1, "a job that failed again is retried again"
    assert len(list(drained(queue, 2))) == 2
    assert tried.empty()


# -- many


def many(tried: Tried, count: int) -> None:
    """Push `count` jobs, count them, reserve the first and clear the others."""
    queue = tried.connect()
    for at in range(0, count, 10_000):
        put(tried, queue, *range(at, min(at + 10_000, count)))
    assert tried.sizes().ready == count
    held = take(queue)
    assert number(held) == 0 or not tried.can("order")
    assert queue.release(held, Released(answer(held)))
    held = take(queue)
    assert queue.clear("default") == count - 1
    assert (tried.sizes().ready, tried.sizes().reserved) == (0, 1)
    assert queue.ack(held)
    assert tried.empty()


def test_thousands_of_waiting_jobs(tried: Tried) -> None:
    many(tried, tried.kind.many)


@pytest.mark.slow
def test_a_million_waiting_jobs(tried: Tried) -> None:
    many(tried, 50 * tried.kind.many)


def test_clear_deletes_only_waiting_jobs_of_the_queue(tried: Tried) -> None:
    queue = tried.connect()
    put(tried, queue, 1, 2, 3)
    queue.later("default", job_of("quick", 4), 600)
    put(tried, queue, 5, name="other")
    held = take(queue)
    found = tried.sizes()
    assert (found.ready, found.delayed, found.reserved, tried.sizes("other").ready) == (2, 1, 1, 1)
    left = 0 if tried.can("clear") else 1
    assert queue.clear("default") == 3 - left
    found = tried.sizes()
    assert (found.ready, found.delayed, found.reserved, tried.sizes("other").ready) == (0, left, 1, 1)
    assert queue.ack(held)
    assert [number(held) for held in drained(queue, 1, "other")] == [5]


def test_concurrent_workers_reserve_each_job_once(tried: Tried) -> None:
    count = min(200, tried.kind.many)
    put(tried, tried.connect(), *range(count))
    taken: list[list[int]] = [[], [], [], []]

    def work(slot: int) -> None:
        queue, done = tried.connect(slot + 1), None
        while (turn := queue.turn(done, ["default"])).reserved is not None or done is not None:
            done = turn.reserved
            if done is not None:
                taken[slot].append(number(done))
        queue.close()

    threads = [threading.Thread(target=work, args=(slot,)) for slot in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert Counter(n for each in taken for n in each) == Counter(range(count))
    assert tried.empty()


# -- waiting


def in_a_wait(tried: Tried, wake: int) -> threading.Thread:
    """A thread that waits a minute for a job of `default` or `other`."""
    queue = tried.connect(7)
    assert queue.turn(None, ["default", "other"]).reserved is None
    thread = threading.Thread(target=lambda: queue.wait(["default", "other"], 60, wake), daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("what", ["a job", "a signal", "a signal before"])
def test_a_wait_ends_with_a_job_or_a_signal(tried: Tried, what: str) -> None:
    read_end, write_end = os.pipe()
    try:
        if what == "a signal before":
            os.write(write_end, b"x")
        thread = in_a_wait(tried, read_end)
        if what == "a job":
            put(tried, tried.connect(), 1, name="other")
        elif what == "a signal":
            os.write(write_end, b"x")
        thread.join(30)
        assert not thread.is_alive()
    finally:
        os.close(read_end)
        os.close(write_end)


def test_a_broken_connection_is_reopened(tried: Tried) -> None:
    """Its calls raise, and only `held` reports their result."""
    queue, unsure = tried.connect(), False
    put(tried, queue, 1, 2)
    tried.served.restart()

    def taken() -> Reserved | None:
        nonlocal unsure
        try:
            found = (queue.held(["default"]) if unsure else None) or queue.turn(None, ["default"]).reserved
            unsure = False
            return found
        except AWAY:
            unsure = True
            return None

    held = eventually(taken, 60)
    assert number(held) == 1 or not tried.can("order")
    assert queue.ack(held)
    assert [number(held) for held in drained(queue, 1)] == [2] or not tried.can("order")


# --- payloads


TEXTS = {
    "unicode": "Grüße, 世界, \U0001f600, e\u0301, \u200f\u202e, \u2028, \x7f, \x01",
    "a megabyte": "é" * 500_000,
    "quotes": "\"\\'`;-- {} [] %s $1 :x ?",
    "php's damage": '{"empty":[],"none":{},"big":9007199254740993}',
}


def test_identical_payloads_are_separate_jobs(tried: Tried) -> None:
    one, two = tried.connect(1), tried.connect(2)
    payload = b'{"job":"quick","data":{"n":1},"attempts":0}'
    push_many(one, [("default", payload, None)] * 5)
    first, second = take(one), take(two)
    assert first.mark != second.mark
    assert tried.sizes().reserved == 2
    assert (one.ack(first), two.ack(second)) == (True, True)
    assert len(list(drained(one, 3))) == 3
    assert tried.empty()


def test_identical_delayed_payloads_are_separate_jobs(tried: Tried) -> None:
    queue = tried.connect()
    payload = b'{"job":"quick","data":{"n":1},"attempts":0}'
    push_many(queue, [("default", payload, 1.0)] * 3)
    queue.later("default", payload, 1.0)
    held = list(drained(queue, 4))
    assert len({each.mark for each in held}) == 4
    pushed = [original(each.member, each.start, each.length, each.before) for each in held]
    assert {each.rstrip() for each in pushed} == {payload}, "only white space after a payload may differ"
    assert tried.empty()


@pytest.mark.parametrize("text", TEXTS)
def test_a_job_gets_the_data_that_was_sent(tried: Tried, text: str) -> None:
    queue, sent = tried.connect(), {"n": 1, "text": tried.fitting(TEXTS[text])}
    payload = job_of("read", 1, text=sent["text"])
    queue.push("default", payload)
    held = take(queue)
    assert json.loads(bytes(read(held.member).data)) == sent
    assert original(held.member, held.start, held.length, held.before) == payload
    assert queue.release(held, Released(answered(held.member, held.mark)))
    again = take(queue)
    assert json.loads(bytes(read(again.member).data)) == sent
    assert queue.ack(again)


@pytest.mark.parametrize("raw", [False, True])
def test_raw_unicode_is_delivered_unchanged(tried: Tried, raw: bool) -> None:
    queue = tried.connect()
    data = json.dumps({"n": 1, "text": TEXTS["unicode"]}, ensure_ascii=not raw)
    payload = b'{"uuid":"u","job":"read","data":%s,"id":"i","attempts":0}' % data.encode()
    queue.push("default", payload)
    held = take(queue)
    assert bytes(read(held.member).data) == data.encode()
    assert queue.ack(held)


def test_the_error_for_a_payload_that_is_too_large_has_its_size(tried: Tried) -> None:
    """If the driver has a limit; otherwise two megabytes are accepted."""
    queue, payload = tried.connect(), job_of("read", 1, text="x" * (2 << 20))
    if tried.kind.largest:
        with pytest.raises(QdError, match=str(len(payload))):
            queue.push("default", payload)
    else:
        queue.push("default", payload)
        held = take(queue)
        assert original(held.member, held.start, held.length, held.before) == payload
        assert queue.ack(held)
    assert tried.empty()
