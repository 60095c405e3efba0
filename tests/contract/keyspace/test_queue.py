"""The contract of base.Connector (sending, reserving, answering, inspecting), for every way to reach Redis."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from qd.drivers.base import Forgotten
from qd.drivers.keyspace.queue import Bounds
from qd.drivers.redis.queue import RedisQueue
from qd.drivers.types import Released, Reserved, Sizes, Turn, Unread
from qd.payload.format import read
from qd.payload.reservation import answered, original
from qd.store.base import keyspace_store
from qd.store.failed import FailedStore
from tests.contract.conftest import ONE
from tests.support.payloads import push_many
from tests.support.redis import Seen
from tests.support.waiting import eventually

FAILED = ("queues:*:failed", "queues:*:failed_at")
one_place = pytest.mark.parametrize("place", ONE, indirect=True)


def job(n: int, **more: object) -> bytes:
    """A payload as Laravel pushes it, identified by its ID."""
    fields = {
        "job": "t",
        "data": {"n": n},
        "createdAt": 1795225685,
        "id": f"id{n}",
        "attempts": 0,
        "delay": None,
    } | more
    return json.dumps(fields, separators=(",", ":")).encode()


def take(queue: RedisQueue, *queues: str) -> Reserved:
    """The next job; there must be one."""
    found = queue.turn(None, queues or ("a",)).reserved
    assert found is not None
    return found


def drain(queue: RedisQueue, *queues: str) -> list[str | None]:
    """The IDs of all ready jobs in order; each is acked with the next turn."""
    ids, done = [], None
    while (turn := queue.turn(done, queues or ("a",))).reserved is not None:
        assert turn.acked is (None if done is None else True)
        done = turn.reserved
        ids.append(read(done.member).id)
    assert turn.acked is not False
    return ids


def steal(seen: Seen, held: Reserved) -> None:
    """Remove the lease, as PHP's migrate or a keeper does after it expired."""
    assert seen.call("ZREM", held.queue, "reserved", held.member) == 1


# -- sending


def test_jobs_are_reserved_in_the_order_of_pushing(queue, seen):
    queue.push("a", job(1))
    push_many(queue, [("a", job(2), None), ("b", job(3), None), ("a", job(4), 0)])
    queue.push("a", job(5))
    assert drain(queue) == ["id1", "id2", "id4", "id5"]
    assert drain(queue, "b") == ["id3"]


def test_a_pushed_payload_is_stored_unchanged_with_one_token(queue, seen):
    queue.push("a", job(1))
    push_many(queue, [("a", job(n), None) for n in range(2, 5)])
    assert seen.ready("a") == [job(n) for n in range(1, 5)]
    assert seen.tokens("a") == 4


def test_a_push_that_needs_several_calls_keeps_the_order(queue, seen):
    push_many(queue, [("a", job(n), None) for n in range(2500)] + [("b", job(n), 60) for n in range(2500)])
    assert seen.ready("a") == [job(n) for n in range(2500)]
    assert len(seen.delayed("b")) == 2500


def test_pushing_no_jobs_does_nothing(queue, seen):
    push_many(queue, [])
    assert seen.every_key() == []


def test_a_delayed_job_is_due_after_its_delay_by_the_servers_clock(queue, seen):
    before = seen.now()
    queue.later("a", job(1), 1.5)
    push_many(queue, [("a", job(2), 0.25)])
    after, due = seen.now(), seen.delayed("a")
    for payload, delay in ((job(1), 1.5), (job(2), 0.25)):
        assert before + delay <= due[payload] <= after + delay + 0.001
    assert seen.tokens("a") == 1  # for the delay under a second: waiting workers poll again


@pytest.mark.parametrize("delay", [0.001, 0.02, 0.05])
def test_a_delayed_job_is_never_reserved_early(queue, seen, delay):
    queue.later("a", job(1), delay)
    (due,) = seen.delayed("a").values()

    def taken() -> Reserved | None:
        turn = queue.turn(None, ["a"])
        found: Reserved | None = turn.reserved
        assert found is not None or turn.next_due is not None
        return found

    held = eventually(taken, every=0.001)
    assert seen.now() >= due
    (lease,) = seen.reserved("a").values()
    assert lease - 30 >= due
    assert queue.ack(held)


def test_a_turn_returns_when_the_next_job_is_due(queue, seen):
    assert queue.turn(None, ["a", "b"]).next_due is None
    queue.later("a", job(1), 500)
    queue.later("b", job(2), 100)
    due = queue.turn(None, ["a", "b"]).next_due
    assert due is not None
    assert 70 < due <= 100.001


