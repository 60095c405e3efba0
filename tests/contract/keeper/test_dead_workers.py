"""A dead worker's reservation that reaches the server after the keeper's check: the job does not wait for its lease."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qd.drivers.redis.queue import RedisQueue
from qd.keeper.dead_workers import DeadWorkers
from qd.log import Log
from qd.master.code import ChildContext
from qd.payload.format import read
from qd.payload.reservation import LIFE
from qd.process.channels import MessageReceiver
from qd.process.scoreboard import Scoreboard, SlotState, Verdict, W
from tests.contract.conftest import ONE
from tests.contract.keyspace.test_queue import job, take
from tests.support.redis import Seen

pytestmark = pytest.mark.parametrize("place", ONE, indirect=True)
TOKEN = "Tok3nTok3n"


@pytest.fixture
def dead(connect) -> Iterator[DeadWorkers]:
    """A keeper that has settled worker 2 of slot 1, which held nothing at that time."""
    receiver, log = MessageReceiver(), Log("keeper", write=lambda line: None)
    context = ChildContext(Scoreboard(), receiver.sender, TOKEN, 1, log)
    slot = context.board.slot(1)
    slot[W.STATE], slot[W.VERDICT], slot[W.GENERATION] = SlotState.DEAD, Verdict.CRASH, 2
    found = DeadWorkers(connect(0), ("a",), context, log)
    found.handle([{"dead": 1}])
    found.settle_workers()
    assert slot[W.STATE] == SlotState.SETTLED
    yield found
    for end in (receiver.sock, receiver.sender.sock):
        end.close()


def test_a_late_reservation_of_a_dead_worker_is_requeued(place, connect, seen: Seen, dead: DeadWorkers):
    worker: RedisQueue = connect(turns=LIFE)
    worker.push("a", job(1))
    take(worker)
    dead.settle_workers()
    assert (seen.reserved("a"), seen.owners("a")) == ({}, {})
    again = take(worker)
    assert read(again.member).crashes == 1
    assert worker.ack(again)


def test_the_reservation_of_the_next_worker_of_the_slot_stays(place, connect, seen: Seen, dead: DeadWorkers):
    worker: RedisQueue = connect(turns=2 * LIFE)
    worker.push("a", job(1))
    held = take(worker)
    dead.settle_workers()
    assert [*seen.reserved("a")] == [held.member]
    assert worker.ack(held)
