"""The keeper's beat, the script alone: leases renewed and never made, the expired and the due moved, tokens, the report."""

from __future__ import annotations

import json

import pytest

from qd.payload.format import read
from tests.contract.keyspace.test_queue import drain, job, one_place, steal, take
from tests.support.keeper import beat


def expire(seen, held) -> None:
    seen.call("ZADD", held.queue, "reserved", "XX", seen.now() - 1, held.member)


def test_a_beat_with_nothing_to_do_leaves_no_key(queue, seen):
    done = beat(queue, "a", "b", slots=[1, 2])
    assert done[1:] == ("", "", -1, False, 0, [], [], [])
    assert done.now == pytest.approx(seen.now(), abs=30)


def test_the_leases_of_live_workers_are_renewed_and_no_others(connect, seen):
    queues = [connect(1), connect(2), connect(1, token="Other0ther")]
    queues[0].push_many([("a", job(n), None) for n in range(3)])
    held = [take(queue) for queue in queues]
    for one in held:
        seen.call("ZADD", "a", "reserved", "XX", seen.now() + 15, one.member)
    before = seen.now()
    assert beat(queues[0], "a", slots=[1]).lost == []
    leases = seen.reserved("a")
    assert before + 30 - 0.001 <= leases[held[0].member] <= seen.now() + 30.001
    assert all(leases[one.member] <= before + 15 for one in held[1:])
    assert all(queue.ack(one) for queue, one in zip(queues, held, strict=True))


def test_a_beat_that_does_not_renew_leaves_leases_alone(queue, seen):
    queue.push("a", job(1))
    held = take(queue)
    before = seen.reserved("a")
    beat(queue, "a", slots=[1], renew=False)
    assert seen.reserved("a") == before
    assert queue.ack(held)


def test_a_renewal_makes_no_lease_and_tells_which_one_is_lost(queue, seen):
    queue.push("a", job(1))
    lost = take(queue)
    steal(seen, lost)
    assert beat(queue, "a", slots=[1]).lost == ["1:1"]
    assert seen.reserved("a") == {}
    assert queue.ack(lost) is False


def test_a_lost_lease_names_its_own_turn_whatever_the_arguments_say(queue, seen):
    queue.turn(None, ["a"])
    queue.push("a", b'{"data":{"rsv":"Other0ther.1.99.1"},"attempts":0,"job":"t"}')
    lost = take(queue)
    steal(seen, lost)
    assert beat(queue, "a", slots=[1]).lost == ["1:2"]
    assert queue.ack(lost) is False


def test_an_expired_reservation_goes_back_and_its_owner_is_forgotten(connect, seen):
    dead, alive = connect(1), connect(2)
    dead.push_many([("a", job(1), None), ("a", job(2), None)])
    lost, held = take(dead), take(alive)
    expire(seen, lost)
    done = beat(alive, "a", slots=[2])
    assert (done.reclaimed, done.lost) == (1, [])
    assert seen.ready("a") == [lost.member]
    assert seen.owners("a") == {"Tok3nTok3n/2": held.member}
    assert seen.tokens("a") == 1
    again = alive.turn(held, ["a"]).reserved
    assert again is not None
    assert (read(again.member).attempts, read(again.member).crashes) == (1, 1)
    assert alive.ack(again)


def test_a_late_ack_after_a_reclaim_is_no_success_and_takes_nothing(connect, seen):
    slow, other = connect(1), connect(2)
    slow.push("a", job(1))
    late = take(slow)
    expire(seen, late)
    beat(other, "a", slots=[2])
    again = take(other)
    assert slow.ack(late) is False
    assert list(seen.reserved("a")) == [again.member]
    assert other.ack(again)


def test_nothing_is_reclaimed_by_a_keeper_that_may_not(queue, seen):
    queue.push("a", job(1))
    held = take(queue)
    expire(seen, held)
    assert beat(queue, "a", reclaim=False).reclaimed == 0
    assert list(seen.reserved("a")) == [held.member]
    assert queue.ack(held)


