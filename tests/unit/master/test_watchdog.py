"""When the master kills a worker: a job over its timeout, a silent worker, and the stack that is logged first.

Of several jobs: when the worker is drained or killed, and which job is to blame.
"""

from __future__ import annotations

from typing import Any

import pytest

from qd.log import Log
from qd.master import children as children_module
from qd.master import watchdog
from qd.master.children import Children, Worker
from qd.master.postmortem import job_stack
from qd.master.watchdog import BLOCKED, GRACE, OTHERS, STACK, STUCK, LaneWatch, Watchdog, silence_of
from qd.options.tables import WorkOptions
from qd.process.scoreboard import L, LaneState, Scoreboard, SlotState, Verdict, W, Why, now


class Rig:
    """A worker in a job whose timeout passes at 1,000 s by the clock. `did`: signals it was sent, and how it was killed."""

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
        """Returns what was done so far, after a check at that time."""
        self.at = at
        self.late.check(0, silence)
        return self.did


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


def test_the_stack_is_requested_before_the_worker_is_killed(rig: Rig) -> None:
    assert rig.look(1000.2) == []
    assert rig.look(1000 + GRACE - STACK + 0.005) == ["stack"]
    assert rig.late.next() == pytest.approx(STACK, abs=0.006)
    assert rig.look(1000 + GRACE - 0.001) == ["stack"]
    assert rig.look(1000 + GRACE + 0.006) == ["stack", Verdict.TIMEOUT.name]


def test_a_late_check_still_leaves_time_for_the_stack(rig: Rig) -> None:
    assert rig.look(1003) == ["stack"]
    assert rig.look(1003.001) == ["stack"], "a look that something else has brought"
    assert rig.late.next() == pytest.approx(STACK, abs=0.006)
    assert rig.look(1003 + STACK + 0.001) == ["stack", Verdict.TIMEOUT.name]


def test_a_job_that_ends_during_the_grace_time_is_not_killed(rig: Rig) -> None:
    assert rig.look(1003) == ["stack"]
    rig.worker.slot[W.DEADLINE] = 0  # its own alarm has ended the job
    assert rig.look(1003.2) == ["stack"]


def test_a_silent_worker_also_gets_time_for_its_stack(rig: Rig) -> None:
    rig.worker.slot[W.STATE] = SlotState.WAITING
    for second in range(11):
        assert rig.look(1000 + second) == []
    assert rig.look(1011.0) == ["stack"]
    assert rig.look(1011.001) == ["stack"]
    assert rig.look(1011.2) == ["stack", Verdict.CRASH.name]


class Clock:
    """The clock of the watchdog."""

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


def new_watchdog() -> Watchdog:
    return Watchdog(Children(Scoreboard()), Log("master", write=lambda line: None))


def looks(quiet: Watchdog, one: Worker, clock: Clock, seconds: float, each: float = 0.3) -> float:
    until = clock.at + int(seconds * 1e9)
    while clock.at < until:
        clock.pass_(each)
        quiet.look([one])
    return silence_of(one)


def test_only_time_during_which_the_master_ran_counts_as_silence(clock: Clock) -> None:
    quiet, one = new_watchdog(), worker(clock)
    assert looks(quiet, one, clock, 6) == pytest.approx(6, abs=0.7)
    clock.pass_(3600)  # the whole process tree was suspended
    quiet.look([one])
    assert silence_of(one) == pytest.approx(6, abs=0.7)
    one.slot[W.BEAT] = clock.at
    assert looks(quiet, one, clock, 0.3) < 1


def test_a_job_or_an_announced_wait_does_not_count_as_silence(clock: Clock) -> None:
    quiet, one = new_watchdog(), worker(clock)
    one.slot[W.STATE] = SlotState.BUSY
    assert looks(quiet, one, clock, 60) < 1
    one.slot[W.STATE] = SlotState.LOOKING
    one.slot[W.BEAT] = clock.at + int(60e9)
    assert looks(quiet, one, clock, 59) < 0
    assert looks(quiet, one, clock, 11) == pytest.approx(10, abs=1)


BELOW = """\
  File "/lib/qd/worker/attempt.py", line 200 in _body
  File "/lib/qd/worker/attempt.py", line 170 in <lambda>
  File "/lib/qd/worker/timeout.py", line 60 in guard
  File "/lib/qd/worker/worker.py", line 90 in run
  File "/lib/click/core.py", line 1 in main
  File "/bin/qd", line 8 in <module>"""
JOB = """\
Current thread 0x01 (most recent call first):
  File "/lib/qd/jobs/context.py", line 5 in checkpoint
  File "/srv/jobs.py", line 9 in inner
  File "/srv/jobs.py", line 7 in ship"""
THREAD = """\
Thread 0x02 (most recent call first):
  File "/lib/threading.py", line 3 in wait
  File "/lib/qd/worker/worker.py", line 90 in run"""


def cut(stack: str) -> str:
    return job_stack(stack, "/lib/qd/")


def test_frames_below_the_job_are_removed_from_the_stack():
    assert cut(f"{JOB}\n{BELOW}") == JOB
    assert cut(f"{THREAD}\n\n{JOB}\n{BELOW}\n") == f"{THREAD}\n\n{JOB}"


def test_frames_of_qd_between_frames_of_the_job_stay():
    between = '  File "/lib/qd/jobs/pipeline.py", line 4 in through\n  File "/srv/middleware.py", line 2 in timed'
    assert cut(f"{JOB}\n{between}\n{BELOW}") == f"{JOB}\n{between}"


def test_a_stack_without_job_code_is_kept_whole():
    for stack in ("", THREAD, f"Current thread 0x01 (most recent call first):\n{BELOW}", "cut off\n\n"):
        assert cut(stack) == stack


# -- several jobs


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
