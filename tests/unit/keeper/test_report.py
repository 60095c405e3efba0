"""What a keeper's report contains about its master."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from qd.keeper import report as module
from qd.keeper.report import Report
from qd.process.scoreboard import H, Role, Scoreboard, SlotState, W
from tests.support.fakes import settings

Silent = Callable[[int], float]


@pytest.fixture
def board() -> Scoreboard:
    return Scoreboard()


@pytest.fixture
def silent(board: Scoreboard, monkeypatch: pytest.MonkeyPatch) -> Silent:
    """silent(s): `master_silent` in the report at second s."""
    at = 1000
    monkeypatch.setattr(module, "now", lambda: at * 10**9)
    context = SimpleNamespace(board=board, token="T", master=os.getpid())
    report = Report(settings(), cast(Any, context))

    def ask(second: int) -> float:
        nonlocal at
        at = second
        found: float = json.loads(report.text(0.0))["master_silent"]
        return found

    return ask


def turned(board: Scoreboard, second: int) -> None:
    board.set_header(H.MASTER_AT, second * 10**9)


def test_a_master_without_turns_is_reported_as_silent(board: Scoreboard, silent: Silent) -> None:
    turned(board, 1000)
    assert [silent(second) for second in range(1001, 1014)] == list(range(1, 14))
    turned(board, 1013)
    assert silent(1014) == 1


def test_suspending_the_process_tree_does_not_make_the_master_silent(board: Scoreboard, silent: Silent) -> None:
    turned(board, 1000)
    assert silent(1001) == 1
    assert [silent(1060), silent(1061)] == [0, 1]
    turned(board, 1061)
    assert silent(1062) == 1


def test_a_slot_without_a_worker_is_not_reported(board: Scoreboard) -> None:
    for number, pid in enumerate((0, 415)):
        slot = board.slot(number)
        slot[W.STATE], slot[W.PID] = SlotState.STARTING, pid
    context = SimpleNamespace(board=board, token="T", master=os.getpid())
    workers = json.loads(Report(settings(), cast(Any, context)).text(0.0))["workers"]
    assert [worker["pid"] for worker in workers] == [415]


def test_the_timeout_of_a_job_and_the_configured_workers_are_reported(board: Scoreboard) -> None:
    slot, second = board.slot(0), 10**9
    slot[W.PID], slot[W.STATE], slot[W.JOB_AT], slot[W.GROWN] = 7, SlotState.BUSY, 100 * second, 5 << 20
    context = SimpleNamespace(board=board, token="T", master=os.getpid())
    timeouts = []
    for deadline in (0, 160 * second, 90 * second):  # no limit, a limit, that of the job before
        slot[W.DEADLINE] = deadline
        found = json.loads(Report(settings(), cast(Any, context)).text(0.0))
        timeouts.append(found["workers"][0]["timeout"])
    assert timeouts == [None, 60, None]
    assert (found["configured"], found["workers"][0]["grown"]) == (settings().work.workers, 5 << 20)


def test_start_times_use_the_clock_of_the_server(board: Scoreboard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of this host is not used: it may be an hour ahead."""
    monkeypatch.setattr(module, "now", lambda: 1000 * 10**9)
    report = Report(settings(), cast(Any, SimpleNamespace(board=board, token="T", master=os.getpid())))
    for slot, role in ((board.slot(0), Role.WORKER), (board.slot(1), Role.SCHEDULER)):
        slot[W.ROLE], slot[W.PID], slot[W.STATE], slot[W.RUNS] = role, 7, SlotState.BUSY, 1
        slot[W.JOB_AT] = 930 * 10**9

    def since() -> list[float | None]:
        found = json.loads(report.text(0.0))
        return [each["since"] for each in (*found["workers"], *found["schedulers"])]

    assert since() == [None, None]
    report.update(5000.0, [])
    assert since() == [4930.0, 4930.0]


def test_a_scheduler_is_not_counted_as_a_worker_and_its_absence_is_reported(board: Scoreboard) -> None:
    report = Report(settings(), cast(Any, SimpleNamespace(board=board, token="T", master=os.getpid())))
    worker, scheduler = board.slot(0), board.slot(1)
    worker[W.PID], worker[W.STATE] = 7, SlotState.WAITING
    board.set_header(H.SCHEDULER, 1)
    absences = []
    for moment, state in (
        (100.0, SlotState.FREE),
        (101.0, SlotState.STARTING),
        (102.0, SlotState.BUSY),
        (103.0, SlotState.DEAD),
    ):
        scheduler[W.ROLE], scheduler[W.PID], scheduler[W.STATE] = Role.SCHEDULER, 8, state
        scheduler[W.ENTRIES], scheduler[W.RUNS] = 3, 1
        scheduler.describe(b"backup", b"")
        report.update(moment, [])
        found = json.loads(report.text(0.0))
        absences.append(found["unscheduled"])
        assert [each["pid"] for each in found["workers"]] == [7]
        assert [each["pid"] for each in found["schedulers"]] == [8] * (state in (SlotState.STARTING, SlotState.BUSY))
        for each in found["schedulers"]:
            assert (each["entries"], each["runs"], each["run"]) == (3, 1, "backup")
    assert absences == [100.0, None, None, 103.0]