def test_a_live_worker_is_renewed_before_anything_is_reclaimed(queue, seen):
    queue.push("a", job(1))
    held = take(queue)
    expire(seen, held)
    assert beat(queue, "a", slots=[1]).reclaimed == 0
    assert queue.ack(held)


@one_place
def test_a_beat_reclaims_a_hundred_and_comes_again_for_the_rest(queue, seen):
    seen.call("ZADD", "a", "reserved", *[word for n in range(150) for word in (1, job(n))])
    first, second = beat(queue, "a"), beat(queue, "a")
    assert [(one.reclaimed, one.more) for one in (first, second)] == [(100, True), (50, False)]
    assert len(seen.ready("a")) == 150


def test_what_is_due_is_moved_with_a_token_each(queue, seen):
    queue.push_many([("a", job(n), 60.0) for n in range(3)] + [("b", job(9), 90.0)])
    for n in range(3):
        seen.call("ZADD", "a", "delayed", seen.now() - 3 + n, job(n))
    done = beat(queue, "a", "b")
    assert seen.ready("a") == [job(0), job(1), job(2)]
    assert (seen.tokens("a"), seen.delayed("a")) == (3, {})
    assert 60_000 < done.due_ms <= 90_001
    assert drain(queue) == ["id0", "id1", "id2"]


@one_place
def test_a_beat_moves_so_many_due_jobs_and_says_when_more_are(queue, seen):
    seen.call("ZADD", "a", "delayed", *[word for n in range(25) for word in (n + 1, job(n))])
    told = [beat(queue, "a", move=10).more for _ in range(4)]
    assert told == [True, True, False, False]
    assert seen.ready("a") == [job(n) for n in range(25)]


def test_queues_that_wait_for_somebody_are_told(connect, seen):
    queue = connect(1)
    queue.push_many([(name, job(n), None) for name in "abc" for n in range(2)] + [("d", job(4), 60.0)])
    held = queue.turn(None, ["b"]).reserved
    seen.client.call("SET", queue.settings.prefix + "queues:c:paused", "{}")
    assert beat(queue, "b", "c", "d", "a", slots=[1]).waiting == ["a"]
    assert queue.ack(held)
    seen.client.call("DEL", queue.settings.prefix + "queues:c:paused")
    assert beat(queue, "b", "c", "d", "a", slots=[1]).waiting == ["b", "c", "a"]
    for name in "abcd":
        queue.clear(name)


def test_ready_jobs_without_tokens_get_some(queue, seen):
    seen.call("RPUSH", "a", "", *[job(n) for n in range(5)])  # a plain RPUSH, an old Laravel
    beat(queue, "a", tokens=3)
    assert seen.tokens("a") == 3
    beat(queue, "a", tokens=3)
    assert seen.tokens("a") == 5


def test_tokens_left_over_are_taken_away(queue, seen):
    seen.call("RPUSH", "a", "notify", *["1"] * 1000)
    seen.call("RPUSH", "a", "", job(1))
    beat(queue, "a")
    assert seen.tokens("a") == 1


@pytest.mark.leaves("qd:*")
def test_a_report_stands_under_its_master_with_the_moment(queue, seen):
    beat(queue, "a", report=json.dumps({"host": "h", "workers": []}))
    (token, said) = seen.client.text("HGETALL", queue.settings.prefix + "qd:masters")
    assert token == "Tok3nTok3n"
    report = json.loads(said)
    assert report.pop("seen_at") == pytest.approx(seen.now(), abs=30)
    assert report == {"host": "h", "workers": []}


@pytest.mark.leaves("qd:*")
def test_stamps_are_told(queue, seen):
    for name, value in (("restart", "1795225685.5 rolling"), ("down", '{"by":"x"}')):
        seen.client.call("SET", f"{queue.settings.prefix}qd:{name}", value)
    done = beat(queue, "a")
    assert (done.restart, done.down) == ("1795225685.5 rolling", '{"by":"x"}')
