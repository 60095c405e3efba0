"""Slots, generations and numbers of workers: those that die early or cannot be forked are replaced ever more slowly."""

from __future__ import annotations

from qd.master.children import SPAWN_PATIENCE, Children
from qd.master.code import PATIENCE
from qd.process.scoreboard import Scoreboard, SlotState, W
from tests.support.masters import MakeRig, Rig


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


def test_each_worker_of_a_slot_gets_a_new_generation() -> None:
    children, generations = Children(Scoreboard()), list[int]()
    for _ in range(3):
        worker = children.take(0, 1, 0.0)
        generations.append(worker.generation)
        children.forget(worker)
    assert generations == [1, 2, 3]


SOON = 0.001  # seconds between two turns


def falls(rig: Rig) -> None:
    """The worker boots and dies before it has had a job."""
    (worker,) = rig.workers
    if not worker.ready:
        rig.boots(worker)
    rig.dies(worker.pid)
    rig.turn(SOON)


def test_workers_that_die_before_any_job_are_replaced_with_growing_delays(make_rig: MakeRig) -> None:
    rig = make_rig()
    for delay in (0.1, 0.2, 0.4, 0.8, 1.6):
        falls(rig)
        rig.turn(delay - 2 * SOON)
        assert rig.workers == [], f"another one before {delay} s"
        rig.turn(3 * SOON)
        assert len(rig.workers) == 1
    assert rig.logged("worker.crash_loop", "retry_in") == ["0.200", "0.400", "0.800", "1.600"], (
        "the first is no loop yet"
    )
    assert len(rig.logged("worker.died", "how")) == 5


def test_a_finished_job_resets_the_spawn_delay(make_rig: MakeRig) -> None:
    rig = make_rig()
    for _ in range(3):
        falls(rig)
        rig.turn(1.0)
    (worker,) = rig.workers
    rig.boots(worker)
    worker.slot[W.JOBS] = 1
    rig.turn(SOON)
    rig.dies(worker.pid)
    rig.turn(SOON)
    falls(rig)
    assert rig.logged("worker.crash_loop", "deaths") == ["2", "3"], "the fourth is the first of its kind"
    rig.turn(0.1)
    falls(rig)
    assert rig.logged("worker.crash_loop", "deaths") == ["2", "3", "2"]


def test_a_worker_that_survives_for_a_while_ends_the_crash_loop(make_rig: MakeRig) -> None:
    rig = make_rig()
    for _ in range(3):
        falls(rig)
        rig.turn(1.0)
    rig.boots(rig.workers[0])
    rig.turn(6.0)
    rig.dies(rig.workers[0].pid)
    rig.turn(SOON)
    falls(rig)
    rig.turn(0.1)
    assert rig.logged("worker.crash_loop", "deaths") == ["2", "3"]
    assert len(rig.workers) == 1


def test_workers_that_die_in_a_job_are_replaced_at_once(make_rig: MakeRig) -> None:
    rig = make_rig()
    for count in range(1, 6):
        (worker,) = rig.workers
        if not worker.ready:
            rig.boots(worker)
        worker.slot.describe(b"slow", b"default")
        worker.slot[W.STATE], worker.slot[W.JOB_AT] = SlotState.BUSY, int(rig.at * 1e9)
        rig.dies(worker.pid)
        rig.turn(SOON)
        assert len(rig.workers) == 1
        assert rig.workers[0].pid != worker.pid
        assert len(rig.logged("worker.died", "job")) == count
    assert rig.logged("worker.crash_loop", "deaths") == []


def test_failed_forks_keep_the_existing_workers_and_log_one_line_per_delay(make_rig: MakeRig) -> None:
    rig = make_rig()
    (first,) = rig.workers
    rig.full, rig.state.wanted = True, 6
    for _ in range(100):
        rig.turn(0.1)
    assert rig.workers == [first]
    assert rig.logged("worker.fork_failed", "retry_in") == ["1.000", "2.000", "4.000", "4.000"]
    assert set(rig.logged("worker.fork_failed", "workers")) == {"1"}
    rig.full = False
    rig.turn(4.0)
    assert len(rig.workers) == 6


def test_a_failed_fork_of_the_template_is_retried(make_rig: MakeRig) -> None:
    rig = make_rig(no_preload=False)
    rig.state.codes.serving = None  # as at the start
    rig.full = True
    rig.reload.begin(rig.state.plan)
    for _ in range(100):
        rig.turn(0.1)
    assert rig.logged("template.fork_failed", "retry_in") == ["1.000", "2.000", "4.000", "4.000"]
    rig.full = False
    rig.turn(4.0)
    coming = rig.state.codes.coming
    assert coming is not None
    assert rig.reload.imported(coming), "it is the first one, and serves"
    rig.turn(SOON)
    assert len(rig.orders(coming)) == 1


def test_a_first_import_that_takes_long_is_logged_once(make_rig: MakeRig) -> None:
    rig = make_rig(no_preload=False)
    rig.state.codes.serving = None  # as at the start
    rig.reload.begin(rig.state.plan)
    coming = rig.state.codes.coming
    assert coming is not None
    coming.forked_at = rig.at
    rig.turn(PATIENCE - 1.0)
    assert rig.logged("template.slow", "pid") == []
    for _ in range(3):
        rig.turn(PATIENCE)
    assert rig.logged("template.slow", "pid") == [str(coming.pid)]


def test_a_template_that_leaves_two_orders_unanswered_is_killed_and_replaced(make_rig: MakeRig) -> None:
    rig = make_rig(no_preload=False)
    rig.turn(SOON)
    template = rig.code.pid
    assert len(rig.orders(rig.code)) == 1
    rig.turn(SPAWN_PATIENCE + SOON)
    assert rig.did == []
    assert len(rig.orders(rig.code)) == 2, "asked again"
    rig.turn(SPAWN_PATIENCE + SOON)
    assert rig.did == [("killed", template)]
    assert rig.logged("template.silent", "pid") == [str(template)]
    rig.dies(template)
    rig.turn(SOON)
    coming = rig.state.codes.coming
    assert coming is not None
    assert coming.pid not in (0, template)
    rig.reload.imported(coming)
    rig.turn(SOON)
    assert len(rig.orders(coming)) == 1, "a worker of the new template"


def test_an_answered_order_resets_the_count_of_unanswered_ones(make_rig: MakeRig) -> None:
    rig = make_rig(no_preload=False)
    for _ in range(4):
        rig.turn(SPAWN_PATIENCE + SOON)
        rig.spawner.born(rig.workers[0])
    assert rig.did == []
