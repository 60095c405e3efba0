"""base.LaneConnector on Redis: turns with several jobs, late turns, the lanes of dead workers."""

from __future__ import annotations

import re

import pytest

from qd.drivers.redis.queue import RedisQueue
from qd.drivers.types import LaneAnswer, LaneReply, LaneTurn, Reserved
from qd.errors import ConnectionLost, ServerRefused
from qd.payload.format import read
from qd.payload.reservation import Ending, ending_of, original, split_mark, taken_alone, unstarted
from tests.contract.keyspace.test_queue import job, one_place, steal, take
from tests.contract.machine import lanes_command
from tests.support.keeper import beat
from tests.support.payloads import push_many
from tests.support.redis import Seen

LANES = tuple(range(1, 9))
FENCE = "Tok3nTok3n/1:turn"


def lanes(queue: RedisQueue, *queues: str, **more: object) -> LaneReply:
    return queue.turn_lanes(LaneTurn(queues or ("a",), **{"lanes": LANES, **more}))  # type: ignore[arg-type]


def fill(queue: RedisQueue, count: int, name: str = "a") -> None:
    push_many(queue, [(name, job(n), None) for n in range(count)])


def ids(jobs: tuple[Reserved, ...] | list[Reserved]) -> list[str | None]:
    return [read(job.member).id for job in jobs]


def owners(seen: Seen, queue: str = "a") -> dict[str, bytes]:
    """Without the fence."""
    return {field: member for field, member in seen.owners(queue).items() if not field.endswith(":turn")}


def leave(queue: RedisQueue, *jobs: Reserved) -> None:
    assert all(queue.ack(job) for job in jobs)
    queue.leave_lanes()


def test_a_turn_takes_as_many_jobs_as_lanes_are_free(queue, seen):
    fill(queue, 200)
    got = lanes(queue)
    assert ids(got.jobs) == [f"id{n}" for n in range(8)]
    for lane, held in zip(LANES, got.jobs, strict=True):
        mark = split_mark(held.mark)
        assert (mark.seat, mark.turn, mark.n) == (1 + 256 * lane, lane, "1")
        payload = read(held.member)
        assert (payload.rsv, payload.attempts, payload.crashes) == (held.mark, 1, 0)
        assert original(held.member, held.start, held.length, held.before) == job(lane - 1)
    assert seen.ready("a") == [job(n) for n in range(8, 200)]
    assert seen.tokens("a") == 192
    assert owners(seen) == {held.owner: held.member for held in got.jobs}
    assert list(seen.reserved("a")) == [held.member for held in got.jobs]
    leave(queue, *got.jobs)
    assert seen.owners("a") == {}


def test_a_turn_takes_no_more_than_its_share(queue, seen):
    fill(queue, 40)
    got = lanes(queue)
    assert len(got.jobs) == 1 + 40 // 16
    leave(queue, *got.jobs)


def test_a_turn_acks_what_has_finished(queue, seen):
    fill(queue, 200)
    first = lanes(queue).jobs
    second = lanes(queue, done=first[:5], lanes=LANES[:5])
    assert second.lost == ()
    assert ids(second.jobs) == [f"id{n}" for n in range(8, 13)]
    assert owners(seen) == {held.owner: held.member for held in (*first[5:], *second.jobs)}
    last = lanes(queue, done=[*first[5:], *second.jobs], lanes=())
    assert (last.lost, last.jobs, seen.reserved("a"), owners(seen)) == ((), (), {}, {})
    queue.leave_lanes()


def test_a_turn_names_the_acks_whose_lease_was_lost(queue, seen):
    fill(queue, 200)
    held = lanes(queue).jobs
    for lost in (held[1], held[6]):
        steal(seen, lost)
    assert lanes(queue, done=held, lanes=()).lost == (held[1], held[6])
    alone = lanes(queue, lanes=(3,)).jobs
    steal(seen, alone[0])
    assert lanes(queue, done=alone, lanes=()).lost == alone
    assert owners(seen) == {}
    queue.leave_lanes()


def test_jobs_that_have_not_started_return_to_the_head_with_their_pushed_bytes(queue, seen):
    fill(queue, 200)
    held = lanes(queue).jobs
    got = lanes(queue, done=held[:1], back=held[1:], lanes=())
    assert (got.jobs, got.lost) == ((), ())
    assert seen.ready("a") == [job(n) for n in range(1, 200)]
    assert seen.tokens("a") == 199
    assert (seen.reserved("a"), owners(seen)) == ({}, {})
    queue.leave_lanes()