@one_place
def test_a_turn_moves_a_hundred_due_jobs_at_most(queue, seen):
    seen.call("ZADD", "a", "delayed", *[word for n in range(250) for word in (n, job(n))])
    held = take(queue)
    assert (read(held.member).id, len(seen.ready("a")), len(seen.delayed("a"))) == ("id0", 99, 150)
    assert queue.ack(held)
    assert drain(queue) == [f"id{n}" for n in range(1, 250)]


# -- reserving


def test_a_turn_acks_the_previous_job_and_reserves_the_next(queue, seen):
    push_many(queue, [("a", job(1), None), ("a", job(2), None)])
    first = queue.turn(None, ["a"])
    assert (first.acked, first.malformed, first.paused, first.next_due) == (None, (), (), None)
    assert first.reserved is not None
    assert list(seen.reserved("a")) == [first.reserved.member]
    assert seen.owners("a") == {"Tok3nTok3n/1": first.reserved.member}
    second = queue.turn(first.reserved, ["a"])
    assert second.acked is True
    assert second.reserved is not None
    assert list(seen.reserved("a")) == [second.reserved.member]
    last = queue.turn(second.reserved, ["a"])
    assert (last.acked, last.reserved) == (True, None)
    assert seen.every_key() == []


def test_a_turn_acks_a_job_of_a_different_queue(queue, seen):
    push_many(queue, [("b", job(1), None), ("a", job(2), None)])
    first = take(queue, "b")
    turn = queue.turn(first, ["a", "b"])
    assert turn.acked is True
    assert turn.reserved is not None
    assert turn.reserved.queue == "a"
    assert (seen.owners("b"), seen.reserved("b")) == ({}, {})
    assert queue.ack(turn.reserved)


def test_a_turn_reserves_nothing_from_a_shut_queue_and_still_acks_its_job(queue, seen):
    push_many(queue, [("a", job(1), None), ("a", job(2), None), ("b", job(3), None), ("c", job(4), None)])
    first = take(queue, "a", "b", "c")
    turn = queue.turn(first, ["a", "b", "c"], shut=("a", "c"))
    assert (turn.acked, turn.reserved and turn.reserved.queue, turn.paused) == (True, "b", ("a",))
    idle = queue.turn(turn.reserved, ["a", "b", "c"], shut=("a", "c"))
    assert (idle.acked, idle.reserved, idle.paused) == (True, None, ("a", "c"))
    assert (seen.reserved("a"), len(seen.ready("a")), len(seen.ready("c"))) == ({}, 1, 1)
    last = queue.turn(None, ["a", "b", "c"], shut=("a", "b")).reserved
    assert last is not None
    assert last.queue == "c"
    assert queue.ack(last)
    assert queue.ack(take(queue, "a"))


def test_a_lease_starts_now_by_the_servers_clock(queue, seen):
    queue.push("a", job(1))
    before, held, after = seen.now(), take(queue), seen.now()
    assert before + 30 - 0.001 <= seen.reserved("a")[held.member] <= after + 30
    assert queue.ack(held)


def test_a_reserve_changes_only_the_count_of_attempts(queue, seen):
    queue.push("a", job(1))
    held = take(queue)
    assert held.mark == "Tok3nTok3n.1.1.1"
    unit = b'"attempts":1,"rsv":"Tok3nTok3n.1.1.1"'
    assert held.member == job(1).replace(b'"attempts":0', unit)
    assert held.member[held.start : held.start + held.length] == unit
    assert original(held.member, held.start, held.length, held.before) == job(1)
    assert queue.ack(held)


@one_place
def test_ten_thousand_identical_payloads_are_ten_thousand_jobs(queue, seen):
    bare = b'{"job":"t","data":[],"attempts":0}'
    push_many(queue, [("a", bare, None)] * 10_000)
    marks, done = set(), None
    while (turn := queue.turn(done, ["a"])).reserved is not None:
        assert turn.acked is not False
        done = turn.reserved
        marks.add(done.mark)
    assert len(marks) == 10_000


@one_place
def test_a_thousand_identical_delayed_payloads_are_a_thousand_jobs(queue, seen):
    bare = b'{"job":"t","data":[],"attempts":0}'
    for _ in range(2):
        push_many(queue, [("a", bare, 60.0)] * 500)
    members = set(seen.delayed("a"))
    assert len(members) == 1000
    assert {member.rstrip() for member in members} == {bare}
    assert all(json.loads(member) == json.loads(bare) for member in members)


