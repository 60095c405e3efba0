"""A worker dies with several jobs: each goes where its worker had come with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qd.drivers.keyspace import keys
from qd.drivers.redis.queue import RedisQueue
from qd.drivers.types import LaneTurn, Reserved
from qd.keeper.dead_workers import DeadWorkers
from qd.keeper.recall import Recall
from qd.log import Log
from qd.master.code import ChildContext
from qd.payload.format import read
from qd.process.channels import MessageReceiver
from qd.process.scoreboard import L, LaneState, Scoreboard, SlotState, Verdict, W, batch_of
from tests.contract.conftest import ONE
from tests.contract.keyspace.test_queue import job
from tests.support.redis import Seen

pytestmark = pytest.mark.parametrize("place", ONE, indirect=True)
TOKEN, SLOT = "Tok3nTok3n", 1


@pytest.fixture
def context() -> Iterator[ChildContext]:
    receiver, log = MessageReceiver(), Log("keeper", write=lambda line: None)
    yield ChildContext(Scoreboard(), receiver.sender, TOKEN, 1, log)
    for end in (receiver.sock, receiver.sender.sock):
        end.close()


@pytest.fixture
def worker(connect, seen: Seen) -> Iterator[RedisQueue]:
    queue: RedisQueue = connect(SLOT)
    for n in range(80):  # a turn takes one job, and one more for each 16 that are ready
        queue.push("a", job(n))
    yield queue
    for held in queue.held_lanes(("a",), range(1, 6)):
        queue.ack(held)
    queue.leave_lanes()
    queue.clear("a")
    assert seen.owners("a") == {}
    queue.space.call("DEL", *queue._keys(keys.deaths("a")))


def taken(worker: RedisQueue, context: ChildContext) -> list[Reserved]:
    """Five jobs of one turn, as the worker notes them."""
    jobs = list(worker.turn_lanes(LaneTurn(("a",), lanes=range(1, 6))).jobs)
    slot = context.board.slot(SLOT)
    slot[W.GENERATION], slot[W.LANES], slot[W.BATCH] = 1, 5, batch_of(jobs[0].turn, len(jobs))
    slot[W.HELD_AT] = 1
    assert len(jobs) == 5
    return jobs


def start(context: ChildContext, job: Reserved, *, finished: Reserved) -> None:
    """The worker runs `job` after it has finished others up to `finished`."""
    slot = context.board.slot(SLOT)
    slot[W.STARTED] = slot[W.TURN] = job.turn
    slot[W.PROOF] = context.board.proof_of(finished.turn)


def die(context: ChildContext, connect, verdict: Verdict) -> None:
    slot = context.board.slot(SLOT)
    slot[W.STATE], slot[W.VERDICT] = SlotState.DEAD, verdict
    dead = DeadWorkers(connect(0), ("a",), context, context.log)
    dead.handle([{"dead": SLOT}])
    dead.settle_workers()
    assert slot[W.STATE] == SlotState.SETTLED


def test_a_crash_counts_against_the_running_job_only(place, connect, seen: Seen, worker, context):
    pushed = seen.ready("a")
    jobs = taken(worker, context)
    start(context, jobs[2], finished=jobs[1])
    die(context, connect, Verdict.CRASH)
    ready = seen.ready("a")
    assert ready[:-1] == [*pushed[3:]]  # the unstarted ones are in front, with the bytes that were pushed
    assert (seen.reserved("a"), {field for field in seen.owners("a") if ":" not in field}) == ({}, set())
    worker.clear("a")
    worker.push("a", ready[-1])
    (again,) = worker.turn_lanes(LaneTurn(("a",), lanes=(0,))).jobs
    assert (read(again.member).crashes, read(again.member).attempts) == (1, 1)


def test_a_stray_write_of_the_started_turn_acks_nothing(place, connect, seen: Seen, worker, context):
    jobs = taken(worker, context)
    start(context, jobs[0], finished=jobs[0])
    context.board.slot(SLOT)[W.STARTED] = jobs[4].turn
    context.board.slot(SLOT)[W.PROOF] = 12345
    die(context, connect, Verdict.CRASH)
    assert len(seen.ready("a")) == 80


def test_jobs_handed_back_cost_nothing(place, connect, seen: Seen, worker, context):
    jobs = taken(worker, context)
    start(context, jobs[1], finished=jobs[0])
    die(context, connect, Verdict.HAND_BACK)
    ready = seen.ready("a")
    assert len(ready) == 79
    assert [read(payload).attempts for payload in ready] == [0] * 79


def test_what_was_reserved_by_a_turn_without_a_reply_goes_back(place, connect, seen: Seen, worker, context):
    pushed = seen.ready("a")
    taken(worker, context)
    context.board.slot(SLOT)[W.BATCH] = context.board.slot(SLOT)[W.STARTED] = 0
    die(context, connect, Verdict.CRASH)
    assert seen.ready("a") == pushed


def test_a_recall_acks_what_has_finished_and_puts_back_what_has_not_started(
    place, connect, seen: Seen, worker, context
):
    pushed = seen.ready("a")
    jobs = taken(worker, context)
    context.board.slot(SLOT)[W.STATE] = SlotState.BUSY
    start(context, jobs[2], finished=jobs[1])
    recall = Recall(connect(0), ("a",), context.board, TOKEN)
    while recall.look() is not None:
        pass
    assert seen.ready("a") == pushed[3:]
    assert [*seen.reserved("a")] == [jobs[2].member]
    reply = worker.turn_lanes(LaneTurn(("a",), done=jobs[:3], back=jobs[3:], shut=("a",)))
    assert [each.turn for each in reply.lost] == [jobs[0].turn, jobs[1].turn]
    assert context.board.slot(SLOT)[W.SETTLED] == jobs[1].turn
    assert seen.ready("a") == pushed[3:]


# -- workers that run several jobs at once


def run_all(context: ChildContext, jobs: list[Reserved]) -> None:
    """The worker runs all of them, each in its lane."""
    slot = context.board.slot(SLOT)
    slot[W.SEVERAL] = 1
    for held in jobs:
        context.board.lane(SLOT, held.lane).set(held.turn, LaneState.STARTED)


def suspects(worker: RedisQueue) -> list[bytes]:
    found: list[bytes] = worker.space.call("LRANGE", *worker._keys(keys.suspects("a")), 0, -1)
    return found


def test_without_blame_all_that_ran_are_suspects_and_the_finished_one_is_acked(
    place, connect, seen: Seen, worker, context
):
    jobs = taken(worker, context)
    run_all(context, jobs)
    context.board.lane(SLOT, jobs[0].lane)[L.PROOF] = context.board.proof_of(jobs[0].turn)
    die(context, connect, Verdict.CRASH)
    assert suspects(worker) == [each.member for each in jobs[1:]]
    assert len(seen.ready("a")) == 75


def test_the_job_to_blame_is_the_only_suspect(place, connect, seen: Seen, worker, context):
    jobs = taken(worker, context)
    run_all(context, jobs)
    context.board.slot(SLOT)[W.BLAME] = jobs[3].turn
    die(context, connect, Verdict.CRASH)
    assert suspects(worker) == [jobs[3].member]
    assert [read(each).attempts for each in seen.ready("a")[:4]] == [0] * 4


def test_an_exclusive_job_killed_for_its_timeout_has_timed_out(place, connect, seen: Seen, worker, context):
    jobs = taken(worker, context)
    run_all(context, jobs[2:3])
    slot = context.board.slot(SLOT)
    slot[W.STARTED] = slot[W.TURN] = jobs[2].turn
    slot[W.BACKOFF_MS] = 60_000
    die(context, connect, Verdict.TIMEOUT)
    assert suspects(worker) == []
    (delayed,) = seen.delayed("a")
    assert (read(delayed).attempts, read(delayed).exceptions) == (1, 1)
