"""The alarm of a job in a thread, the threads of jobs, and whose step runs on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from qd.errors import JobTimeout
from qd.process import shield as shields
from qd.process.scoreboard import L, LaneState, Scoreboard, W, Why, now
from qd.process.shield import shield
from qd.worker.lanes import Owner, Steps, context_of, ended
from qd.worker.timeout import LaneAlarm
from tests.support.waiting import eventually


@pytest.fixture
def alarm() -> LaneAlarm:
    words = Scoreboard(10).lane(3, 1)
    words.set(77, LaneState.STARTED)
    return LaneAlarm(words, lambda deadline: None)


class InThread:
    """Runs `body` inside the alarm's guard, in a thread of its own. found: the result or the error."""

    def __init__(self, alarm: LaneAlarm, body: Callable[[], object], seconds: float = 0.0) -> None:
        self.found: list[object] = []
        self.alarm, self.seconds, self.body = alarm, seconds, body
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.found.append(self.alarm.guard(self.body, self.seconds))
        except BaseException as error:
            self.found.append(error)

    def result(self) -> object:
        self.thread.join(20)
        (found,) = self.found
        return found


def spin(until: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not until() and time.monotonic() < end:
        pass


def test_a_job_in_a_thread_ends_at_its_deadline(alarm: LaneAlarm) -> None:
    job = InThread(alarm, lambda: spin(lambda: False), 0.05)
    eventually(lambda: alarm.deadline and now() > alarm.deadline)
    alarm.end(Why.TIMEOUT)
    error = job.result()
    assert isinstance(error, JobTimeout)
    assert str(error) == "ran longer than its timeout of 50ms"
    assert error is alarm.ended_by
    assert alarm.raised
    assert alarm.words[L.OVER] == 77
    assert alarm.words[L.DEADLINE] == 0


def test_nothing_is_raised_before_the_deadline(alarm: LaneAlarm) -> None:
    done = threading.Event()
    job = InThread(alarm, lambda: spin(done.is_set), 60.0)
    eventually(lambda: alarm.deadline)
    alarm.end(Why.TIMEOUT)
    done.set()
    assert job.result() is None
    assert alarm.ended_by is None


def test_nothing_is_raised_after_the_job(alarm: LaneAlarm) -> None:
    outside, goes_on = threading.Event(), threading.Event()

    def run() -> None:
        alarm.guard(lambda: None, 0.0)
        outside.set()
        spin(goes_on.is_set)

    thread = threading.Thread(target=run)
    thread.start()
    outside.wait(20)
    alarm.end(Why.CANCEL)
    goes_on.set()
    thread.join(20)
    assert alarm.ended_by is None


def test_a_job_is_not_interrupted_behind_the_shield(alarm: LaneAlarm) -> None:
    steps: list[str] = []
    inside, ends = threading.Event(), threading.Event()

    def body() -> None:
        with shield:
            inside.set()
            spin(ends.is_set)
            steps.append("whole")
        steps.append("never")

    job = InThread(alarm, body)
    inside.wait(20)
    alarm.end(Why.CANCEL)
    ends.set()
    assert type(job.result()).__name__ == "JobCancelled"
    assert steps == ["whole"]


def test_a_job_may_use_the_shield_while_it_handles_its_end(alarm: LaneAlarm) -> None:
    """Such as job.checkpoint(): the exception is not raised a second time."""

    def body() -> str:
        try:
            spin(lambda: False)
        except JobTimeout:
            with shield:
                return "saved"
        return "?"

    job = InThread(alarm, body, 0.05)
    eventually(lambda: alarm.deadline and now() > alarm.deadline)
    alarm.end(Why.TIMEOUT)
    alarm.end(Why.TIMEOUT)
    assert job.result() == "saved"
    assert shields.threads == {}


def test_hundreds_of_late_alarms_leave_no_exception_behind(alarm: LaneAlarm) -> None:
    """The alarm arrives at every moment around the end of the job."""
    over = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            for _ in range(300):
                with contextlib.suppress(JobTimeout):
                    alarm.guard(lambda: spin(lambda: False, 0.0005), 0.0004)
                sum(range(100))
        except BaseException as error:
            errors.append(error)
        over.set()

    thread = threading.Thread(target=run)
    thread.start()
    while not over.is_set():
        alarm.end(Why.TIMEOUT)
    thread.join()
    assert errors == []


def test_deadlines_move_with_the_time_that_another_job_took(alarm: LaneAlarm) -> None:
    alarm.begins(0.001)
    alarm.moved(60_000_000_000)
    eventually(lambda: now() > alarm.deadline - 60_000_000_000)
    alarm.end(Why.TIMEOUT)
    assert alarm.ended_by is None
    assert alarm.words[L.DEADLINE] == alarm.deadline


# -- steps


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.run_until_complete(made.shutdown_default_executor())
    made.close()


def test_each_step_names_its_job_and_nothing_between_them(loop: asyncio.AbstractEventLoop) -> None:
    slot = Scoreboard(10).slot(0)
    steps = Steps(slot, lambda ns, turn: None)
    steps.install(loop, 1)
    seen: list[int] = []
    loop.set_task_factory(lambda loop, coroutine, **how: asyncio.Task(coroutine, loop=loop, **how))  # the app's own

    async def child() -> None:
        seen.append(slot[W.STEP])
        await asyncio.sleep(0)
        seen.append(slot[W.STEP])

    async def job() -> None:
        await asyncio.gather(child(), child())
        seen.append(slot[W.STEP])

    async def main() -> None:
        owners = Owner(7), Owner(9)
        tasks = [steps.first(loop, job(), owner, context_of(owner)) for owner in owners]
        await asyncio.gather(*tasks)
        assert slot[W.STEP] == 0

    loop.run_until_complete(main())
    assert sorted(seen) == [7] * 5 + [9] * 5
    assert slot[W.STEPS] >= 10


def test_a_long_step_is_reported_with_its_job(loop: asyncio.AbstractEventLoop) -> None:
    found: list[int] = []
    steps = Steps(Scoreboard(10).slot(0), lambda ns, turn: found.append(turn))
    steps.install(loop, 1)

    async def job() -> None:
        time.sleep(0.25)

    owner = Owner(5)
    loop.run_until_complete(steps.first(loop, job(), owner, context_of(owner)))
    assert found == [5]


def test_a_job_has_ended_when_its_tasks_and_threads_have(loop: asyncio.AbstractEventLoop) -> None:
    steps = Steps(Scoreboard(10).slot(0), lambda ns, turn: None)
    steps.install(loop, 1)
    order: list[str] = []

    async def stubborn() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        order.append("task")

    def in_thread() -> None:
        time.sleep(0.4)
        order.append("thread")

    async def job() -> None:
        left = asyncio.create_task(stubborn())
        thread = asyncio.create_task(asyncio.to_thread(in_thread))
        await asyncio.sleep(0.05)
        assert not left.done()
        assert not thread.done()

    owner = Owner(5)

    async def whole() -> None:
        await job()
        await ended(owner)
        order.append("ended")

    loop.run_until_complete(steps.first(loop, whole(), owner, context_of(owner)))
    assert order == ["task", "thread", "ended"]


def test_an_exception_that_is_on_its_way_is_taken_back_when_the_job_ends(
    alarm: LaneAlarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[object] = []
    monkeypatch.setattr("qd.worker.timeout.raise_in", lambda thread, kind: raised.append(kind and kind.__name__))
    alarm.guard(lambda: alarm.end(Why.CANCEL), 0.0)
    assert raised == ["JobCancelled", None]
