"""Batches: creation, counting with the answers of their jobs, and callbacks. Each end counts once, even after failures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qd.drivers.base import Batches
from qd.drivers.keyspace import records
from qd.drivers.redis.queue import RedisQueue
from qd.drivers.types import Callback, Count, Entry, NewBatch
from qd.errors import BatchFinished, ServerRefused, UnknownBatch
from qd.payload.build import make
from qd.payload.format import read
from tests.contract.conftest import ONE
from tests.contract.keyspace.test_queue import job, take
from tests.support.redis import Seen

one_place = pytest.mark.parametrize("place", ONE, indirect=True)
pytestmark = pytest.mark.leaves("qd:batch:*")
DAY, MONTH = 86400, 30 * 86400


def callback(name: str, delay: float = 0.0) -> Callback:
    raw = make("t", b"{}", uuid=name, id=name, created_at=1_000_000_000, retry_until=1_000_000_060)
    moments = (raw.index(b"1000000060"), raw.index(b"1000000000"))
    return Callback("c", raw, delay, moments)


ALL = {name: callback(name) for name in ("then", "catch", "finally")}


def new(*, allow: bool = False, callbacks: Any = ALL) -> NewBatch:
    return NewBatch("B", "import", allow, callbacks)


def entries(*numbers: int, queue: str = "a") -> list[Entry]:
    return [Entry(queue, f"u{n}", job(n), 0.0) for n in numbers]


def end(queue: RedisQueue, n: int, how: Any = "done") -> None:
    """A worker acks a job, which counts as the end of the batch job u`n`."""
    queue.push("b", job(n))
    assert queue.ack(take(queue, "b"), [Count("B", f"u{n}", how, "a T.1.1.1")])


def called(seen: Seen) -> list[str | None]:
    return [read(raw).id for raw in seen.ready("c")]


def counts(batches: Batches) -> tuple[int, int, int]:
    state = batches.state("B")
    assert state is not None
    return state.total, state.pending, state.failed


def is_cancelled(batches: Batches) -> bool:
    state = batches.state("B")
    assert state is not None
    return state.cancelled_at is not None


def ttl(seen: Seen, kind: str = "") -> int:
    found: int = seen.client.call("TTL", f"{seen.prefix}qd:batch:B{kind}")
    return found


def test_a_batch_and_its_jobs_are_created_in_one_step(queue, seen):
    queue.batches.send(new(), [*entries(1, 2), *entries(3, queue="b"), Entry("a", "u4", job(4), 60.0)])
    assert (seen.ready("a"), seen.ready("b"), list(seen.delayed("a"))) == ([job(1), job(2)], [job(3)], [job(4)])
    assert (seen.tokens("a"), seen.tokens("b")) == (2, 1)
    state = queue.batches.state("B")
    assert (state.name, state.total, state.pending, state.failed, state.progress) == ("import", 4, 4, 0, 0)
    assert state.created_at == pytest.approx(seen.now(), abs=20)
    assert (state.cancelled_at, state.finished_at) == (None, None)
    assert MONTH - 60 < ttl(seen) <= MONTH
    assert MONTH - 60 < ttl(seen, ":pending") <= MONTH


def test_then_is_sent_after_all_jobs_succeeded_followed_by_finally(queue, seen):
    queue.batches.send(new(), entries(1, 2, 3))
    end(queue, 1)
    end(queue, 2)
    assert (called(seen), counts(queue.batches), queue.batches.state("B").progress) == ([], (3, 1, 0), 66)
    end(queue, 3)
    assert (called(seen), counts(queue.batches)) == (["then", "finally"], (3, 0, 0))
    assert queue.batches.state("B").finished_at is not None
    assert queue.batches.state("B").progress == 100
    assert DAY - 60 < ttl(seen) <= DAY


def test_the_times_of_a_callback_count_from_its_dispatch(queue, seen):
    queue.batches.send(new(callbacks={"then": callback("then", 60.0)}), entries(1))
    before = seen.now()
    end(queue, 1)
    ((raw, due),) = seen.delayed("c").items()
    payload = json.loads(raw)
    assert payload["createdAt"] == pytest.approx(before, abs=20)
    assert payload["retryUntil"] - payload["createdAt"] == 60
    assert due == pytest.approx(before + 60, abs=20)
    for moment, made in (("createdAt", b"1000000000"), ("retryUntil", b"1000000060")):
        raw = raw.replace(b"%d" % payload[moment], made)
    assert raw == callback("then").payload


def test_a_repeated_end_counts_once(queue, seen):
    queue.batches.send(new(), entries(1, 2))
    for _ in range(3):
        end(queue, 1)
    assert (called(seen), counts(queue.batches)) == ([], (2, 1, 0))
    for _ in range(3):
        end(queue, 2)
    assert called(seen) == ["then", "finally"]


def test_the_first_failure_cancels_and_sends_catch_once(queue, seen):
    queue.batches.send(new(), entries(1, 2, 3))
    assert not is_cancelled(queue.batches)
    end(queue, 1, "failed")
    assert (called(seen), is_cancelled(queue.batches)) == (["catch"], True)
    end(queue, 2, "failed")
    end(queue, 3, "skipped")
    assert (called(seen), counts(queue.batches)) == (["catch", "finally"], (3, 0, 2))
    assert MONTH - 60 < ttl(seen) <= MONTH
    assert MONTH - 60 < ttl(seen, ":failed") <= MONTH


def test_allowed_failures_do_not_cancel(queue, seen):
    queue.batches.send(new(allow=True), entries(1, 2))
    end(queue, 1, "failed")
    assert (called(seen), is_cancelled(queue.batches)) == (["catch"], False)
    end(queue, 2)
    assert called(seen) == ["catch", "finally"]


def test_then_is_sent_after_the_last_failed_job_was_retried_successfully(queue, seen):
    queue.batches.send(new(allow=True), entries(1, 2))
    end(queue, 1, "failed")
    end(queue, 2)
    end(queue, 1, "failed")  # retried, and failed again
    assert called(seen) == ["catch", "finally"]
    end(queue, 1)
    assert (called(seen), counts(queue.batches)) == (["catch", "finally", "then"], (2, 0, 0))
    end(queue, 1)
    assert called(seen) == ["catch", "finally", "then"]


def test_a_batch_with_a_skipped_job_has_not_succeeded(queue, seen):
    queue.batches.send(new(), entries(1, 2))
    assert queue.batches.cancel("B")
    end(queue, 1)
    end(queue, 2, "skipped")
    assert called(seen) == ["finally"]


def test_a_batch_cancelled_during_its_last_job_has_succeeded(queue, seen):
    queue.batches.send(new(), entries(1))
    assert [queue.batches.cancel("B") for _ in range(2)] == [True, False]
    end(queue, 1)
    assert called(seen) == ["then", "finally"]
    assert not queue.batches.cancel("B")


def test_a_resumed_batch_is_not_cancelled_again(queue, seen):
    queue.batches.send(new(), entries(1, 2))
    end(queue, 1, "failed")
    seen.client.call("HDEL", f"{seen.prefix}qd:batch:B", "cancelled_at")  # as retry.lua does
    assert not is_cancelled(queue.batches)
    end(queue, 2, "failed")
    assert not is_cancelled(queue.batches)  # only the first failure cancels
    assert queue.batches.failures("B") == {"u1": ("a", "T.1.1.1"), "u2": ("a", "T.1.1.1")}


def test_jobs_can_be_added_while_a_batch_runs(queue, seen):
    queue.batches.send(new(), entries(1))
    queue.batches.add("B", entries(2, 3))
    end(queue, 1)
    assert (called(seen), counts(queue.batches)) == ([], (3, 2, 0))
    end(queue, 2)
    end(queue, 3)
    assert called(seen) == ["then", "finally"]


def test_nothing_can_be_added_to_a_finished_or_unknown_batch(queue, seen):
    reasons = "it has expired .a day after its end, or 30 days with failed jobs., or is on another connection or server"
    with pytest.raises(UnknownBatch, match=f"no batch 'B' exists: {reasons}; `qd batch list` shows"):
        queue.batches.add("B", entries(1))
    queue.batches.send(new(callbacks={}), entries(1))
    end(queue, 1)
    with pytest.raises(BatchFinished, match="batch 'B' is finished"):
        queue.batches.add("B", entries(2))
    assert seen.ready("a") == [job(1)]


def test_an_empty_batch_has_succeeded(queue, seen):
    queue.batches.send(new(), [])
    assert called(seen) == ["then", "finally"]


def test_the_end_of_a_job_of_a_deleted_batch_is_ignored(queue, seen):
    end(queue, 1)
    assert queue.batches.state("B") is None
    assert seen.every_key() == []


# -- batches sent in several calls


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "CHUNK", 2)


@one_place
def test_a_batch_does_not_finish_while_jobs_are_still_being_sent(small, queue, seen, monkeypatch):
    """A fast worker may leave no pending jobs between two calls of the producer."""
    calls, call = list[int](), records.KeptBatches._call

    def then_end(self: Any, id: str, jobs: list[Entry], *rest: Any) -> None:
        call(self, id, jobs, *rest)
        for entry in jobs[: 2 if len(calls) < 2 else 0]:
            end(queue, int(entry.uuid[1:]))
        calls.append(len(jobs))
        assert called(seen) == []

    monkeypatch.setattr(records.KeptBatches, "_call", then_end)
    queue.batches.send(new(), entries(1, 2, 3, 4, 5))
    assert (calls, counts(queue.batches)) == ([2, 2, 1], (5, 1, 0))
    end(queue, 5)
    assert called(seen) == ["then", "finally"]


@one_place
def test_the_last_call_finishes_a_batch_whose_jobs_have_all_ended(small, queue, seen, monkeypatch):
    call = records.KeptBatches._call

    def end_before(self: Any, id: str, jobs: list[Entry], *rest: Any) -> None:
        call(self, id, jobs, *rest)
        for entry in jobs:
            end(queue, int(entry.uuid[1:]))

    monkeypatch.setattr(records.KeptBatches, "_call", end_before)
    queue.batches.send(new(), entries(1, 2, 3))
    assert called(seen) == ["then", "finally"]


@one_place
def test_a_batch_whose_producer_died_between_two_calls_sends_no_callback(small, queue, seen, monkeypatch):
    call, calls = records.KeptBatches._call, list[int]()

    def die(self: Any, *rest: Any) -> None:
        if calls:
            raise KeyboardInterrupt
        calls.append(1)
        call(self, *rest)

    monkeypatch.setattr(records.KeptBatches, "_call", die)
    with pytest.raises(KeyboardInterrupt):
        queue.batches.send(new(), entries(1, 2, 3))
    end(queue, 1)
    end(queue, 2)
    assert (called(seen), counts(queue.batches)) == ([], (2, 0, 0))
    assert queue.batches.state("B").finished_at is None
    assert MONTH - 60 < ttl(seen) <= MONTH


@one_place
def test_a_batch_of_thousands_of_jobs(queue, seen):
    queue.batches.send(new(), entries(*range(2500)))
    assert (counts(queue.batches), len(seen.ready("a"))) == ((2500, 2500, 0), 2500)
    assert seen.ready("a") == [job(n) for n in range(2500)]


# -- rejected


@one_place
def test_a_key_of_the_wrong_type_for_a_job_sends_nothing(queue, seen):
    seen.client.call("SET", "queues:b", "no list")
    with pytest.raises(ServerRefused, match="WRONGTYPE"):
        queue.batches.send(new(), [*entries(1), *entries(2, queue="b")])
    seen.client.call("DEL", "queues:b")
    assert seen.every_key() == []


@one_place
def test_a_key_of_the_wrong_type_for_a_callback_rejects_the_answer_and_counts_nothing(queue, seen):
    queue.batches.send(new(), entries(1))
    seen.client.call("SET", "queues:c", "no list")
    held = take(queue)
    before = seen.dump()
    for _ in range(2):
        with pytest.raises(ServerRefused, match="WRONGTYPE"):
            queue.ack(held, [Count("B", "u1")])
        assert seen.dump() == before
    seen.client.call("DEL", "queues:c")
    assert queue.ack(held, [Count("B", "u1")])
    assert called(seen) == ["then", "finally"]