def test_a_turn_puts_back_before_it_reserves(queue, seen):
    fill(queue, 200)
    held = lanes(queue).jobs
    got = lanes(queue, back=held[2:], lanes=LANES[2:5])
    assert ids(got.jobs) == ["id2", "id3", "id4"]
    assert owners(seen) == {job.owner: job.member for job in (*held[:2], *got.jobs)}
    leave(queue, *held[:2], *got.jobs)


def test_a_job_that_was_lost_is_not_put_back(queue, seen):
    fill(queue, 200)
    held = lanes(queue).jobs
    steal(seen, held[3])
    assert lanes(queue, back=held, lanes=()).lost == ()
    assert seen.ready("a") == [job(n) for n in range(200) if n != 3]
    queue.leave_lanes()


SPECIAL = {
    "reserved before": b'{"job":"t","attempts":1,"rsv":"Other0ther.3.4.-","id":"x"}',
    "keyed or unique": job(7, qd={"unique": "u"}),
    "not json": b"nonsense",
    "of PHP": job(7, job="Illuminate\\Queue\\CallQueuedHandler@call"),
    "attempts elsewhere": b'{"attempts":0,"job":"t","id":"x","data":{}}',
}


@one_place
@pytest.mark.parametrize("payload", SPECIAL.values(), ids=SPECIAL)
def test_a_turn_ends_before_a_payload_that_needs_a_closer_look(queue, seen, payload):
    push_many(queue, [("a", each, None) for each in (job(1), job(2), payload, *[job(n) for n in range(100, 200)])])
    got = lanes(queue)
    assert ids(got.jobs) == ["id1", "id2"]
    assert seen.ready("a")[0] == payload
    leave(queue, *got.jobs)


@one_place
def test_a_payload_that_needs_a_closer_look_is_taken_by_itself(queue, seen):
    push_many(queue, [("a", SPECIAL["reserved before"], None), *[("a", job(n), None) for n in range(100)]])
    (held,) = lanes(queue, single=3).jobs
    assert (split_mark(held.mark).lane, split_mark(held.mark).turn) == (3, 1)
    assert original(held.member, held.start, held.length, held.before) == SPECIAL["reserved before"]
    leave(queue, held)


@one_place
def test_a_turn_takes_256_kb_at_most_and_the_first_job_whatever_its_size(queue, seen):
    large = [job(n, data="x" * 100_000) for n in range(40)]
    push_many(queue, [("a", each, None) for each in (job(99, data="x" * 400_000), *large, *large)])
    first, second = lanes(queue).jobs, lanes(queue, lanes=range(9, 17)).jobs
    assert (len(first), len(second)) == (1, 2)
    leave(queue, *first, *second)


def test_all_jobs_of_a_turn_are_of_the_first_queue_that_has_one(queue, seen):
    fill(queue, 3, "b")
    fill(queue, 100, "c")
    got = lanes(queue, "a", "b", "c").jobs
    assert [held.queue for held in got] == ["b"]
    more = lanes(queue, "a", "b", "c", done=got, shut=["b"])
    assert more.paused == ("b",)
    assert len(more.jobs) == 7
    assert {held.queue for held in more.jobs} == {"c"}
    leave(queue, *more.jobs)


def test_due_jobs_are_taken_together(queue, seen):
    push_many(queue, [("a", job(n), 60) for n in range(100)])
    seen.call("ZADD", "a", "delayed", "XX", *[word for n in range(100) for word in (n, job(n))])
    got = lanes(queue)
    assert ids(got.jobs) == [f"id{n}" for n in range(7)]
    leave(queue, *got.jobs)


def test_equal_payloads_are_different_jobs(queue, seen):
    push_many(queue, [("a", job(1), None)] * 100)
    got = lanes(queue)
    assert len({held.member for held in got.jobs}) == 7
    assert len(seen.reserved("a")) == 7
    leave(queue, *got.jobs)


# -- the fence


def test_a_turn_that_comes_after_held_lanes_does_nothing(queue, seen):
    fill(queue, 200)
    held = lanes(queue).jobs
    late = lanes_command(queue, LaneTurn(("a",), done=held[:2], back=held[2:], lanes=LANES[:2]))
    assert queue.held_lanes(("a",), LANES) == list(held)
    before = seen.dump()
    assert queue._evaluate(queue._planned(("a",)), "lanes", late) == [-2]
    assert seen.dump() == before
    leave(queue, *held)


def test_a_turn_that_comes_after_a_later_one_does_nothing(queue, seen):
    fill(queue, 200)
    late = lanes_command(queue, LaneTurn(("a",), lanes=LANES))
    held = lanes(queue, lanes=(1, 2)).jobs
    before = seen.dump()
    assert queue._evaluate(queue._planned(("a",)), "lanes", late) == [-2]
    assert seen.dump() == before
    leave(queue, *held)


