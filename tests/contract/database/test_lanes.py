"""Turns of several jobs on a jobs table, what the keeper does with them, and turns that arrive late."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from qd.drivers.base import with_lanes
from qd.drivers.database.queue import DatabaseQueue
from qd.drivers.database.reserve import BULK
from qd.drivers.types import LaneAnswer, LaneReply, LaneTurn, Outgoing, Released, Reserved
from qd.errors import ConnectionLost, ServerBusy
from qd.payload.format import read
from qd.payload.reservation import saving, split_mark, taken_alone, unstarted
from tests.contract.database import test_queue as rows
from tests.contract.database.test_queue import SERVERS, TOKEN, Table, beat, during, from_php, job
from tests.support.payloads import push_many
from tests.support.waiting import eventually

pytestmark = pytest.mark.xdist_group("databases")

database, url, connect, queue, table = rows.database, rows.url, rows.connect, rows.queue, rows.table  # fixtures

LANES = tuple(range(1, 17))
MANY = 400  # ready jobs, of which a turn may take one for each lane


def turn(queue: DatabaseQueue, queues: Sequence[str] = ("a",), lanes: Sequence[int] = LANES, **more: Any) -> LaneReply:
    return queue.turn_lanes(LaneTurn(queues, lanes=lanes, **more))


def ids(held: Sequence[Reserved]) -> list[str | None]:
    return [read(each.member).id for each in held]


def fill(queue: DatabaseQueue, count: int = MANY, start: int = 0) -> None:
    push_many(queue, [("a", job(n), None) for n in range(start, start + count)])


def many(queue: DatabaseQueue, lanes: Sequence[int] = LANES) -> tuple[Reserved, ...]:
    """The jobs of the first turn that fills all lanes. The number of jobs doubles from turn to turn."""
    done: tuple[Reserved, ...] = ()
    while len((reply := turn(queue, lanes=lanes, done=done)).jobs) < len(lanes):
        assert reply.jobs
        done = reply.jobs
    return reply.jobs


def warm(queue: DatabaseQueue) -> DatabaseQueue:
    """The next turn may fill all lanes."""
    fill(queue, 600, 1000)
    assert turn(queue, lanes=(), done=many(queue)).lost == ()
    queue.clear("a")
    queue.reserver.most = len(LANES)
    return queue


def all_of(queue: DatabaseQueue, first: LaneReply) -> list[list[str | None]]:
    """The ids of each turn until nothing is left."""
    seen, reply = list[list[str | None]](), first
    while reply.jobs:
        seen.append(ids(reply.jobs))
        reply = turn(queue, done=reply.jobs)
        assert reply.lost == ()
    return seen


def test_a_turn_reserves_several_jobs_in_order_and_the_next_one_acks_them(queue, table):
    fill(queue)
    done: Sequence[Reserved] = ()
    seen, most = list[str | None](), 0
    while (reply := turn(queue, done=done)).jobs:
        assert reply.lost == ()
        most, done = max(most, len(reply.jobs)), reply.jobs
        seen += ids(done)
    assert seen == [f"id{n}" for n in range(MANY)]
    assert most == len(LANES)
    assert (table.rows(), table.rows(table="qd_reserved")) == ([], [])


def test_each_job_of_a_turn_has_its_own_lane_turn_and_owner(queue, table):
    fill(queue)
    jobs, first = many(queue), queue.turns - len(LANES) + 1
    marks = [split_mark(each.mark) for each in jobs]
    assert [(mark.slot, mark.lane, mark.turn) for mark in marks] == [(1, n, first + n - 1) for n in LANES]
    held = {row.mark: row for row in table.rows(table="qd_reserved")}
    assert {row.owner for row in held.values()} == {f"{TOKEN}/{1 + 256 * lane}" for lane in LANES}
    assert {mark.base for mark in marks} == set(held)
    reserved = [row for row in table.rows() if row.reserved_at is not None]
    assert [row.payload.encode() for row in reserved] == [job(n) for n in range(MANY - len(table.rows()), MANY)][:16]
    assert {row.attempts for row in reserved} == {1}
    assert read(jobs[3].member).attempts == 1


# -- which jobs are taken together

OTHERS: dict[
    str, tuple[Callable[[DatabaseQueue, Table], object], int]
] = {  # how it gets between others, and its attempt
    "of another shape": (lambda queue, table: queue.push("a", from_php(999)), 1),
    "with effects": (lambda queue, table: queue.push("a", tied(result=60)), 1),
    "with a lock": (lambda queue, table: queue.post([locked()]), 1),
    "with a key": (lambda queue, table: keyed(queue), 1),
    "attempted": (lambda queue, table: attempted(queue, table), 3),
    "with a mark in its data": (lambda queue, table: queue.push("a", job(999, data={"rsv": "x"})), 1),
}


def tied(**relations: object) -> bytes:
    """A payload with relations, as qd sends it."""
    fields = {
        "job": "t",
        "data": {},
        "createdAt": 1795225685,
        "qd": relations,
        "id": "i" * 32,
        "attempts": 0,
        "delay": None,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def locked() -> Outgoing:
    return Outgoing("a", tied(unique="u"), lock="u", owner="i" * 32, hold=60.0)


def keyed(queue: DatabaseQueue) -> None:
    key = "00000.abcdefgh order:1"
    queue.post([Outgoing("a", tied(key=key), 0.0, key=key)])
    assert queue.move_keyed("a", "order:1", 0.0)


def attempted(queue: DatabaseQueue, table: Table) -> None:
    queue.push("a", job(999))
    table.do("UPDATE jobs SET attempts = 2 WHERE payload = :payload", payload=job(999).decode())


@pytest.mark.parametrize("what", OTHERS)
def test_any_other_job_is_taken_by_itself_into_the_single_lane(queue, table, what):
    add, attempts = OTHERS[what]
    warm(queue)
    fill(queue, 20)
    add(queue, table)
    fill(queue, 300, 20)
    table.do("UPDATE jobs SET available_at = 1")  # the order of their ids, whatever second it is
    seen, reply = list[Reserved](), turn(queue)
    while reply.jobs:
        assert len(reply.jobs) == 1 or all(held.lane > 0 for held in reply.jobs)
        seen += reply.jobs
        reply = turn(queue, done=reply.jobs)
        assert reply.lost == ()
    assert [place for place, held in enumerate(seen) if held.lane == 0] == [20]
    assert (len(seen), read(seen[20].member).attempts) == (321, attempts)


def test_a_payload_that_is_no_job_ends_a_turn_and_is_stored_as_failed(queue, table):
    warm(queue)
    fill(queue, 5)
    queue.push("a", b"hello")
    fill(queue, 300, 5)
    table.do("UPDATE jobs SET available_at = 1")
    first = turn(queue)
    assert ids(first.jobs) == [f"id{n}" for n in range(5)]
    second = turn(queue, done=first.jobs)
    assert (second.lost, len(second.malformed), ids(second.jobs)[:2]) == ((), 1, ["id5", "id6"])
    assert queue.sizes("a").failed == 1
    assert turn(queue, done=second.jobs).lost == ()


def test_an_object_job_of_php_between_others_stays_and_ends_nothing(queue, table):
    php = b'{"displayName":"App\\\\X","job":"Illuminate\\\\Queue\\\\CallQueuedHandler@call","data":{}}'
    warm(queue)
    fill(queue, 5)
    queue.push("a", php)
    fill(queue, 300, 5)
    table.do("UPDATE jobs SET available_at = 1")
    assert ids(turn(queue).jobs) == [f"id{n}" for n in range(len(LANES))]
    assert table.rows("attempts, reserved_at")[5] == (0, None)


def test_identical_payloads_are_separate_jobs(queue):
    warm(queue)
    push_many(queue, [("a", job(1), None)] * 300)
    reply, count = turn(queue), 0
    while reply.jobs:
        assert len({held.mark for held in reply.jobs}) == len(reply.jobs)
        count += len(reply.jobs)
        reply = turn(queue, done=reply.jobs)
        assert reply.lost == ()
    assert count == 300


@pytest.mark.parametrize(("ready", "taken"), [(1, 1), (15, 1), (16, 2), (100, 7), (300, 16)])
def test_a_turn_leaves_others_their_share(queue, ready, taken):
    warm(queue)
    fill(queue, ready)
    assert len(turn(queue).jobs) == taken


def test_a_turn_takes_256_kb_at_most_and_the_first_job_whatever_its_size(queue):
    warm(queue)
    sizes = [BULK + 1, 100_000, 100_000, 100_000, BULK + 1]
    push_many(queue, [("a", job(n, data="x" * size), None) for n, size in enumerate(sizes)])
    fill(queue, 300, 5)
    assert all_of(queue, turn(queue))[:4] == [["id0"], ["id1", "id2"], ["id3"], ["id4"]]


def test_a_turn_takes_from_the_first_open_queue_with_jobs(queue):
    queue.push("b", job(1))
    queue.push("c", job(2))
    queue.space.call("SET", "queues:a:paused", "{}")
    fill(queue, 1, 3)
    reply = turn(queue, ("a", "b", "c"), shut=("b",))
    assert (reply.paused, ids(reply.jobs)) == (("a", "b"), ["id2"])
    last = turn(queue, ("b", "a", "c"), done=reply.jobs)
    assert (last.lost, ids(last.jobs)) == ((), ["id1"])
    none = turn(queue, ("b", "a", "c"), lanes=(), done=last.jobs)
    assert (none.lost, none.jobs, none.paused) == ((), (), ("a",))
    queue.space.call("DEL", "queues:a:paused")


def test_a_turn_without_jobs_says_when_the_next_is_due_and_writes_nothing(queue, table):
    queue.later("a", job(1), 300.0)
    turn(queue)
    before = table.rows(table="qd_items")
    due = turn(queue).next_due
    assert due is not None
    assert 270 < due <= 301
    assert table.rows(table="qd_items") == before


@SERVERS
def test_a_turn_is_at_most_three_round_trips(queue, monkeypatch):
    warm(queue)
    fill(queue)
    jobs, sent = turn(queue).jobs, list[int]()
    call = queue.connection._call

    def counted(act: Callable[[Any], Any]) -> Any:
        sent.append(1)
        return call(act)

    monkeypatch.setattr(queue.connection, "_call", counted)
    assert len(turn(queue, done=jobs).jobs) == len(LANES)
    assert len(sent) == 3


# -- jobs that have not started


def test_jobs_that_are_put_back_are_as_before_and_next(queue, table):
    warm(queue)
    fill(queue)
    before = table.rows()
    jobs = turn(queue).jobs
    assert turn(queue, lanes=(), back=jobs).jobs == ()
    assert (table.rows(), table.rows(table="qd_reserved")) == (before, [])
    again = turn(queue, back=jobs)  # a second time: they are not reserved any more
    assert (ids(again.jobs), again.lost) == (ids(jobs), ())
    last = turn(queue, back=again.jobs[8:], done=again.jobs[:8])
    assert ids(last.jobs) == [f"id{n}" for n in range(8, 8 + len(LANES))]
    assert {read(held.member).attempts for held in last.jobs} == {1}


def test_a_job_with_attempts_is_put_back_with_them(queue, table):
    table.do(
        "INSERT INTO jobs (queue, payload, attempts, available_at, created_at) VALUES ('a', :payload, 2, 1, 1)",
        payload=from_php(7).decode(),
    )
    reply = turn(queue)
    turn(queue, lanes=(), back=reply.jobs)
    assert table.rows("attempts, reserved_at") == [(2, None)]
    (held,) = turn(queue).jobs
    assert (read(held.member).attempts, read(held.member).crashes) == (3, 0)


def test_a_cancelled_job_that_is_put_back_is_dropped_by_the_next(queue):
    fill(queue)
    jobs = many(queue)
    found = queue.jobs.find("a", ids(jobs)[3] or "")
    assert found is not None
    assert queue.jobs.stop(found)
    mark = split_mark(jobs[3].mark)
    assert beat(queue, slots=(1, mark.seat)).cancelled == [(mark.seat, mark.turn)]
    turn(queue, lanes=(), back=jobs)
    (first,) = turn(queue, lanes=LANES[:1]).jobs
    assert b'.c"' not in first.before
    turn(queue, lanes=(), done=[first])
    taken = {read(held.member).id: held for held in drained(queue)}
    assert [id for id, held in taken.items() if b'.c"' in held.before] == [ids(jobs)[3]]


def drained(queue: DatabaseQueue) -> list[Reserved]:
    seen, reply = list[Reserved](), turn(queue)
    while reply.jobs:
        seen += reply.jobs
        reply = turn(queue, done=reply.jobs)
    return seen


# -- answers


def test_each_job_of_a_turn_can_be_answered_by_itself(queue, table):
    fill(queue)
    first, second, third, fourth, *others = many(queue)
    changed = fourth._replace(member=saving(fourth.member, fourth.mark, b"7"))
    assert queue.checkpoint(fourth, changed.member)
    assert queue.ack(first)
    assert queue.release(second, Released(unstarted(second.member, second.mark), 500))
    assert queue.bury(third, b'{"id":"x"}', job(3))
    reply = turn(queue, lanes=(), done=[first, second, third, fourth, changed, *others])
    assert reply.lost == (first, second, third, fourth)  # the fourth text is an old one
    assert (queue.sizes("a").failed, queue.sizes("a").delayed, queue.sizes("a").reserved) == (1, 1, 0)
    assert table.rows(table="qd_reserved") == []


@SERVERS
@pytest.mark.parametrize("what", ["done", "back"])
def test_a_turn_during_the_renewal_of_its_leases_answers_all(connect, table, what):
    worker, keeper = connect(), connect()
    fill(worker)
    jobs = many(worker)
    waiting = len(table.rows())
    for each in ("jobs", "qd_reserved"):
        table.do(f"UPDATE {each} SET reserved_at = reserved_at - 5 WHERE reserved_at IS NOT NULL")
    places = tuple(split_mark(held.mark).seat for held in jobs)
    answer: dict[str, Any] = {what: jobs}
    reply = during(table, keeper, lambda: beat(keeper, slots=places), lambda: turn(worker, lanes=(), **answer))
    assert (reply.lost, table.rows(table="qd_reserved")) == ((), [])
    assert [row.reserved_at for row in table.rows()] == [None] * (waiting - len(jobs) * (what == "done"))


def test_a_job_that_php_has_taken_over_is_lost_and_the_others_are_acked(queue, table):
    fill(queue)
    jobs = many(queue)
    (row,) = [row for row in table.rows() if row.payload.encode() == job(int((ids(jobs)[2] or "")[2:]))]
    table.do("UPDATE jobs SET reserved_at = reserved_at + 1, attempts = attempts + 1 WHERE id = :id", id=row.id)
    places = tuple(split_mark(held.mark).seat for held in jobs)
    assert beat(queue, until=0.0, slots=places).lost == [(places[2], jobs[2].turn)]
    assert turn(queue, lanes=(), done=jobs).lost == (jobs[2],)
    assert [(row.id, row.attempts) for row in table.rows() if row.reserved_at is not None] == [(row.id, 2)]
    assert table.rows(table="qd_reserved") == []


# -- turns that arrive late, and lost replies


def lost_reply(queue: DatabaseQueue, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """The database executes the call, and the reply of its last round trip is lost."""
    run = queue.reserver.run

    def broken(statements: Sequence[Any]) -> Any:
        results = run(statements)
        if str(statements[0][0]).startswith("UPDATE qd_items"):
            queue.connection.close()
            raise ConnectionLost("no reply")
        return results

    with monkeypatch.context() as patch:
        patch.setattr(queue.reserver, "run", broken)
        with pytest.raises(ConnectionLost, match="no reply"):
            act()


@SERVERS
def test_after_a_lost_reply_no_turn_changes_anything_until_the_worker_has_asked(queue, table, monkeypatch):
    warm(queue)
    fill(queue)
    jobs = turn(queue).jobs
    lost_reply(queue, monkeypatch, lambda: turn(queue, done=jobs))
    before = table.rows(), table.rows(table="qd_reserved")
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="already abandoned"):
            turn(queue, done=jobs)
    assert (table.rows(), table.rows(table="qd_reserved")) == before
    held = queue.held_lanes(("a",), LANES)
    assert ids(held) == [f"id{n}" for n in range(16, 32)]
    assert [each.turn for each in held] == sorted(each.turn for each in held)
    reply = turn(queue, done=held[:4], back=held[4:])
    assert (reply.lost, ids(reply.jobs)) == ((), [f"id{n}" for n in range(20, 36)])


def late(queue: DatabaseQueue, connect: rows.Connect) -> DatabaseQueue:
    """The same worker on a connection that it gives up."""
    other = connect()
    other.turns, other.calls = queue.turns, queue.calls
    other.reserver.known, other.reserver.fence = queue.reserver.known, queue.reserver.fence
    other.reserver.most = queue.reserver.most
    return other


CALLS: dict[str, Callable[[DatabaseQueue, Sequence[Reserved]], object]] = {
    "that reserves": lambda queue, jobs: turn(queue),
    "that acks": lambda queue, jobs: turn(queue, lanes=(), done=jobs),
    "that puts back": lambda queue, jobs: turn(queue, lanes=(), back=jobs),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("after", ["held_lanes", "a turn", "the worker left"])
def test_a_turn_that_arrives_late_does_nothing(connect, queue, table, call, after):
    warm(queue)
    fill(queue)
    jobs = turn(queue).jobs
    other = late(queue, connect)
    if after == "held_lanes":
        assert queue.held_lanes(("a",), LANES) == list(jobs)
    elif after == "a turn":
        jobs = turn(queue, done=jobs).jobs
    else:
        queue.leave_lanes()
    before = table.rows(), table.rows(table="qd_reserved")
    with pytest.raises(ConnectionLost, match="already abandoned"):
        CALLS[call](other, jobs)
    assert (table.rows(), table.rows(table="qd_reserved")) == before


@SERVERS
@pytest.mark.parametrize("first", ["the late turn", "held_lanes"])
def test_a_late_turn_and_the_question_for_lanes_are_one_after_the_other(connect, queue, table, monkeypatch, first):
    """The connection is given up while the database is still executing the turn, or before it begins to write."""
    warm(queue)
    fill(queue)
    other = late(turn_once(queue), connect)
    waits, run, held = f"SELECT count(*) FROM {rows.WAITS[table.connection.kind]}", other.reserver.run, list[Any]()

    def paused(statements: Sequence[Any]) -> Any:
        if first == "the late turn" and str(statements[0][0]).startswith("UPDATE qd_items"):
            held.append(pool.submit(queue.held_lanes, ("a",), LANES))
            eventually(lambda: table.connection.query(waits).scalar_one() > 0, every=0.15, what="a lock wait")
        found = run(statements)
        if first == "held_lanes" and not held:  # it has looked, and found jobs
            held.append(pool.submit(queue.held_lanes, ("a",), LANES))
            held[0].result()
        return found

    monkeypatch.setattr(other.reserver, "run", paused)
    with ThreadPoolExecutor(1) as pool:
        if first == "the late turn":
            jobs = turn(other).jobs
            assert held[0].result() == list(jobs)
            assert len(jobs) == len(LANES)
        else:
            with pytest.raises(ConnectionLost):
                turn(other)
            assert held[0].result() == table.rows(table="qd_reserved") == []


def turn_once(queue: DatabaseQueue) -> DatabaseQueue:
    turn(queue, lanes=())
    return queue


def test_a_busy_database_leaves_the_number_as_it_was(queue, monkeypatch):
    warm(queue)
    fill(queue)
    jobs, run = turn(queue).jobs, queue.reserver.run

    def busy(statements: Sequence[Any]) -> Any:
        if str(statements[0][0]).startswith("UPDATE qd_items"):
            raise ServerBusy("busy")
        return run(statements)

    with monkeypatch.context() as patch:
        patch.setattr(queue.reserver, "run", busy)
        with pytest.raises(ServerBusy):
            turn(queue, done=jobs)
    assert turn(queue, lanes=(), done=jobs).lost == ()


def test_a_worker_that_leaves_or_died_leaves_no_number_behind(connect, table):
    first, second, keeper = connect(1), connect(2), connect(3)
    for each in (first, second):
        turn(each, ("b", "a"))
    assert len(table.rows(table="qd_items")) == 2
    first.leave_lanes()
    keeper.forget_lanes(["a", "b"], [f"{TOKEN}/2"])
    assert (table.rows(table="qd_items"), table.rows(table="qd_names")) == ([], [])
    assert turn(first).jobs == ()


# -- the keeper


def test_the_keeper_renews_the_leases_of_all_places(connect, table):
    worker, keeper = connect(1, 30.0), connect(9)
    fill(worker)
    jobs = many(worker)
    places = tuple(split_mark(held.mark).seat for held in jobs)
    table.do("UPDATE qd_reserved SET leased_until = 1")
    answer = beat(keeper, slots=places[:8])
    assert (answer.lost, answer.reclaimed) == ([], 8)
    assert turn(worker, lanes=(), done=jobs).lost == jobs[8:]


def test_the_jobs_of_a_dead_worker_are_settled_each_in_its_way(connect, table):
    worker, keeper = connect(1), connect(9)
    fill(warm(worker), 300)
    before = {row.id: row for row in table.rows()}
    finished, ran, *waiting = turn(worker).jobs
    owned = keeper.owned_by("a", [held.owner for held in (finished, ran, *waiting)] + [f"{TOKEN}/1"])
    assert owned == {held.owner: held.member for held in (finished, ran, *waiting)}
    answers = [
        LaneAnswer(finished.owner, finished.member),
        LaneAnswer(ran.owner, ran.member, taken_alone(ran.member, ran.mark)),
        *[LaneAnswer(held.owner, held.member, unstarted(held.member, held.mark)) for held in waiting],
    ]
    assert keeper.settle_lanes("a", answers) == [True] * len(LANES)
    assert keeper.settle_lanes("a", answers) == [False] * len(LANES)
    assert keeper.owned_by("a", list(owned)) == {}
    left = table.rows()
    assert left[1:] == [before[row.id] for row in left[1:]]
    other = connect(2)
    again = turn(other).jobs
    assert (ids(again), again[0].lane, read(again[0].member).crashes) == (["id1"], 0, 1)
    assert ids(turn(other, done=again).jobs)[:2] == ["id2", "id3"]


def test_a_keeper_settles_500_jobs_in_order(connect):
    lanes = range(1, 501)
    worker, keeper = connect(1), connect(9)
    fill(worker, 8500)
    worker.reserver.most = 500
    jobs = turn(worker, lanes=lanes).jobs
    assert len(jobs) == 500
    answers = [LaneAnswer(held.owner, held.member, unstarted(held.member, held.mark)) for held in jobs]
    assert keeper.settle_lanes("a", answers) == [True] * 500
    assert keeper.sizes("a").reserved == 0
    assert ids(turn(connect(2)).jobs) == ["id0"]


def test_a_job_that_was_reserved_with_others_costs_nothing_if_its_host_dies(connect, table):
    """Its lease expires: nobody knows whether it has run. Of a job that was alone, a crash counts."""
    worker, other = connect(1), connect(2)
    fill(worker)
    jobs = many(worker)
    table.do("UPDATE qd_reserved SET leased_until = 1")
    assert beat(other, slots=()).reclaimed == len(jobs)
    assert {row.attempts for row in table.rows()} == {0}
    table.do("DELETE FROM jobs WHERE payload NOT LIKE '%rsv%'")
    again = [other.turn(None, ["a"]).reserved, *()]
    assert again[0] is not None
    assert (read(again[0].member).attempts, read(again[0].member).crashes) == (1, 0)
    table.do("UPDATE qd_reserved SET leased_until = 1")
    table.do("DELETE FROM jobs WHERE reserved_at IS NULL")
    assert beat(worker, slots=()).reclaimed == 1
    (alone,) = turn(worker).jobs
    assert (alone.lane, read(alone.member).attempts, read(alone.member).crashes) == (0, 1, 1)


def test_workers_with_and_without_lanes_share_a_queue(connect, table):
    push_many(connect(9), [("a", job(n), None) for n in range(600)])
    done: list[list[str | None]] = [[] for _ in range(4)]

    def ahead(slot: int) -> None:
        queue = connect(slot)
        reply = turn(queue)
        while reply.jobs:
            started, back = reply.jobs[: len(reply.jobs) // 2 + 1], reply.jobs[len(reply.jobs) // 2 + 1 :]
            done[slot] += ids(started)
            reply = turn(queue, done=started, back=back)
            assert reply.lost == ()

    def one(slot: int) -> None:
        queue = connect(slot)
        held: Reserved | None = None
        while (found := queue.turn(held, ["a"])).reserved is not None:
            held = found.reserved
            done[slot] += ids([held])

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(ahead if slot else one, slot) for slot in range(4)]:
            each.result()
    assert sorted(str(name) for some in done for name in some) == sorted(f"id{n}" for n in range(600))
    assert (table.rows(), table.rows(table="qd_reserved")) == ([], [])


def test_every_database_has_lanes(queue):
    assert with_lanes(queue) is queue