def test_identical_payloads_can_be_reserved_at_the_same_time(connect, seen):
    one, two = connect(1), connect(2)
    push_many(one, [("a", job(1), None)] * 2)
    held = [take(one), take(two)]
    assert len(seen.reserved("a")) == 2
    assert [one.ack(held[0]), two.ack(held[1])] == [True, True]


@one_place
def test_identical_released_payloads_are_separate_jobs(connect, seen):
    one, two = connect(1), connect(2)
    push_many(one, [("a", b'{"job":"t","data":[],"attempts":0}', None)] * 2)
    for queue in (one, two):
        held = take(queue)
        assert queue.release(held, Released(answered(held.member, held.mark), 60.0))
    assert len(seen.delayed("a")) == 2


AWKWARD = (
    b'{"empty":[],"none":{},"big":9007199254740993,"round":100000000000000,"e":1.0e-7,"text":"\\u00e9 \xc3\xa9 \\/ \\"",'
    b'"attempts":7,"rsv":"x","nested":[[{"attempts":9}]]}'
)


@pytest.mark.parametrize(
    "shape", [b'{"job":"t","data":%b,"attempts":0}', b'{"attempts":0,"data":%b,"job":"t","tags":["x"]}']
)
def test_the_data_of_a_fifth_attempt_has_the_pushed_bytes(queue, seen, shape):
    queue.push("a", shape % AWKWARD)
    for attempt in range(1, 6):
        held = take(queue)
        payload = read(held.member)
        assert (payload.attempts, payload.crashes, bytes(payload.data)) == (attempt, 0, AWKWARD)
        if attempt < 5:
            assert queue.release(held, Released(answered(held.member, held.mark, exceptions=attempt, held=5)))
    assert payload.exceptions == 4
    assert queue.ack(held)


def test_a_reservation_without_an_answer_costs_a_crash_and_no_attempt(queue, seen):
    queue.push("a", job(1))
    for crashes in range(3):
        payload = read(take(queue).member)
        assert (payload.attempts, payload.crashes) == (1, crashes)
        (member,) = seen.reserved("a")
        assert queue.give_back("a", "Tok3nTok3n/1", member, Released(member))


def test_a_crash_is_counted_after_another_program_rewrote_the_payload(queue, seen):
    queue.push("a", job(1))
    held = take(queue)
    scattered = json.dumps(json.loads(held.member), sort_keys=True).encode()  # different order, spaces after the colons
    assert queue.release(held, Released(scattered))
    again = take(queue)
    payload = read(again.member)
    assert (payload.attempts, payload.crashes, payload.rsv) == (1, 1, again.mark)
    assert original(again.member, again.start, again.length, again.before) == scattered
    assert again.member.count(b'"rsv"') == 1
    assert queue.ack(again)


def test_queues_are_served_in_the_order_given(queue, seen):
    push_many(queue, [("a", job(1), None), ("b", job(2), None), ("c", job(3), None), ("b", job(4), None)])
    assert drain(queue, "b", "c", "a") == ["id2", "id4", "id3", "id1"]


@pytest.mark.leaves("queues:a:paused")
def test_a_paused_queue_is_skipped_and_named(queue, seen):
    push_many(queue, [("a", job(1), None), ("b", job(2), None)])
    seen.call("SET", "a", "paused", "{}")
    turn = queue.turn(None, ["a", "b"])
    assert (turn.paused, turn.reserved and turn.reserved.queue) == (("a",), "b")
    idle = queue.turn(turn.reserved, ["a", "b"])
    assert (idle.acked, idle.paused, idle.reserved) == (True, ("a",), None)
    assert seen.ready("a") == [job(1)]


# -- answering


def test_an_ack_removes_the_job(queue, seen):
    queue.push("a", job(1))
    assert queue.ack(take(queue))
    assert seen.every_key() == []


def test_an_ack_of_a_lost_lease_fails(queue, seen):
    push_many(queue, [("a", job(1), None), ("a", job(2), None)])
    lost = take(queue)
    steal(seen, lost)
    assert queue.ack(lost) is False
    assert seen.owners("a") == {}
    turn = queue.turn(lost, ["a"])
    assert turn.acked is False
    assert turn.reserved is not None  # and the worker continues
    assert queue.ack(turn.reserved)


