"""Python and the script on a Redis write the same reservation into a payload: byte for byte, or, if Python had to write the
object again because another program had scattered its keys, the same keys with the same bytes as values. Malformed
payloads are stored as failed once, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import qd
from qd.drivers.keyspace.queue import Bounds
from qd.drivers.redis.queue import RedisQueue
from qd.drivers.types import Reserved
from qd.errors import Malformed
from qd.payload.format import Payload, read
from qd.payload.reservation import Ending, answered, ending_of, original, replaced_mark
from qd.payload.splice import OURS, reserved_text
from tests.contract.conftest import ONE
from tests.support.payloads import VALID, malformed, odd, push_many
from tests.support.redis import Client, Seen

SCRIPTS = [next(Path(qd.__file__).parent.rglob(f"{name}.lua")) for name in ("fresh", "reservation")]
SCRIPT = "\n".join(path.read_text() for path in SCRIPTS)
ASK = """
local p, base = ARGV[1], ARGV[2]
local text, mark, start, length, before = fresh_text(p, base)
if not text then text, mark, start, length, before = other_text(p, base) end
return {text, mark, start, length, before}
"""
BASE = "Tok3nTok3n.1.7"
LAST = "Zz9Zz9Zz9Z.4.77."
SHARED = "Zz9Zz9Zz9Z.260.77."  # of lane 1

counts: st.SearchStrategy[Any] = st.one_of(
    st.integers(0, 3), st.sampled_from([2**53, 2**53 - 1, 2**53 + 1, -1, 1.5, "1", {}, [1], None, True])
)
OTHERS = [LAST + "0", LAST + "1", LAST + "2", LAST + "-", LAST + "t", SHARED + "1", SHARED + "2"]
marks = st.sampled_from([*OTHERS, "not a mark", 'a"b', "", 7, None])
tricky = ["x", "attempts", 'a"rsv":"b', "\\", "{", '"', ",", "}", '"attempts":3', ',"rsv":"a.1.1.1"']
entries = st.one_of(
    st.tuples(st.sampled_from(["attempts", "crashes", "exceptions", "held"]), counts),
    st.tuples(st.just("rsv"), marks),
    st.tuples(st.sampled_from(["uuid", "displayName", "id", "saved"]), st.sampled_from(tricky)),
    st.tuples(
        st.just("data"),
        st.sampled_from([{"attempts": 5, "rsv": LAST + "5"}, [], {}, ["attempts", "rsv"], "]}", [[["\\"]]], "x" * 700]),
    ),
)
styles = st.sampled_from([(",", ":", ""), (", ", ": ", ""), (" ,\n", " : ", " "), (",", ":", "\t" * 70)])


@pytest.fixture(scope="module")
def by_lua(shared_server):
    with shared_server.client() as client:
        yield lambda payload: evaluate(client, payload)


def evaluate(client: Client, payload: bytes) -> list[Any] | None:
    found = client.call("EVAL", SCRIPT + ASK, 0, payload, BASE)
    return found or None  # nil is returned as an empty list


def text_of(items: list[tuple[str, Any]], comma: str, colon: str, space: str) -> bytes:
    body = comma.join(f"{json.dumps(key)}{colon}{json.dumps(value)}" for key, value in items)
    return f"{{{space}{body}{space}}}{space}".encode()


pairs_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def same(by_lua: Any, payload: bytes) -> None:
    found, expected = reserved_text(payload, BASE), by_lua(payload)
    if found is not None:
        assert original(found.text, found.start, found.length, found.before) == payload
    if found is None:  # stored as failed at once; what the script reserves instead, its worker cannot read, and fails
        assert expected is None or readable(expected[0]) is None
    elif (pushed := readable(payload)) is None:
        assert readable(found.text) is None
        assert expected is None or readable(expected[0]) is None
    elif found.before[:1] != b"{":
        assert [found.text, found.mark.encode(), found.start, found.length, found.before] == expected
    else:
        mine, theirs = pairs_of(found.text), pairs_of(expected[0])
        if is_doubled(payload):  # the script may count by a mark that is not the last one
            mine, theirs = ({key: value for key, value in pairs.items() if key not in OURS} for pairs in (mine, theirs))
        assert mine == theirs
        assert read(found.text).rsv == found.mark
        ending = (pushed.rsv or "")[-1:]
        assert ending_of(found.before) == (ending if ending in set(Ending) else None)


def is_doubled(payload: bytes) -> bool:
    return len(json.loads(payload, object_pairs_hook=list)) > len(pairs_of(payload))


def readable(raw: bytes) -> Payload | None:
    try:
        return read(raw)
    except Malformed:
        return None


@example(items=[("attempts", 0), ("rsv", LAST + "0"), ("crashes", 0)], job=0, style=(",", ":", ""), cut=0)
@example(items=[("attempts", 2), ("crashes", 2**53), ("rsv", LAST + "2")], job=0, style=(",", ":", ""), cut=0)
@example(items=[("attempts", 2**53)], job=1, style=(",", ":", ""), cut=0)
@example(items=[("attempts", 2**53 + 1), ("rsv", LAST + "0"), ("attempts", 0)], job=0, style=(",", ":", ""), cut=0)
@example(items=[("rsv", LAST + "0"), ("attempts", {})], job=0, style=(",", ":", ""), cut=1)
@example(items=[("rsv", LAST + "t"), ("attempts", 2), ("data", {"rsv": 1})], job=3, style=(", ", ": ", ""), cut=0)
@given(
    items=st.lists(entries, max_size=10), job=st.integers(0, 10), style=styles, cut=st.sampled_from([0, 0, 0, 1, 3, 9])
)
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_python_and_script_reserve_a_payload_alike(by_lua, items, job, style, cut):
    raw = text_of([*items[:job], ("job", "x"), *items[job:]], *style)
    same(by_lua, raw[: len(raw) - cut])


pieces = [
    b'"attempts":1', b'"attempts" : 1', b',"crashes":2', b',"rsv":"' + LAST.encode() + b'1"', b'"rsv":7', b",", b"{",
    b"}", b"[", b"]", b'"', b"\\", b" ", b'"held":3', b'"exceptions":0', b'"attempts":007', b'"saved":"', b"\x00\xff",
    b',"attempts":0,"delay":null}', b"\n", b"x" * 600,
]  # fmt: skip


@given(parts=st.lists(st.sampled_from(pieces), max_size=24), whole=st.booleans())
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_python_and_script_treat_arbitrary_bytes_alike(by_lua, parts, whole):
    raw = b"".join(parts)
    same(by_lua, b"{" + raw + b"}" if whole else raw)


def test_python_and_script_reserve_known_payloads_alike(by_lua):
    for _, raw in [*odd(), *malformed(cut_every=11)]:
        same(by_lua, raw)
        if (held := reserved_text(raw, "Zz9Zz9Zz9Z.4.78")) is not None:
            same(by_lua, held.text)  # without an answer
            same(by_lua, answered(held.text, held.mark, exceptions=2))


def test_attempts_that_are_given_replace_those_of_the_payload():
    pushed = b'{"job":"t","data":{"n":1},"id":"x","attempts":0,"delay":null}'
    found = reserved_text(pushed, BASE, attempts=4)
    assert found is not None
    assert (found.mark, found.attempts) == (BASE + ".4", 4)
    job = read(found.text)
    assert (job.attempts, job.crashes, job.exceptions, job.rsv) == (4, 0, 0, found.mark)
    assert original(found.text, found.start, found.length, found.before) == pushed


def test_a_rewritten_payload_keeps_the_bytes_of_each_value():
    data = b'{ "n" : 1.50, "rsv":"no", "empty" : [ ], "big":9007199254740993, "\\u00e9" : "\\/" }'
    pushed = b' { "rsv" : "%bt", "attempts" : 2, "data" : %b, "job" : "t", "crashes":1 } \n' % (LAST.encode(), data)
    found = reserved_text(pushed, BASE)
    assert found is not None
    expected = b' {"data":%b,"job":"t","attempts":3,"crashes":1,"rsv":"%b.3"} \n' % (data, BASE.encode())
    assert found.text == expected
    assert original(found.text, found.start, found.length, found.before) == pushed
    assert (replaced_mark(found.before), ending_of(found.before)) == (LAST + "t", Ending.TIMED_OUT)
    again = reserved_text(answered(found.text, found.mark), BASE)
    assert again is not None
    assert again.text == expected.replace(b'"attempts":3', b'"attempts":4').replace(b'.3"}', b'.4"}')


def test_a_malformed_payload_stays_malformed_when_it_is_reserved():
    assert reserved_text(b'{"attempts":"3","job":"x"}', BASE) is None
    for raw in (
        b'{"job":"rsv","timeout":"3" }',
        b'{"crashes":"1","job":"x","crashes":1,"attempts":0 ,"rsv":"a.1.1.1"}',
    ):
        found = reserved_text(raw, BASE)
        assert found is not None
        assert readable(found.text) is None
        assert original(found.text, found.start, found.length, found.before) == raw


# --- malformed and odd payloads


def as_pushed(job: Reserved) -> bytes:
    return original(job.member, job.start, job.length, job.before)


@pytest.mark.parametrize("place", ONE, indirect=True)
@pytest.mark.leaves("queues:a:failed", "queues:a:failed_at")
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


@pytest.mark.parametrize("place", ONE, indirect=True)
@pytest.mark.leaves("queues:a:failed", "queues:a:failed_at")
def test_a_malformed_payload_does_not_block_the_next_job(place, queue: RedisQueue, seen: Seen):
    bad = [b"", b"hello", b'{"attempts":"3","job":"x"}', VALID[:100]]
    push_many(queue, [("a", raw, None) for raw in [*bad, VALID]])
    turn = queue.turn(None, ["a"])
    assert len(turn.malformed) == len(bad)
    assert turn.reserved is not None
    assert as_pushed(turn.reserved) == VALID
    assert sorted(buried.raw for buried in seen.failed("a")) == sorted(bad)
    assert all(buried.record["error"] == "Malformed" for buried in seen.failed("a"))
    assert queue.ack(turn.reserved)


@pytest.mark.parametrize("place", ONE, indirect=True)
@pytest.mark.leaves("queues:a:failed", "queues:a:failed_at")
def test_a_turn_buries_at_most_a_hundred_malformed_payloads(place, queue: RedisQueue, seen: Seen):
    push_many(queue, [("a", b"bad %d" % n, None) for n in range(150)] + [("a", VALID, None)])
    first, second = queue.turn(None, ["a"]), queue.turn(None, ["a"])
    assert (len(first.malformed), len(second.malformed)) == (100, 50)
    assert first.reserved is None
    assert second.reserved is not None
    assert queue.ack(second.reserved)


@pytest.mark.parametrize("place", ONE, indirect=True)
@pytest.mark.leaves("queues:a:failed", "queues:a:failed_at")
def test_a_turn_that_buries_enforces_the_limits_of_the_failed_store(place, connect, seen: Seen):
    queue = connect(keep=Bounds(5, 3600.0))
    seen.call("HSET", "a", "failed", "ancient", b'{"id":"ancient"}\nraw')
    seen.call("ZADD", "a", "failed_at", 1, "ancient")
    for n in range(9):
        queue.push("a", b"bad %d" % n)
        queue.turn(None, ["a"])
    assert [buried.raw for buried in seen.failed("a")] == [b"bad %d" % n for n in range(4, 9)]


@pytest.mark.parametrize("place", ONE, indirect=True)
@pytest.mark.leaves("queues:a:failed", "queues:a:failed_at")
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


hostile_counts: st.SearchStrategy[Any] = st.one_of(
    st.integers(0, 3), st.sampled_from([2**53, 2**53 + 1, -1, 1.5, "1", {}, [1], None, True])
)
hostile_marks: st.SearchStrategy[Any] = st.sampled_from(
    [LAST + "0", LAST + "1", LAST + "-", "not a mark", 'a"b', "", "a.b.c.d", 7, {}, None]
)
hostile_entries = st.one_of(
    st.tuples(st.sampled_from(["attempts", "crashes", "exceptions", "held"]), hostile_counts),
    st.tuples(st.just("rsv"), hostile_marks),
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


@pytest.mark.parametrize("place", ONE, indirect=True)
@pytest.mark.leaves("queues:a:failed", "queues:a:failed_at")
@example(items=[("attempts", 0), ("rsv", "Zz9Zz9Zz9Z.4.77.0"), ("crashes", 0)], job=0, style=(",", ":", ""))
@given(
    items=st.lists(hostile_entries, max_size=8),
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
        assert len(turn.malformed) == 1
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