def test_a_turn_after_one_whose_reply_is_lost_does_nothing(queue, seen):
    fill(queue, 200)
    queue._evaluate(queue._planned(("a",)), "lanes", lanes_command(queue, LaneTurn(("a",), lanes=LANES)))
    with pytest.raises(ConnectionLost, match="whose reply"):
        lanes(queue)
    held = queue.held_lanes(("a",), LANES)
    assert ids(held) == [f"id{n}" for n in range(8)]
    assert [original(each.member, each.start, each.length, each.before) for each in held] == [job(n) for n in range(8)]
    assert lanes(queue, done=held, lanes=()).lost == ()
    queue.leave_lanes()


def test_held_lanes_deletes_owners_whose_lease_was_lost(queue, seen):
    fill(queue, 200)
    held = lanes(queue).jobs
    steal(seen, held[2])
    assert queue.held_lanes(("a",), LANES) == [each for each in held if each is not held[2]]
    assert held[2].owner not in seen.owners("a")
    leave(queue, *[each for each in held if each is not held[2]])


def test_held_lanes_finds_the_job_of_lane_0(queue, seen):
    queue.push("a", job(1))
    held = take(queue)
    assert queue.held_lanes(("a", "b"), LANES) == [held]
    leave(queue, held)


def test_the_fence_is_no_owner(queue, seen):
    fill(queue, 1)
    (held,) = lanes(queue, "b", "a").jobs
    assert seen.owners("a")[FENCE] == b"1"
    assert queue.owners("a") == [held.owner]
    queue.forget_lanes(("a", "b"), ["Tok3nTok3n/1"])
    assert list(seen.owners("a")) == [held.owner]
    assert queue.ack(held)


# -- refused commands: everything stays stored, and what is reserved is not ready


@one_place
@pytest.mark.parametrize(
    "lacks", ["zadd", "hset", "ltrim", "lpop", "lindex", "lpush", "rpush", "hdel", "zrem", "lrange"]
)
def test_a_turn_that_lacks_a_right_loses_and_doubles_nothing(queue, seen, lacks):
    fill(queue, 100)
    queue.push("a", SPECIAL["reserved before"])
    held = lanes(queue).jobs
    before = seen.everywhere("a")
    stored = sorted(original(each.member, each.start, each.length, each.before) for each in held)
    seen.client.call("ACL", "SETUSER", "default", f"-{lacks}")
    acked = 0
    try:
        acked = 3 - len(lanes(queue, done=held[:3], back=held[3:], lanes=(1, 2)).lost)
    except ServerRefused:
        pass
    finally:
        seen.client.call("ACL", "SETUSER", "default", "+@all")
    mine = queue.held_lanes(("a",), LANES)
    now = seen.everywhere("a")
    assert now.total() == before.total() - acked
    texts = [*seen.ready("a"), *[original(each.member, each.start, each.length, each.before) for each in mine]]
    assert len(texts) == len(set(texts)), "a job is ready and reserved"
    assert set(stored[3:]) <= set(texts)
    assert lanes(queue, done=mine, lanes=()).lost == ()
    queue.leave_lanes()


# -- suspects: jobs that were not alone in a worker that died


def suspect(queue: RedisQueue, seen: Seen, n: int, spot: str = "suspects") -> bytes:
    """A job whose mark says that its worker died while it was not alone."""
    text = job(n).replace(b'"attempts":0', b'"attempts":1,"rsv":"Dead0Dead0.259.7.1"')
    assert seen.call("RPUSH", "a", spot, text)
    return text


def counts(held: Reserved) -> tuple[int, int]:
    payload = read(held.member)
    return payload.attempts, payload.crashes


def test_a_worker_takes_a_suspect_by_itself_and_before_others(queue, seen):
    fill(queue, 100)
    suspect(queue, seen, 200)
    (held,) = lanes(queue, "b", "a").jobs
    assert (read(held.member).id, split_mark(held.mark).lane, counts(held)) == ("id200", 0, (1, 0))
    assert queue.ack(held)
    suspect(queue, seen, 201)
    held = take(queue, "b", "a")
    assert (read(held.member).id, counts(held)) == ("id201", (1, 0))
    seen.call("ZREM", "a", "reserved", held.member)  # its worker dies again, and PHP requeues it
    seen.call("LPUSH", "a", "", held.member)
    assert queue.held(["a"]) is None
    held = take(queue)
    assert counts(held) == (1, 1)
    leave(queue, held)