@pytest.mark.parametrize(("head", "order"), [(False, [2, 3, 1]), (True, [1, 2, 3])])
def test_a_released_job_goes_to_the_tail_or_to_the_head(queue, seen, head, order):
    push_many(queue, [("a", job(n), None) for n in (1, 2, 3)])
    assert queue.release(take(queue), Released(job(1), head=head))
    assert seen.ready("a") == [job(n) for n in order]
    assert (seen.reserved("a"), seen.owners("a"), seen.tokens("a")) == ({}, {}, 3)


def test_a_job_released_with_a_delay_is_due_after_it(queue, seen):
    queue.push("a", job(1))
    held, before = take(queue), seen.now()
    assert queue.release(held, Released(job(1), 7.5))
    assert before + 7.5 <= seen.delayed("a")[job(1)] <= seen.now() + 7.501
    assert (seen.reserved("a"), seen.owners("a"), seen.ready("a"), seen.tokens("a")) == ({}, {}, [], 0)


def test_a_release_with_a_short_delay_wakes_a_waiting_worker(queue, seen):
    queue.push("a", job(1))
    assert queue.release(take(queue), Released(job(1), 0.5))
    assert seen.tokens("a") == 1


@pytest.mark.parametrize("answer", ["tail", "head", "delay", "bury"])
def test_an_answer_to_a_lost_lease_adds_nothing(queue, seen, answer):
    queue.push("a", job(1))
    lost = take(queue)
    steal(seen, lost)
    ways: dict[str, Callable[[], bool]] = {
        "tail": lambda: queue.release(lost, Released(job(1))),
        "head": lambda: queue.release(lost, Released(job(1), head=True)),
        "delay": lambda: queue.release(lost, Released(job(1), 60)),
        "bury": lambda: queue.bury(lost, b"{}", job(1)),
    }
    assert ways[answer]() is False
    assert seen.every_key() == []


@pytest.mark.leaves(*FAILED)
def test_a_buried_job_is_stored_with_its_record_and_its_bytes(queue, seen):
    queue.push("a", job(1))
    held = take(queue)
    before = seen.now()
    assert queue.bury(held, b'{"why":"because\\n"}', b"raw \n bytes \x00\xff")
    (buried,) = seen.failed("a")
    assert (buried.id, buried.record, buried.raw) == (held.mark, {"why": "because\n"}, b"raw \n bytes \x00\xff")
    (at,) = [float(score) for score in seen.call("ZRANGE", "a", "failed_at", 1, -1, "WITHSCORES")[1::2]]
    assert before - 1 <= at <= seen.now()
    assert (seen.reserved("a"), seen.owners("a"), seen.ready("a")) == ({}, {}, [])


@pytest.mark.leaves(*FAILED)
def test_the_failed_store_keeps_the_newest_up_to_max_count(connect, seen):
    queue = connect(keep=Bounds(3, 3600.0))
    for n in range(6):
        queue.push("a", job(n))
        assert queue.bury(take(queue), b"{}", job(n))
    assert [buried.raw for buried in seen.failed("a")] == [job(3), job(4), job(5)]


@pytest.mark.leaves(*FAILED)
def test_the_failed_store_deletes_old_records(connect, seen):
    queue = connect(keep=Bounds(1000, 3600.0))
    for n in range(150):
        seen.call("HSET", "a", "failed", f"old{n}", b"{}\nraw")
        seen.call("ZADD", "a", "failed_at", seen.now() - 3601, f"old{n}")
    for left in (51, 2):  # at most a hundred per call, and the new one
        queue.push("a", job(left))
        assert queue.bury(take(queue), b"{}", job(left))
        assert len(seen.failed("a")) == left


@pytest.mark.leaves(*FAILED)
def test_the_failed_store_keeps_the_newest_up_to_max_bytes(connect, seen):
    queue = connect(keep=Bounds(1000, 3600.0, 3000))
    for n, size in enumerate((1000, 1000, 900, 500, 4000, 10)):
        queue.push("a", job(n))
        assert queue.bury(take(queue), b"{}", b"x" * size)
        kept = [len(buried.raw) for buried in seen.failed("a")]
        assert kept == ([1000], [1000, 1000], [1000, 1000, 900], [1000, 900, 500], [4000], [10])[n]


