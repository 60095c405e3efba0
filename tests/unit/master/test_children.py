"""qd.master.children: the slots of workers, and when they are free again."""

from __future__ import annotations

from qd.master.children import Children
from qd.process.scoreboard import Scoreboard, SlotState, W


def test_the_slot_of_a_dead_worker_is_free_once_the_keeper_has_moved_its_jobs() -> None:
    children = Children(Scoreboard())
    slot = children.board.slot(0)
    slot[W.PID], slot[W.STATE] = 7, SlotState.DEAD
    children.dead.add(0)
    children.free_settled()
    assert (children.unsettled(), children.free_slot(), slot[W.STATE]) == (True, 1, SlotState.DEAD)
    slot[W.STATE] = SlotState.SETTLED
    children.free_settled()
    assert (children.unsettled(), children.free_slot(), slot[W.STATE], slot[W.PID]) == (False, 0, SlotState.FREE, 0)


def test_each_worker_of_a_slot_has_a_generation_of_its_own() -> None:
    children, generations = Children(Scoreboard()), list[int]()
    for _ in range(3):
        worker = children.take(0, 1, 0.0)
        generations.append(worker.generation)
        children.forget(worker)
    assert generations == [1, 2, 3]
