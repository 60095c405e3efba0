"""Checkpoints of a running job: stored in the reserved payload at once, and kept wherever the payload goes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from qd.drivers.keyspace.base import Script, script
from qd.drivers.redis.queue import RedisQueue
from qd.drivers.types import Released, Reserved
from qd.keeper.dead_workers import DeadWorkers
from qd.log import Log
from qd.master.code import ChildContext
from qd.payload.format import read
from qd.payload.reservation import answered, saving
from qd.process.channels import MessageReceiver
from qd.process.scoreboard import Scoreboard, SlotState, Verdict, W
from tests.contract.conftest import ONE
from tests.contract.keyspace.test_queue import job, steal, take
from tests.contract.machine import PHP_POP
from tests.support.keeper import beat
from tests.support.redis import Seen


def save(queue: RedisQueue, held: Reserved, state: object) -> Reserved:
    member = saving(held.member, held.mark, msgspec.json.encode(state))
    assert queue.checkpoint(held, member)
    return held._replace(member=member)


def saved(held: Reserved) -> object:
    text = read(held.member).checkpoint
    return None if text is None else msgspec.json.decode(text)


def test_a_checkpoint_replaces_the_reserved_payload_under_the_same_lease(queue, seen):
    queue.push("a", job(1))
    held = take(queue)
    ((_, lease),) = seen.reserved("a").items()
    new = save(queue, held, {"row": 7})
    assert seen.reserved("a") == {new.member: lease}
    assert list(seen.owners("a").values()) == [new.member]
    assert queue.held(["a"]) == new._replace(before=b'"attempts":0')
    assert queue.ack(held) is False
    assert queue.ack(new) is True


def test_the_same_checkpoint_twice_changes_nothing(queue, seen):
    queue.push("a", job(1))
    once = save(queue, take(queue), "x")
    before = seen.dump()
    assert save(queue, once, "x") == once
    assert seen.dump() == before
    assert queue.ack(once)


def test_a_checkpoint_after_a_lost_lease_is_rejected_and_adds_nothing(queue, seen):
    queue.push("a", job(1))
    held = take(queue)
    steal(seen, held)
    assert queue.checkpoint(held, saving(held.member, held.mark, b"7")) is False
    assert seen.reserved("a") == {}
    assert queue.ack(held) is False


def test_a_late_checkpoint_does_not_replace_a_newer_one(queue, seen):
    queue.push("a", job(1))
    held = take(queue)
    new = save(queue, held, "newer")
    assert queue.checkpoint(held, saving(held.member, held.mark, b'"late"')) is False
    assert list(seen.reserved("a")) == [new.member]
    assert queue.ack(new)


Way = Callable[[RedisQueue, Seen, Reserved], object]
WAYS: dict[str, Way] = {
    "a release": lambda queue, seen, held: queue.release(held, Released(answered(held.member, held.mark))),
    "a hand-back": lambda queue, seen, held: queue.release(
        held, Released(answered(held.member, held.mark, attempts=0), head=True)
    ),
    "a delay": lambda queue, seen, held: (
        queue.release(held, Released(answered(held.member, held.mark, exceptions=1), 60)),
        [seen.call("ZADD", "a", "delayed", "XX", 1, text) for text in seen.delayed("a")],
    ),
    "a crash": lambda queue, seen, held: queue.give_back("a", queue.owner, held.member, Released(held.member)),
    "an expired lease": lambda queue, seen, held: (
        seen.call("ZADD", "a", "reserved", "XX", 1, held.member),
        beat(queue, "a", reclaim=True),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_next_attempt_sees_the_checkpoint(queue, seen, way):
    queue.push("a", job(1))
    held = take(queue)
    assert saved(held) is None
    for step in range(3):
        held = save(queue, save(queue, held, "before"), {"step": step, "list": []})
        WAYS[way](queue, seen, held)
        held = take(queue)
        assert saved(held) == {"step": step, "list": []}
        assert held.member.count(b'"saved"') == 1
        assert bytes(read(held.member).data) == b'{"n":1}'
    assert queue.ack(held)


def test_a_checkpoint_survives_a_rewrite_of_the_payload_by_php(queue, seen):
    queue.push("a", job(1))
    WAYS["a release"](queue, seen, save(queue, take(queue), {"row": [], "big": 10**14}))
    for step in range(3):
        names = [seen.key("a"), seen.key("a", "reserved"), seen.key("a", "notify")]
        text = seen.client.call("EVAL", PHP_POP, 3, *names)
        seen.call("ZREM", "a", "reserved", text)
        seen.call("RPUSH", "a", "", text)
        held = take(queue)
        assert saved(held) == ({"row": [], "big": 10**14} if step == 0 else step)
        held = save(queue, held, step + 1)
        assert saved(held) == step + 1
        WAYS["a crash"](queue, seen, held)
    held = take(queue)
    assert saved(held) == 3
    assert queue.ack(held)


def test_a_large_checkpoint_does_not_slow_down_a_reserve(queue, seen, monkeypatch):
    """The script finds the attempts before the checkpoint, without scanning half a megabyte of arguments."""
    turn = script("turn")
    known = "local function gathered(p)\n"
    assert turn.text.count(known) == 1
    for attribute, value in vars(
        Script(turn.name, turn.text.replace(known, known + "  error('the long way')\n"))
    ).items():
        monkeypatch.setattr(turn, attribute, value)
    queue.push("a", job(1, data=["x"] * 150_000))
    held = take(queue)
    for state in ("", "x" * 65_534):
        WAYS["a release"](queue, seen, save(queue, held, state))
        held = take(queue)
        assert saved(held) == state
    WAYS["a crash"](queue, seen, held)
    assert queue.ack(take(queue))


@pytest.mark.leaves("queues:*:deaths")
@pytest.mark.parametrize("place", ONE, indirect=True)
def test_a_keeper_requeues_a_dead_workers_job_whose_last_checkpoint_arrives_late(queue, connect, seen, monkeypatch):
    """Between the keeper's check and its move, the server reads what the worker had sent before it died."""
    queue.push("a", job(1))
    held, keeper, receiver = take(queue), connect(0), MessageReceiver()
    lines: list[bytes] = []
    log = Log("keeper", write=lines.append)
    context = ChildContext(Scoreboard(), receiver.sender, "Tok3nTok3n", 1, log)
    slot = context.board.slot(1)
    slot[W.STATE], slot[W.VERDICT] = SlotState.DEAD, Verdict.CRASH
    owned = keeper.owned

    def then_late(name: str, owner: str) -> bytes | None:
        found: bytes | None = owned(name, owner)
        queue.checkpoint(held, saving(held.member, held.mark, b"7"))
        return found

    monkeypatch.setattr(keeper, "owned", then_late)
    dead = DeadWorkers(keeper, ("a",), context, log)
    dead.handle([{"dead": 1}])
    dead.settle_workers()
    for end in (receiver.sock, receiver.sender.sock):
        end.close()
    assert (len(lines), seen.reserved("a")) == (1, {})
    again = take(queue)
    assert (saved(again), read(again.member).crashes) == (7, 1)
    assert queue.ack(again)