@pytest.mark.leaves(*FAILED)
def test_dropped_records_are_counted_and_aged_ones_are_not(connect, seen):
    queue = connect(keep=Bounds(3, 3600.0, 3000))
    assert queue.forget_aged("a", 3600.0, 10) == Forgotten(0, 0)
    for n in range(2):
        seen.call("HSET", "a", "failed", f"old{n}", b"{}\nraw")
        seen.call("ZADD", "a", "failed_at", seen.now() - 3601, f"old{n}")
    for n, size in enumerate((10, 10, 10, 10, 10, 2995)):
        queue.push("a", job(n))
        assert queue.bury(take(queue), b"{}", b"x" * size)
        assert len(seen.failed("a")) == (1, 2, 3, 3, 3, 1)[n]
    assert queue.forget_aged("a", 3600.0, 10) == Forgotten(0, 5)
    (fill,) = FailedStore(keyspace_store(queue)).fills(["a"])
    assert (fill.bytes, fill.dropped) == (2998, 5)
    assert seen.now() - fill.dropped_at < 60


@pytest.mark.leaves(*FAILED)
def test_the_counter_of_dropped_records_expires_after_the_retention_period(connect, seen):
    queue = connect(keep=Bounds(1, 3600.0))
    for n in range(3):
        queue.push("a", job(n))
        assert queue.bury(take(queue), b"{}", job(n))
    store = FailedStore(keyspace_store(queue))
    store.forget("a", list(store.records(["a"])))
    assert queue.forget_aged("a", 3600.0, 10) == Forgotten(0, 2)
    assert sorted(seen.call("ZRANGE", "a", "failed_at", 0, -1)) == [b"dropped", b"dropped_at"]
    seen.call("ZADD", "a", "failed_at", -(seen.now() - 3601), "dropped_at")
    assert queue.forget_aged("a", 3600.0, 10) == Forgotten(0, 0)
    assert seen.every_key() == []


@one_place
@pytest.mark.leaves(*FAILED)
def test_a_failed_store_has_no_max_count_by_default(connect, seen):
    queue = connect()
    assert queue.keep == Bounds(None, 30 * 86400.0, 64 << 20)
    push_many(queue, [("a", b"no payload", None)] * 10_001)
    while queue.turn(None, ["a"]).malformed:
        pass
    assert len(seen.failed("a")) == 10_001
    queue = connect(keep=Bounds(None, 3600.0, 300))
    queue.push("a", job(1))
    assert queue.bury(take(queue), b"{}", b"x" * 290)
    assert len(seen.failed("a")) == 10_001 - 100 + 1, "one call deletes a hundred"


@pytest.mark.leaves(*FAILED)
def test_an_uncounted_failed_store_is_counted_once(connect, seen):
    queue = connect(keep=Bounds(1000, 3600.0, 3000))
    for n in range(5):
        seen.call("HSET", "a", "failed", f"old{n}", b"x" * 1000)
        seen.call("ZADD", "a", "failed_at", seen.now() - 10 + n, f"old{n}")
    queue.push("a", job(1))
    assert queue.bury(take(queue), b"{}", b"y" * 500)
    assert seen.call("ZRANGEBYSCORE", "a", "failed_at", "(0", "+inf")[:2] == [b"old3", b"old4"]
    assert seen.call("ZSCORE", "a", "failed_at", "bytes") == b"-2503"


@pytest.mark.leaves(*FAILED)
def test_a_turn_returns_queue_record_and_cause_of_each_malformed_payload(connect, seen):
    queue = connect()
    push_many(queue, [("a", b"no payload", None), ("b", b"[1]", None), ("a", b"neither", None)])
    found = list[Unread]()
    while turn := queue.turn(None, ["a", "b"]).malformed:
        found += turn
    kept = [(name, buried) for name in ("a", "b") for buried in seen.failed(name)]
    assert sorted(found) == sorted(Unread(name, kept.record["id"], kept.record["reason"]) for name, kept in kept)
    assert [unread.queue for unread in sorted(found)] == ["a", "a", "b"]


@pytest.mark.leaves(*FAILED)
def test_a_disabled_failed_store_keeps_nothing(connect, seen):
    queue = connect(keep=Bounds(0, 3600.0))
    push_many(queue, [("a", b"no payload", None), ("a", job(1), None)])
    held = queue.turn(None, ["a"])
    assert len(held.malformed) == 1
    assert queue.bury(held.reserved, b"{}", b"raw")
    assert seen.every_key() == []


# -- after a broken call


def test_held_returns_the_job_of_a_lost_reply(queue, seen):
    assert queue.held(["a", "b"]) is None
    queue.push("b", job(1))
    taken = take(queue, "a", "b")
    assert queue.held(["a", "b"]) == taken
    assert queue.held(["a"]) is None
    assert queue.ack(taken)
    assert queue.held(["a", "b"]) is None