def test_suspects_of_one_death_are_taken_together(queue, seen):
    texts = [suspect(queue, seen, n) for n in range(10)]
    got = lanes(queue, suspects=True).jobs
    assert ids(got) == [f"id{n}" for n in range(8)]
    assert [split_mark(held.mark).lane for held in got] == list(LANES)
    assert len({held.turn for held in got}) == 8
    assert {split_mark(held.mark).n for held in got} == {"01"}
    assert {read(held.member).rsv for held in got} == {held.mark for held in got}
    assert {counts(held) for held in got} == {(1, 0)}
    assert [original(held.member, held.start, held.length, held.before) for held in got] == texts[:8]
    assert owners(seen) == {held.owner: held.member for held in got}
    assert seen.call("LRANGE", "a", "suspects", 0, -1) == texts[8:]
    more = lanes(queue, done=got[:2], suspects=True).jobs
    assert ids(more) == ["id8", "id9"]
    leave(queue, *got[2:], *more)


def test_a_suspect_for_the_second_time_is_taken_alone(queue, seen):
    """So is one that has crashed alone."""
    texts = [suspect(queue, seen, n) for n in range(2)]
    mark = "Dead0Dead0.259.7.1"
    texts.append(suspect(queue, seen, 2, "other").replace(b'7.1"', b'7.01"'))
    texts.append(taken_alone(suspect(queue, seen, 3, "other"), mark))
    seen.call("RPUSH", "a", "suspects", *texts[2:])
    seen.call("DEL", "a", "other")
    together = lanes(queue, suspects=True).jobs
    assert ids(together) == ["id0", "id1"]
    (second,) = lanes(queue, suspects=True).jobs
    (crashed,) = lanes(queue, done=[second], suspects=True).jobs
    assert ids([second, crashed]) == ["id2", "id3"]
    assert [split_mark(held.mark).lane for held in (second, crashed)] == [0, 0]
    assert [counts(held) for held in (second, crashed)] == [(1, 0), (1, 1)]
    leave(queue, *together, crashed)


def test_a_suspect_of_a_paused_queue_waits(queue, seen):
    text = suspect(queue, seen, 1)
    seen.call("SET", "a", "paused", "{}")
    assert lanes(queue).paused == ("a",)
    assert queue.turn(None, ["a"]).paused == ("a",)
    assert lanes(queue, suspects=True).paused == ("a",)
    seen.call("DEL", "a", "paused")
    assert seen.call("LRANGE", "a", "suspects", 0, -1) == [text]


def test_a_worker_that_diverts_takes_no_suspects_and_moves_them_aside(queue, seen):
    aside = suspect(queue, seen, 1, "")
    fill(queue, 3)
    (held,) = lanes(queue, diverts=True).jobs
    assert (read(held.member).id, split_mark(held.mark).lane) == ("id0", 1)
    assert seen.call("LRANGE", "a", "suspects", 0, -1) == [aside]
    assert lanes(queue, diverts=True, suspects=True, single=5).jobs[0].owner == f"Tok3nTok3n/{1 + 5 * 256}"
    leave(queue, held, *queue.held_lanes(("a",), (5,)))


def test_only_suspects_are_taken_if_only_they_are_asked_for(queue, seen):
    fill(queue, 3)
    assert lanes(queue, suspects=True).jobs == ()
    queue.leave_lanes()


def test_suspects_count_as_ready_and_are_found_and_deleted(queue, seen):
    text = suspect(queue, seen, 1)
    suspect(queue, seen, 2)
    fill(queue, 1)
    assert queue.sizes("a").ready == 3
    assert beat(queue, "a").more is False
    assert seen.tokens("a") == 3
    found = queue.jobs.find("a", "id1")
    assert found is not None
    assert (found.spot, found.text) == ("ready", text)
    assert queue.jobs.drop(found, ()) is True
    assert queue.jobs.drop(found, ()) is False
    assert queue.sizes("a").ready == 2
    assert queue.clear("a") == 2
    assert seen.every_key() == []


# -- the keeper's beat


def test_leases_of_all_lanes_are_renewed_and_lost_ones_named(queue, seen):
    fill(queue, 200)
    held = lanes(queue, lanes=(1, 2, 1023)).jobs
    for each in held:
        seen.call("ZADD", "a", "reserved", "XX", 5, each.member)
    steal(seen, held[1])
    places = [1 + 256 * lane for lane in (0, 1, 2, 3, 1023)]
    assert beat(queue, "b", "a", slots=places).lost == ["513:2"]
    assert all(lease > seen.now() for lease in seen.reserved("a").values())
    assert queue.held_lanes(("a",), (1, 2, 1023)) == [held[0], held[2]]
    leave(queue, held[0], held[2])


