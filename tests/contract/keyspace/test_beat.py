"""The script of the keeper's beat: it renews leases and never creates them, moves expired and due jobs, fixes tokens and
writes the report."""

from __future__ import annotations

import json

import pytest

from qd.payload.format import read
from tests.contract.keyspace.test_queue import drain, job, one_place, steal, take
from tests.support.keeper import beat
from tests.support.payloads import push_many


def expire(seen, held) -> None:
    seen.call("ZADD", held.queue, "reserved", "XX", seen.now() - 1, held.member)


def test_a_beat_with_nothing_to_do_leaves_no_key(queue, seen):
    done = beat(queue, "a", "b", slots=[1, 2])
    assert done[1:] == ("", "", -1, False, 0, [], [], [])
    assert done.now == pytest.approx(seen.now(), abs=30)


def test_only_the_leases_of_live_workers_are_renewed(connect, seen):
    queues = [connect(1), connect(2), connect(1, token="Other0ther")]
    push_many(queues[0], [("a", job(n), None) for n in range(3)])
    held = [take(queue) for queue in queues]
    for one in held:
        seen.call("ZADD", "a", "reserved", "XX", seen.now() + 15, one.member)
    before = seen.now()
    assert beat(queues[0], "a", slots=[1]).lost == []
    leases = seen.reserved("a")
    assert before + 30 - 0.001 <= leases[held[0].member] <= seen.now() + 30.001
    assert all(leases[one.member] <= before + 15 for one in held[1:])
    assert all(queue.ack(one) for queue, one in zip(queues, held, strict=True))


def test_a_beat_without_renewal_does_not_change_leases(queue, seen):
    queue.push("a", job(1))
    held = take(queue)
    before = seen.reserved("a")
    beat(queue, "a", slots=[1], renew=False)
    assert seen.reserved("a") == before
    assert queue.ack(held)


def test_a_renewal_creates_no_lease_and_reports_lost_ones(queue, seen):
    queue.push("a", job(1))
    lost = take(queue)
    steal(seen, lost)
    assert beat(queue, "a", slots=[1]).lost == ["1:1"]
    assert seen.reserved("a") == {}
    assert queue.ack(lost) is False


def test_a_lost_lease_names_its_turn_even_if_arguments_contain_a_mark(queue, seen):
    queue.turn(None, ["a"])
    queue.push("a", b'{"data":{"rsv":"Other0ther.1.99.1"},"attempts":0,"job":"t"}')
    lost = take(queue)
    steal(seen, lost)
    assert beat(queue, "a", slots=[1]).lost == ["1:2"]
    assert queue.ack(lost) is False


def test_an_expired_reservation_is_requeued_and_its_owner_removed(connect, seen):
    dead, alive = connect(1), connect(2)
    push_many(dead, [("a", job(1), None), ("a", job(2), None)])
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


def test_a_late_ack_after_a_reclaim_fails_and_removes_nothing(connect, seen):
    slow, other = connect(1), connect(2)
    slow.push("a", job(1))
    late = take(slow)
    expire(seen, late)
    beat(other, "a", slots=[2])
    again = take(other)
    assert slow.ack(late) is False
    assert list(seen.reserved("a")) == [again.member]
    assert other.ack(again)


def test_a_beat_without_reclaim_reclaims_nothing(queue, seen):
    queue.push("a", job(1))
    held = take(queue)
    expire(seen, held)
    assert beat(queue, "a", reclaim=False).reclaimed == 0
    assert list(seen.reserved("a")) == [held.member]
    assert queue.ack(held)


def test_leases_are_renewed_before_expired_ones_are_reclaimed(queue, seen):
    queue.push("a", job(1))
    held = take(queue)
    expire(seen, held)
    assert beat(queue, "a", slots=[1]).reclaimed == 0
    assert queue.ack(held)


@one_place
def test_a_beat_reclaims_at_most_a_hundred_and_reports_more(queue, seen):
    seen.call("ZADD", "a", "reserved", *[word for n in range(150) for word in (1, job(n))])
    first, second = beat(queue, "a"), beat(queue, "a")
    assert [(one.reclaimed, one.more) for one in (first, second)] == [(100, True), (50, False)]
    assert len(seen.ready("a")) == 150


def test_due_jobs_are_moved_with_one_token_each(queue, seen):
    push_many(queue, [("a", job(n), 60.0) for n in range(3)] + [("b", job(9), 90.0)])
    for n in range(3):
        seen.call("ZADD", "a", "delayed", seen.now() - 3 + n, job(n))
    done = beat(queue, "a", "b")
    assert seen.ready("a") == [job(0), job(1), job(2)]
    assert (seen.tokens("a"), seen.delayed("a")) == (3, {})
    assert 60_000 < done.due_ms <= 90_001
    assert drain(queue) == ["id0", "id1", "id2"]


@one_place
def test_a_beat_moves_a_limited_number_of_due_jobs_and_reports_more(queue, seen):
    seen.call("ZADD", "a", "delayed", *[word for n in range(25) for word in (n + 1, job(n))])
    more = [beat(queue, "a", move=10).more for _ in range(4)]
    assert more == [True, True, False, False]
    assert seen.ready("a") == [job(n) for n in range(25)]


def test_queues_with_untaken_jobs_are_reported(connect, seen):
    queue = connect(1)
    push_many(queue, [(name, job(n), None) for name in "abc" for n in range(2)] + [("d", job(4), 60.0)])
    held = queue.turn(None, ["b"]).reserved
    seen.client.call("SET", queue.settings.prefix + "queues:c:paused", "{}")
    assert beat(queue, "b", "c", "d", "a", slots=[1]).waiting == ["a"]
    assert queue.ack(held)
    seen.client.call("DEL", queue.settings.prefix + "queues:c:paused")
    assert beat(queue, "b", "c", "d", "a", slots=[1]).waiting == ["b", "c", "a"]
    for name in "abcd":
        queue.clear(name)


def test_missing_tokens_are_added(queue, seen):
    seen.call("RPUSH", "a", "", *[job(n) for n in range(5)])  # a plain RPUSH, an old Laravel
    beat(queue, "a", tokens=3)
    assert seen.tokens("a") == 3
    beat(queue, "a", tokens=3)
    assert seen.tokens("a") == 5


def test_surplus_tokens_are_removed(queue, seen):
    seen.call("RPUSH", "a", "notify", *["1"] * 1000)
    seen.call("RPUSH", "a", "", job(1))
    beat(queue, "a")
    assert seen.tokens("a") == 1


@pytest.mark.leaves("qd:*")
def test_a_report_is_stored_under_its_master_with_its_time(queue, seen):
    beat(queue, "a", report=json.dumps({"host": "h", "workers": []}))
    (token, stored) = seen.client.text("HGETALL", queue.settings.prefix + "qd:masters")
    assert token == "Tok3nTok3n"
    report = json.loads(stored)
    assert report.pop("seen_at") == pytest.approx(seen.now(), abs=30)
    assert report == {"host": "h", "workers": []}


@pytest.mark.leaves("qd:*")
def test_stamps_are_reported(queue, seen):
    for name, value in (("restart", "1795225685.5 rolling"), ("down", '{"by":"x"}')):
        seen.client.call("SET", f"{queue.settings.prefix}qd:{name}", value)
    done = beat(queue, "a")
    assert (done.restart, done.down) == ("1795225685.5 rolling", '{"by":"x"}')
