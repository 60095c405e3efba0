"""Malformed payloads through the real script: stored as failed once, byte for byte, with nothing left behind.

The tests act as the worker does: a payload that `read` rejects as Malformed is buried with the result of `original`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from qd.drivers.keyspace.queue import Bounds
from qd.drivers.redis.queue import RedisQueue
from qd.drivers.types import Reserved
from qd.errors import Malformed
from qd.payload.format import Payload, read
from qd.payload.reservation import answered, original
from tests.contract.conftest import ONE
from tests.support.payloads import VALID, malformed, odd
from tests.support.redis import Seen

pytestmark = [
    pytest.mark.parametrize("place", ONE, indirect=True),
    pytest.mark.leaves("queues:a:failed", "queues:a:failed_at"),
]


def readable(raw: bytes) -> Payload | None:
    try:
        return read(raw)
    except Malformed:
        return None


def as_pushed(job: Reserved) -> bytes:
    return original(job.member, job.start, job.length, job.before)


@pytest.mark.fault("24", "malformed payloads through the script that takes jobs", "each is kept once, byte for byte")
def test_each_malformed_payload_is_stored_raw_exactly_once(place, queue: RedisQueue, seen: Seen):
    for name, raw in malformed(cut_every=7):
        queue.push("a", raw)
        turn = queue.turn(None, ["a"])
        if turn.reserved is not None:
            assert readable(turn.reserved.member) is None, name
            assert queue.bury(turn.reserved, b'{"error":"Malformed"}', as_pushed(turn.reserved))
        assert [buried.raw for buried in seen.failed("a")] == [raw], name
        assert seen.everywhere("a").total() == 1, name
        assert (seen.owners("a"), seen.tokens("a")) == ({}, 0)
        seen.client.call("DEL", seen.key("a", "failed"), seen.key("a", "failed_at"))


def test_a_malformed_payload_does_not_block_the_next_job(place, queue: RedisQueue, seen: Seen):
    bad = [b"", b"hello", b'{"attempts":"3","job":"x"}', VALID[:100]]
    queue.push_many([("a", raw, None) for raw in [*bad, VALID]])
    turn = queue.turn(None, ["a"])
    assert turn.malformed == len(bad)
    assert turn.reserved is not None
    assert as_pushed(turn.reserved) == VALID
    assert sorted(buried.raw for buried in seen.failed("a")) == sorted(bad)
    assert all(buried.record["error"] == "Malformed" for buried in seen.failed("a"))
    assert queue.ack(turn.reserved)


def test_a_turn_buries_at_most_a_hundred_malformed_payloads(place, queue: RedisQueue, seen: Seen):
    queue.push_many([("a", b"bad %d" % n, None) for n in range(150)] + [("a", VALID, None)])
    first, second = queue.turn(None, ["a"]), queue.turn(None, ["a"])
    assert (first.malformed, second.malformed) == (100, 50)
    assert first.reserved is None
    assert second.reserved is not None
    assert queue.ack(second.reserved)


def test_a_turn_that_buries_enforces_the_limits_of_the_failed_store(place, connect, seen: Seen):
    queue = connect(keep=Bounds(5, 3600.0))
    seen.call("HSET", "a", "failed", "ancient", b'{"id":"ancient"}\nraw')
    seen.call("ZADD", "a", "failed_at", 1, "ancient")
    for n in range(9):
        queue.push("a", b"bad %d" % n)
        queue.turn(None, ["a"])
    assert [buried.raw for buried in seen.failed("a")] == [b"bad %d" % n for n in range(4, 9)]


@pytest.mark.parametrize(("name", "raw"), odd(), ids=[name for name, _ in odd()])
def test_an_odd_payload_is_returned_as_pushed(place, queue: RedisQueue, seen: Seen, name: str, raw: bytes):
    queue.push("a", raw)
    job = queue.turn(None, ["a"]).reserved
    assert job is not None
    assert as_pushed(job) == raw
    pushed, held = readable(raw), readable(job.member)
    assert (pushed is None) == (held is None)
    if pushed is not None and held is not None:
        assert held.rsv == job.mark
        assert (held.job, bytes(held.data)) == (pushed.job, bytes(pushed.data))
        assert readable(answered(job.member, job.mark, attempts=0)) is not None
    assert queue.ack(job)


# -- qd's keys at any position, as other programs may write them


LAST = "Zz9Zz9Zz9Z.4.77."
counts: st.SearchStrategy[Any] = st.one_of(
    st.integers(0, 3), st.sampled_from([2**53, 2**53 + 1, -1, 1.5, "1", {}, [1], None, True])
)
marks: st.SearchStrategy[Any] = st.sampled_from(
    [LAST + "0", LAST + "1", LAST + "-", "not a mark", 'a"b', "", "a.b.c.d", 7, {}, None]
)
entries = st.one_of(
    st.tuples(st.sampled_from(["attempts", "crashes", "exceptions", "held"]), counts),
    st.tuples(st.just("rsv"), marks),
    st.tuples(
        st.sampled_from(["uuid", "displayName", "id"]), st.sampled_from(["x", "attempts", 'a"rsv":"b', "\\", "{"])
    ),
    st.tuples(
        st.just("data"),
        st.sampled_from(
            [{"attempts": 5, "rsv": LAST + "5"}, [], {}, ["attempts", "rsv"], '"attempts":9}', "]}", [[["\\"]]]]
        ),
    ),
)


def text_of(items: list[tuple[str, Any]], comma: str, colon: str, space: str) -> bytes:
    body = comma.join(f"{json.dumps(key)}{colon}{json.dumps(value)}" for key, value in items)
    return f"{{{space}{body}{space}}}{space}".encode()


@example(items=[("attempts", 0), ("rsv", "Zz9Zz9Zz9Z.4.77.0"), ("crashes", 0)], job=0, style=(",", ":", ""))
@given(
    items=st.lists(entries, max_size=8),
    job=st.integers(0, 8),
    style=st.sampled_from([(",", ":", ""), (", ", ": ", ""), (" ,\n", " : ", " ")]),
)
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_scattered_keys_of_qd_never_harm_a_payload(place, queue: RedisQueue, seen: Seen, items, job, style):
    items.insert(min(job, len(items)), ("job", "x"))
    raw = text_of(items, *style)
    queue.push("a", raw)
    turn = queue.turn(None, ["a"])
    pushed = readable(raw)
    if turn.reserved is None:
        assert pushed is None
        assert turn.malformed == 1
        return
    held = readable(turn.reserved.member)
    assert as_pushed(turn.reserved) == raw
    assert (pushed is None) == (held is None)
    if pushed is not None and held is not None:
        assert held.rsv == turn.reserved.mark
        assert dict(items)["job"] == held.job
        assert (bytes(held.data), held.uuid, held.id) == (bytes(pushed.data), pushed.uuid, pushed.id)
        spent = held.attempts - pushed.attempts + held.crashes - pushed.crashes
        assert spent == 1 or (spent == 0 and 2**53 in (pushed.attempts, pushed.crashes))  # a full count stays full
    assert queue.ack(turn.reserved)