@one_place
def test_a_renewal_of_500_places_is_two_commands_for_each_queue(queue, seen):
    """One of them looks up the owners, the other one renews; an empty queue needs only the first."""
    push_many(queue, [(name, job(n), None) for name in ("a", "b") for n in range(8000)])
    held = [*lanes(queue, lanes=range(1, 251)).jobs, *lanes(queue, "b", "a", lanes=range(251, 501)).jobs]
    assert len(held) == 500
    for each in held:
        seen.call("ZADD", each.queue, "reserved", "XX", 5, each.member)
    seen.client.call("CONFIG", "RESETSTAT")
    places = [1 + 256 * lane for lane in range(1, 501)]
    assert beat(queue, "a", "b", "c", slots=places, reclaim=False).lost == []
    calls = seen.client.text("INFO", "commandstats")
    counts = {name: int(re.search(rf"cmdstat_{name}:calls=(\d+)", calls)[1]) for name in ("hmget", "zadd")}  # type: ignore[index]
    assert counts == {"hmget": 3, "zadd": 2}
    assert "cmdstat_zscore" not in calls
    assert all(lease > seen.now() for name in ("a", "b") for lease in seen.reserved(name).values())
    for name in ("a", "b"):
        done = [each for each in held if each.queue == name]
        assert lanes(queue, "b", "a", done=done, lanes=()).lost == ()
    queue.leave_lanes()


def test_a_running_job_of_a_lane_can_be_cancelled(queue, seen):
    fill(queue, 200)
    held = lanes(queue, lanes=(1022, 1023)).jobs
    found = queue.jobs.find("a", "id1")
    assert found is not None
    assert queue.jobs.stop(found) is True
    assert beat(queue, "a", slots=[1]).cancelled == [f"{1 + 256 * 1023}:2"]
    assert lanes(queue, done=held[:1], back=held[1:], lanes=()).jobs == ()
    (waiting, *_) = seen.ready("a")
    assert ending_of(waiting[waiting.index(b'"attempts"') : -len(b',"delay":null}')]) is Ending.CANCELLED
    assert seen.call("EXISTS", "a", "cancel") == 0
    queue.leave_lanes()


def test_an_expired_lease_of_a_lane_is_reclaimed(queue, seen):
    fill(queue, 200)
    (held,) = lanes(queue, lanes=(1000,)).jobs
    seen.call("ZADD", "a", "reserved", "XX", 5, held.member)
    assert beat(queue, "a").reclaimed == 1
    assert owners(seen) == {}
    queue.leave_lanes()


# -- dead workers


def test_a_keeper_reads_the_jobs_of_many_owners(queue, seen):
    fill(queue, 200)
    held = lanes(queue).jobs
    names = [f"Tok3nTok3n/{1 + 256 * lane}" for lane in range(1200)]
    assert queue.owned_by("a", names) == {each.owner: each.member for each in held}
    leave(queue, *held)


def test_the_jobs_of_a_dead_worker_are_settled_in_order(connect, seen):
    queue, keeper = connect(1), connect(9)
    push_many(queue, [("a", job(n), None) for n in range(20000)])
    held = lanes(queue, lanes=range(1, 251)).jobs
    answers = [LaneAnswer(each.owner, each.member, unstarted(each.member, each.mark)) for each in held]
    answers[0] = LaneAnswer(held[0].owner, held[0].member)
    answers[1] = answers[1]._replace(text=taken_alone(held[1].member, held[1].mark))
    answers[2] = answers[2]._replace(text=held[2].member, suspect=True)
    steal(seen, held[3])
    assert keeper.settle_lanes("a", answers) == [n != 3 for n in range(250)]
    alone = taken_alone(held[1].member, held[1].mark)
    assert seen.ready("a")[:4] == [alone, job(4), job(5), job(6)]
    assert len(seen.ready("a")) == 20000 - 3
    assert seen.call("LRANGE", "a", "suspects", 0, -1) == [held[2].member]
    assert (seen.reserved("a"), owners(seen)) == ({}, {})
    assert keeper.settle_lanes("a", answers) == [False] * 250
    keeper.forget_lanes(["a"], ["Tok3nTok3n/1"])
    suspect = take(keeper)
    assert (read(suspect.member).id, read(suspect.member).attempts, read(suspect.member).crashes) == ("id2", 1, 0)
    assert keeper.ack(suspect)
    crashed = take(keeper)
    assert (read(crashed.member).id, read(crashed.member).attempts, read(crashed.member).crashes) == ("id1", 1, 1)
    assert keeper.ack(crashed)
