"""Signals that arrive together, and the steps of a stop, on a fake clock."""

from __future__ import annotations

import signal

import pytest

from qd.master.master import merged
from qd.process import systemd
from qd.process.exit_codes import Exit
from qd.process.scoreboard import SlotState, W
from tests.support.masters import MakeRig


def test_repeated_reloads_merge_and_each_ttin_counts():
    burst = [
        signal.SIGHUP,
        signal.SIGTTIN,
        signal.SIGHUP,
        signal.SIGUSR1,
        signal.SIGTTIN,
        signal.SIGHUP,
        signal.SIGTERM,
    ]
    assert sorted(merged([*burst])) == [
        *(signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM),
        *(signal.SIGTTIN, signal.SIGTTIN),
    ]


def test_no_signals_merge_to_no_signals():
    assert merged([]) == []


def test_a_child_that_hangs_before_its_first_job_is_killed_after_a_second(make_rig: MakeRig) -> None:
    """Even without a stop timeout. The template is killed first, so that it forks no more workers."""
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


def test_a_running_job_is_interrupted_before_the_stop_deadline_and_killed_at_it(make_rig: MakeRig) -> None:
    rig = make_rig(stop_timeout=10.0)
    (worker,) = rig.workers
    worker.slot[W.STATE] = SlotState.BUSY
    rig.stop()
    rig.turn(7.9)
    assert rig.did == [("SIGTERM", worker.pid)]
    rig.turn(0.2)
    rig.turn(0.2)
    assert rig.did == [("SIGTERM", worker.pid), ("SIGALRM", worker.pid)], "interrupted once"
    rig.turn(1.8)
    assert rig.did[2:] == [("killed", worker.pid)]


def test_without_a_stop_timeout_the_master_waits_for_a_running_job(make_rig: MakeRig) -> None:
    rig = make_rig()
    (worker,) = rig.workers
    worker.slot[W.STATE] = SlotState.BUSY
    rig.stop()
    rig.turn(100_000)
    assert rig.did == [("SIGTERM", worker.pid)]


def test_a_second_signal_interrupts_the_job_at_once_and_kills_it_soon_after(make_rig: MakeRig) -> None:
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


@pytest.mark.parametrize(("by_signal", "sent"), [(False, ["READY", "STOPPING"]), (True, ["STOPPING"])])
def test_a_program_that_ends_before_it_is_ready_has_not_failed_for_systemd(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, by_signal: bool, sent: list[str]
) -> None:
    """With --stop-when-empty, one worker may find the queues empty before the other has booted."""
    states = list[str]()
    monkeypatch.setattr(systemd.Notifier, "_send", lambda _, values: states.append(next(iter(values))))
    rig = make_rig()
    states.clear()
    rig.state.begin_stop("the queues are empty", Exit.OK, by_signal=by_signal)
    assert states == sent
