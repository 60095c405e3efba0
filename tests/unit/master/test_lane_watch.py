"""When a worker with several jobs is drained or killed, and which job is to blame."""

from __future__ import annotations

from typing import Any

import pytest

from qd.log import Log
from qd.master import watchdog
from qd.master.children import Children, Worker
from qd.master.watchdog import BLOCKED, OTHERS, STUCK, LaneWatch
from qd.options.tables import WorkOptions
from qd.process.scoreboard import L, LaneState, Scoreboard, SlotState, Verdict, W, Why, now

SECOND = 1_000_000_000
WORK = WorkOptions(workers=1, concurrency=10)


class Watched:
    """A worker with three jobs, of the turns 1 to 3 in the lanes 1 to 3."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: list[str] = []
        board = Scoreboard(10)
        self.children = Children(board)
        self.worker = self.children.take(0, 1, 0.0)
        self.worker.pid = 1
        self.worker.ready = True
        self.slot, self.sent = self.worker.slot, list[int]()
        monkeypatch.setattr(Worker, "send", lambda worker, number: self.sent.append(number))
        monkeypatch.setattr("qd.process.fork.kill_group", lambda pid: None)
        self.slot[W.STATE], self.slot[W.LANES], self.slot[W.SEVERAL] = SlotState.BUSY, 3, 1
        self.lanes = [board.lane(0, number) for number in (1, 2, 3)]
        for turn, lane in enumerate(self.lanes, 1):
            lane.set(turn, LaneState.STARTED)
            lane.describe(b"job%d" % turn, b"default")
        self.watch = LaneWatch(self.children, Log("master", write=lambda line: self.lines.append(line.decode())))

    def look(self, work: WorkOptions = WORK, *, beats: bool = True) -> None:
        """Twice: the stack is requested, and has been written. beats: the worker has just had a heartbeat."""
        if beats:
            self.slot[W.BEAT] = now()
        for _ in range(2):
            self.watch.check(work)
            if self.worker.stack_at:
                self.worker.stack_at -= int(watchdog.STACK * SECOND)

    def blocks(self, turn: int, seconds: float) -> None:
        self.slot[W.STEP], self.slot[W.STEPS] = turn, 5
        self.watch.check(WORK)
        self.worker.step_at = now() - int(seconds * SECOND)

    @property
    def killed(self) -> Any:
        """The verdict, and the turn of the job that is to blame."""
        return self.worker.verdict, self.slot[W.BLAME]

    def is_late(self, turn: int, seconds: float = 1.0) -> None:
        self.lanes[turn - 1][L.DEADLINE] = now() - int(seconds * SECOND)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_jobs_in_time_are_left_alone(watched: Watched) -> None:
    watched.lanes[0][L.DEADLINE] = now() + SECOND
    watched.lanes[1][L.DEADLINE] = now() - SECOND // 10
    watched.look()
    assert watched.killed == (None, 0)
    assert not watched.worker.draining


def test_a_late_job_drains_its_worker_and_the_others_may_finish(watched: Watched) -> None:
    watched.is_late(2)
    watched.look()
    assert watched.worker.draining
    assert watched.killed == (None, 0)
    assert any("job.overdue" in line and "job=job2" in line for line in watched.lines)
    for turn in (1, 3):
        watched.lanes[turn - 1].set(0, LaneState.EMPTY)
    watched.look()
    assert watched.killed == (Verdict.TIMEOUT, 2)


@pytest.mark.parametrize(("stop_timeout", "seconds"), [(0.0, OTHERS), (3.0, 3.0), (100.0, OTHERS)])
def test_the_others_have_no_more_time_than_at_a_stop(watched: Watched, stop_timeout: float, seconds: float) -> None:
    work = WorkOptions(workers=1, concurrency=10, stop_timeout=stop_timeout)
    watched.is_late(2)
    watched.look(work)
    watched.worker.late_at = now() - int((seconds - 0.5) * SECOND)
    watched.look(work)
    assert watched.killed == (None, 0)
    watched.worker.late_at = now() - int((seconds + 0.1) * SECOND)
    watched.look(work)
    assert watched.killed == (Verdict.TIMEOUT, 2)


def test_each_late_job_is_logged_once(watched: Watched) -> None:
    watched.is_late(2)
    watched.look()
    watched.is_late(3)
    watched.look()
    overdue = [line for line in watched.lines if "job.overdue" in line]
    assert [f"job=job{n}" in line for n, line in zip((2, 3), overdue, strict=True)] == [True, True]


def test_the_others_have_no_time_if_nothing_runs_in_the_worker(watched: Watched) -> None:
    watched.is_late(2)
    watched.look()
    watched.worker.late_at = watched.slot[W.BEAT] = now() - int((STUCK - 0.5) * SECOND)
    watched.look(beats=False)
    assert watched.killed == (None, 0)
    watched.worker.late_at = watched.slot[W.BEAT] = now() - int((STUCK + 0.1) * SECOND)
    watched.look(beats=False)
    assert watched.killed == (Verdict.TIMEOUT, 2)


def test_a_job_that_ignores_its_cancellation_is_to_blame_for_that(watched: Watched) -> None:
    watched.children.cancel(watched.worker, 3)
    watched.worker.lane_cancels[3] -= SECOND
    for turn in (1, 2):
        watched.lanes[turn - 1].set(0, LaneState.EMPTY)
    watched.look()
    assert watched.killed == (Verdict.CANCELLED, 3)


def test_a_cancelled_job_whose_hooks_run_is_left_alone(watched: Watched) -> None:
    watched.children.cancel(watched.worker, 3)
    watched.worker.lane_cancels[3] -= SECOND
    watched.lanes[2][L.OVER] = 3
    watched.look()
    assert watched.killed == (None, 0)


def test_a_blocked_loop_is_reported_with_its_job(watched: Watched) -> None:
    watched.blocks(2, 1.1)
    watched.look()
    watched.look()
    assert [line for line in watched.lines if "loop.blocked" in line and "job=job2" in line]
    assert len(watched.lines) == 1
    assert watched.killed == (None, 0)


def test_a_late_job_that_blocks_the_loop_is_killed_at_once(watched: Watched) -> None:
    watched.is_late(2, 0.5)
    watched.blocks(2, 2.0)
    watched.look()
    assert watched.killed == (Verdict.TIMEOUT, 2)


def test_a_step_is_killed_when_it_takes_too_long(watched: Watched) -> None:
    watched.blocks(2, BLOCKED + 0.5)
    watched.look()
    assert watched.killed == (Verdict.TIMEOUT, 2)


def test_the_others_are_not_late_while_a_step_blocks_the_loop(watched: Watched) -> None:
    watched.blocks(2, 2.0)
    watched.is_late(1, 1.5)
    watched.look()
    assert watched.killed == (None, 0)
    assert not watched.worker.draining


def test_a_worker_that_leaves_is_replaced_beside_it(watched: Watched) -> None:
    watched.slot[W.LEAVES] = 1
    watched.look()
    assert watched.worker.draining
    assert watched.sent == []


def test_an_interrupt_reaches_every_running_job(watched: Watched) -> None:
    watched.lanes[1].set(2, LaneState.HELD)
    watched.children.alarm(watched.worker, Why.INTERRUPT)
    words: list[Any] = [lane[L.WHY] for lane in watched.lanes]
    assert words == [Why.INTERRUPT | 1 << 8, 0, Why.INTERRUPT | 3 << 8]