def test_held_returns_no_job_of_another_worker(connect, seen):
    one, two = connect(1), connect(2)
    one.push("a", job(1))
    held = take(one)
    assert two.held(["a"]) is None
    assert one.ack(held)


def test_held_ignores_marks_in_the_arguments(queue, seen):
    inside = {"attempts": 4, "rsv": "Zz9Zz9Zz9Z.4.77.4"}
    queue.push("a", b'{"attempts":0,"job":"t","data":%b}' % json.dumps(inside, separators=(",", ":")).encode())
    held = take(queue)
    again = queue.held(["a"])
    assert again is not None
    assert again.mark == held.mark
    assert queue.ack(again)


def test_a_note_of_a_death_is_returned_once(queue, seen):
    queue.note_death("a", "Tok3nTok3n.1.7", b"killed by SIGSEGV")
    assert 0 < seen.call("TTL", "a", "deaths") <= 86400
    assert queue.death("a", "Tok3nTok3n.1.8") is None
    assert queue.death("a", "Tok3nTok3n.1.7") == b"killed by SIGSEGV"
    assert queue.death("a", "Tok3nTok3n.1.7") is None


@pytest.mark.leaves("queues:a:deaths")
def test_notes_of_deaths_are_bounded_and_the_newest_stays(queue, seen):
    for n in range(1001):
        queue.note_death("a", f"Tok3nTok3n.1.{n}", b"killed by SIGKILL")
    assert seen.call("HLEN", "a", "deaths") == 501
    assert queue.death("a", "Tok3nTok3n.1.1000") == b"killed by SIGKILL"


# -- inspecting


@pytest.mark.leaves(*FAILED)
def test_sizes_count_jobs_by_state(queue, seen):
    assert queue.sizes("a") == Sizes(0, 0, 0, 0, None)
    push_many(queue, [("a", job(n), None) for n in range(5)] + [("a", job(9), 60.0)])
    assert queue.bury(take(queue), b"{}", job(0))
    held = take(queue)
    sizes = queue.sizes("a")
    assert (sizes.ready, sizes.delayed, sizes.reserved, sizes.failed) == (3, 1, 1, 1)
    assert sizes.oldest_age == pytest.approx(max(0, seen.now() - 1795225685), abs=20)
    assert queue.ack(held)


@pytest.mark.leaves(*FAILED)
def test_clear_deletes_waiting_jobs_and_no_running_ones(queue, seen):
    push_many(queue, [("a", job(n), None) for n in range(5)] + [("a", job(9), 60.0), ("b", job(1), None)])
    assert queue.bury(take(queue), b"{}", job(0))
    held = take(queue)
    assert queue.clear("a") == 4
    assert (seen.ready("a"), seen.delayed("a"), seen.tokens("a")) == ([], {}, 0)
    assert list(seen.reserved("a")) == [held.member]
    assert (len(seen.failed("a")), seen.ready("b")) == (1, [job(1)])
    assert queue.ack(held)


# -- large payloads


def large(n: int, size: int) -> bytes:
    return job(n, data="x" * (size - len(job(n, data=""))))


@one_place
@pytest.mark.leaves(*FAILED)
def test_a_payload_that_is_too_large_is_buried_without_being_sent_to_the_worker(connect, seen):
    queue, most = connect(max_payload=128 << 10), 2 << 20
    php = rb'{"job":"Illuminate\\Queue\\CallQueuedHandler@call","data":"%b","attempts":0}' % (b"x" * most)
    too_large = [large(2, most + 1), large(3, 8 << 20), b"x" * (most + 1)]
    seen.call("RPUSH", "a", "", large(1, most), too_large[0], php, too_large[1], job(4), too_large[2])
    turns = list[Turn]()
    for _ in range(3):
        turns.append(queue.turn(turns[-1].reserved if turns else None, ["a"]))
    assert [read(turn.reserved.member).id if turn.reserved else None for turn in turns] == ["id1", "id4", None]
    assert [len(turn.malformed) for turn in turns] == [0, 2, 1]
    found = seen.failed("a")
    assert [buried.raw for buried in found] == too_large
    assert {buried.record["error"] for buried in found} == {"Malformed"}
    assert found[1].record["reason"] == f"{8 << 20} bytes, more than {most} (sixteen times max_payload)"
    assert seen.ready("a") == [php]  # it is for PHP, which has no such limit


@one_place
def test_a_limit_of_0_accepts_any_size(connect, seen):
    queue = connect()
    queue.push("a", large(1, 32 << 20))
    assert queue.ack(take(queue))
