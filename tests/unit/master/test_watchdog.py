"""When the master ends a job that is over its time: its stack first, and time for both, however late the master looks."""

from __future__ import annotations

import pytest

from qd.log import Log
from qd.master import children as children_module
from qd.master import watchdog
from qd.master.children import Children, Worker
from qd.master.watchdog import GRACE, STACK, Watchdog
from qd.process.scoreboard import Scoreboard, SlotState, Verdict, W


class Rig:
    """A worker in a job whose time is over at 1,000 s by the clock; what it was sent, and how it was ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.did = 1000.0, list[str]()
        for module in (children_module, watchdog, watchdog):
            monkeypatch.setattr(module, "now", lambda: int(self.at * 1e9))
        monkeypatch.setattr(Worker, "send", lambda worker, number: self.did.append("stack"))
        children = Children(Scoreboard())
        monkeypatch.setattr(children, "kill", lambda worker, verdict: self.did.append(verdict.name))
        self.worker = children.take(0, 1, 990.0)
        self.worker.pid, self.worker.ready, self.worker.quiet_since = 1, True, int(1000e9)
        self.worker.slot[W.STATE], self.worker.slot[W.DEADLINE] = SlotState.BUSY, int(1000e9)
        self.late = Watchdog(children, Log("master", write=lambda line: None))

    def look(self, at: float, silence: float = 10.0) -> list[str]:
        """What was done so far, after a look at that moment."""
        self.at = at
        self.late.end(0, silence)
        return self.did


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


def test_the_stack_is_asked_for_and_then_it_is_killed(rig: Rig) -> None:
    assert rig.look(1000.2) == []
    assert rig.look(1000 + GRACE - STACK + 0.005) == ["stack"]
    assert rig.late.next() == pytest.approx(STACK, abs=0.006)
    assert rig.look(1000 + GRACE - 0.001) == ["stack"]
    assert rig.look(1000 + GRACE + 0.006) == ["stack", Verdict.TIMEOUT.name]


def test_a_master_that_looks_late_gives_the_stack_its_time_all_the_same(rig: Rig) -> None:
    assert rig.look(1003) == ["stack"]
    assert rig.look(1003.001) == ["stack"], "a look that something else has brought"
    assert rig.late.next() == pytest.approx(STACK, abs=0.006)
    assert rig.look(1003 + STACK + 0.001) == ["stack", Verdict.TIMEOUT.name]


def test_what_ends_by_itself_in_that_time_is_left_alone(rig: Rig) -> None:
    assert rig.look(1003) == ["stack"]
    rig.worker.slot[W.DEADLINE] = 0  # its own alarm has been heard
    assert rig.look(1003.2) == ["stack"]


def test_a_silent_one_has_that_time_too(rig: Rig) -> None:
    rig.worker.slot[W.STATE] = SlotState.WAITING
    for second in range(11):
        assert rig.look(1000 + second) == []
    assert rig.look(1011.0) == ["stack"]
    assert rig.look(1011.001) == ["stack"]
    assert rig.look(1011.2) == ["stack", Verdict.CRASH.name]
