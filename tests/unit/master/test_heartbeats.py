"""How long a worker between two jobs has given no sign of life, as far as its master can tell."""

from __future__ import annotations

import pytest

from qd.master import watchdog
from qd.master.children import Worker
from qd.master.watchdog import HeartbeatMonitor
from qd.process.scoreboard import Scoreboard, SlotState, W


class Clock:
    """What silence.py takes for now."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = 1_000_000_000_000
        monkeypatch.setattr(watchdog, "now", lambda: self.at)

    def pass_(self, seconds: float) -> None:
        self.at += int(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def worker(clock: Clock) -> Worker:
    slot = Scoreboard().slot(0)
    slot[W.STATE] = SlotState.WAITING
    return Worker(slot, 1, 1, 0.0, pid=1, ready=True, quiet_since=clock.at)


def looks(quiet: HeartbeatMonitor, one: Worker, clock: Clock, seconds: float, each: float = 0.3) -> float:
    until = clock.at + int(seconds * 1e9)
    while clock.at < until:
        clock.pass_(each)
        quiet.look([one])
    return quiet.of(one)


def test_silence_is_what_the_master_has_seen_awake(clock: Clock) -> None:
    quiet, one = HeartbeatMonitor(), worker(clock)
    assert looks(quiet, one, clock, 6) == pytest.approx(6, abs=0.7)
    clock.pass_(3600)  # the whole tree was stopped
    quiet.look([one])
    assert quiet.of(one) == pytest.approx(6, abs=0.7)
    one.slot[W.BEAT] = clock.at
    assert looks(quiet, one, clock, 0.3) < 1


def test_silence_does_not_count_in_a_job_nor_before_what_was_announced(clock: Clock) -> None:
    quiet, one = HeartbeatMonitor(), worker(clock)
    one.slot[W.STATE] = SlotState.BUSY
    assert looks(quiet, one, clock, 60) < 1
    one.slot[W.STATE] = SlotState.LOOKING
    one.slot[W.BEAT] = clock.at + int(60e9)
    assert looks(quiet, one, clock, 59) < 0
    assert looks(quiet, one, clock, 11) == pytest.approx(10, abs=1)
