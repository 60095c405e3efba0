"""Jobs by ID: found in every state, deleted while they wait, cancelled while they run."""

from __future__ import annotations

import pytest

from qd.drivers.types import Free, Keep, Released, Reserved
from tests.contract.conftest import ONE
from tests.contract.keyspace.test_queue import drain, job, one_place, steal, take
from tests.support.keeper import beat
from tests.support.payloads import push_many

KEPT = ("queues:*:failed", "queues:*:failed_at")


def test_a_job_is_found_in_every_state(queue, seen):
    jobs = queue.jobs
    queue.push("a", job(1))
    queue.later("a", job(2), 60)
    held = take(queue)
    queue.push("a", job(3))
    found = {n: jobs.find("a", f"id{n}") for n in (1, 2, 3)}
    assert [found[n].spot for n in (1, 2, 3)] == ["running", "delayed", "ready"]
    assert found[1].text == held.member
    assert found[2].score == pytest.approx(seen.now() + 60, abs=30)
    assert found[3].payload.id == "id3"
    assert jobs.find("a", "id4") is jobs.find("b", "id1") is None
    assert jobs.find("a", "id3", ("delayed", "running")) is None
    assert jobs.ids("a", "id") == {"id1", "id2", "id3"}
    assert jobs.ids("a", "d1") == jobs.ids("b", "id") == set()
    assert queue.ack(held)


@pytest.mark.leaves(*KEPT)
def test_a_failed_job_is_found_by_its_payload(queue, seen):
    queue.push("a", job(1))
    held = take(queue)
    assert queue.bury(held, b'{"error":"X"}', held.member)
    found = queue.jobs.find("a", "id1")
    assert (found.spot, found.text) == ("failed", b'{"error":"X"}\n' + held.member)


@one_place
def test_an_id_in_the_arguments_of_another_job_is_not_found(queue, seen):
    queue.push("a", job(1, data={"id": "id2", "text": '"id":"id2"'}))
    assert queue.jobs.find("a", "id2") is None
    queue.push("a", job(3, uuid="6f1c0000-0000-4000-8000-000000000000"))
    assert queue.jobs.find("a", "6f1c0000-0000-4000-8000-000000000000").payload.id == "id3"


@one_place
@pytest.mark.parametrize("place_of", ["ready", "delayed"])
def test_a_long_queue_is_searched_in_short_calls(queue, seen, place_of):
    delay = 60 if place_of == "delayed" else None
    push_many(queue, [("a", job(n), delay) for n in range(5003)])
    for n in (0, 1, 999, 1000, 2500, 5001, 5002):
        assert queue.jobs.find("a", f"id{n}").spot == place_of
    assert queue.jobs.find("a", "id5003") is None


@one_place
def test_a_search_misses_nothing_while_workers_reserve_jobs(queue, connect, seen, monkeypatch):
    push_many(queue, [("a", job(n), None) for n in range(3000)])
    worker, producer, jobs = connect(2), connect(3), queue.jobs
    call, held = jobs.space.receive, list[Reserved | None]()

    def meanwhile():
        reply = call()
        for _ in range(40):  # the head shrinks and the tail grows
            held[:] = [worker.turn(held[0] if held else None, ["a"]).reserved]
            producer.push("a", job(9000))
        return reply

    monkeypatch.setattr(jobs.space, "receive", meanwhile)
    assert jobs.find("a", "id1050").spot == "ready"
    monkeypatch.undo()
    assert worker.ack(held[0])


@pytest.mark.leaves("qd:job:*")
def test_a_waiting_job_is_deleted_with_its_effects(queue, seen):
    seen.client.call("SET", seen.prefix + "qd:unique:n", "u1")
    push_many(queue, [("a", job(1), None), ("a", job(2), None), ("a", job(3), 60)])
    for n in (2, 3):
        found = queue.jobs.find("a", f"id{n}")
        effects = (Free("n", "u1"), Keep(f"id{n}", "failed", b"null", 60))
        assert queue.jobs.drop(found, effects) is True
        assert queue.jobs.drop(found, (Keep("never", "failed", b"null", 60),)) is False
    assert queue.jobs.kept("id2").status == queue.jobs.kept("id3").status == "failed"
    assert queue.jobs.kept("never") is None
    assert seen.client.call("EXISTS", seen.prefix + "qd:unique:n") == 0
    assert seen.tokens("a") == 1
    assert drain(queue) == ["id1"]


def test_a_reserved_job_is_not_deleted(queue, seen):
    queue.push("a", job(1))
    found = queue.jobs.find("a", "id1")
    held = take(queue)
    assert queue.jobs.drop(found, ()) is False
    assert queue.ack(held) is True


