"""The steps of a stop, on a made-up clock."""

from __future__ import annotations

from qd.process.scoreboard import SlotState, W
from tests.support.masters import MakeRig


def test_a_child_that_hangs_before_it_can_have_a_job_is_ended_after_a_second(make_rig: MakeRig) -> None:
    """Without a stop timeout: nothing else would end it. The template goes first, with what it may still fork."""
    rig = make_rig(no_preload=False)
    rig.turn()
    (worker,) = rig.workers
    rig.state.children.born(worker, 1 << 23 | 99)
    template = rig.code.pid
    rig.stop()
    rig.turn(0.9)
    assert rig.did == [("SIGTERM", worker.pid)]
    rig.turn(0.2)
    assert rig.did[1:3] == [("killed", template), ("killed", worker.pid)]
    rig.dies(worker.pid)
    rig.turn()
    assert rig.state.stopping is not None
    assert rig.state.stopping.over


def test_a_running_job_is_told_a_fifth_before_the_deadline_and_killed_at_it(make_rig: MakeRig) -> None:
    rig = make_rig(stop_timeout=10.0)
    (worker,) = rig.workers
    worker.slot[W.STATE] = SlotState.BUSY
    rig.stop()
    rig.turn(7.9)
    assert rig.did == [("SIGTERM", worker.pid)]
    rig.turn(0.2)
    rig.turn(0.2)
    assert rig.did == [("SIGTERM", worker.pid), ("SIGALRM", worker.pid)], "told once"
    rig.turn(1.8)
    assert rig.did[2:] == [("killed", worker.pid)]


def test_without_a_stop_timeout_a_running_job_is_waited_for(make_rig: MakeRig) -> None:
    rig = make_rig()
    (worker,) = rig.workers
    worker.slot[W.STATE] = SlotState.BUSY
    rig.stop()
    rig.turn(100_000)
    assert rig.did == [("SIGTERM", worker.pid)]


def test_a_second_signal_tells_the_job_at_once_and_ends_it_a_moment_later(make_rig: MakeRig) -> None:
    rig = make_rig(stop_timeout=60.0)
    (worker,) = rig.workers
    worker.slot[W.STATE] = SlotState.BUSY
    rig.stop()
    stopping = rig.state.stopping
    assert stopping is not None
    rig.at += 0.5
    assert not stopping.again(), "the same request, delivered twice"
    rig.at += 1.0
    assert stopping.again()
    rig.turn()
    assert rig.did == [("SIGTERM", worker.pid), ("SIGALRM", worker.pid)]
    rig.turn(1.6)
    assert rig.did[2:] == [("killed", worker.pid)]