def test_a_cancelled_running_job_is_reported_with_each_beat_until_it_ends(queue, connect, seen):
    push_many(queue, [("a", job(1), None), ("b", job(2), None)])
    held, other = take(queue, "a", "b"), take(connect(2), "b")
    assert queue.jobs.stop(queue.jobs.find("a", "id1")) is True
    assert queue.jobs.stop(queue.jobs.find("b", "id2")) is True
    stranger = connect(1, token="Other0ther")
    assert beat(stranger, "a", "b").cancelled == []
    for _ in range(2):
        assert sorted(beat(queue, "a", "b", slots=[1, 2]).cancelled) == ["1:1", "2:1"]
    assert queue.ack(held)
    assert beat(queue, "a", "b", slots=[1, 2]).cancelled == ["2:1"]
    assert queue.jobs.stop(queue.jobs.find("b", "id2")) is True
    assert connect(2).ack(other)
    assert beat(queue, "a", "b", slots=[1, 2]).cancelled == []  # and the key is gone


def test_a_finished_job_or_one_of_another_program_cannot_be_cancelled(queue, seen):
    queue.push("a", job(1))
    held = take(queue)
    found = queue.jobs.find("a", "id1")
    assert queue.ack(held)
    assert queue.jobs.stop(found) is False
    seen.call("ZADD", "a", "reserved", seen.now() + 60, job(2))  # a Laravel worker's
    assert queue.jobs.stop(queue.jobs.find("a", "id2")) is False
    seen.call("DEL", "a", "reserved")


@pytest.mark.parametrize("delay", [0, 60])
@pytest.mark.parametrize("place", ONE, indirect=True)
def test_a_cancelled_job_that_is_released_is_marked(queue, connect, seen, delay):
    queue.push("a", job(1))
    held = take(queue)
    assert queue.jobs.stop(queue.jobs.find("a", "id1"))
    assert queue.release(held, Released(held.member.replace(b'.1"', b'.-"'), delay))
    again = take(connect(2))
    assert again.before.endswith(b'.c"')
    assert connect(2).ack(again)


@one_place
def test_a_cancelled_job_whose_lease_expires_is_marked(queue, connect, seen):
    push_many(queue, [("a", job(1), None), ("a", job(2), None)])
    lost, also = take(queue), take(connect(2))
    assert queue.jobs.stop(queue.jobs.find("a", "id1"))
    for held in (lost, also):
        seen.call("ZADD", "a", "reserved", "XX", seen.now() - 1, held.member)
    assert beat(connect(3, token="Other0ther"), "a").reclaimed == 2
    first, second = take(connect(3)), take(connect(4))
    assert [held.before.endswith(b'.c"') for held in (first, second)] == [True, False]
    assert connect(3).ack(first)
    assert connect(4).ack(second)


@one_place
def test_a_cancel_key_of_the_wrong_type_affects_nothing_else(queue, seen):
    seen.client.call("SET", "qd:cancel", "x")
    queue.push("a", job(1))
    held = take(queue)
    assert beat(queue, "a", slots=[1]).cancelled == []
    assert queue.release(held, Released(held.member))
    again = take(queue)
    assert queue.ack(again)
    seen.client.call("DEL", "qd:cancel")


@one_place
def test_cancellations_are_removed_after_a_day(queue, seen):
    seen.client.call("HSET", "qd:cancel", "Nobody.1.1", int(seen.now()) - 86500, "Other.1.1", int(seen.now()))
    seen.client.call("HSET", "qd:cancel", "garbage", "x")
    beat(queue, "a")
    assert seen.client.text("HKEYS", "qd:cancel") == ["Other.1.1"]
    seen.client.call("DEL", "qd:cancel")


@pytest.mark.leaves("qd:job:*")
def test_progress_and_result_are_in_one_record(queue, seen):
    assert queue.jobs.kept("id1") is None
    queue.jobs.progress("id1", 40, 60)
    assert queue.jobs.kept("id1")[:3] == (None, b"", 40.0)
    queue.push("a", job(1))
    held = take(queue)
    assert queue.ack(held, [Keep("id1", "done", b"[1]", 900)])
    kept = queue.jobs.kept("id1")
    assert kept[:3] == ("done", b"[1]", 40.0)
    assert kept.at == pytest.approx(seen.now(), abs=30)
    assert 800 < seen.client.call("TTL", seen.prefix + "qd:job:id1") <= 900


@pytest.mark.leaves("qd:job:*")
def test_an_answer_after_a_lost_lease_stores_no_result(queue, seen):
    queue.push("a", job(1))
    held = take(queue)
    steal(seen, held)
    assert queue.ack(held, [Keep("id1", "done", b"1", 90)]) is False
    assert queue.jobs.kept("id1") is None
