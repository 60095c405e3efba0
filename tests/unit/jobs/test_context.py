"""current_job(), release and fail, job.arguments, and running a job in the current process."""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from qd import ArgumentError, Fail, Job, NotInJob, Retry, RunningJob, current_job
from qd.errors import JobFailure, Settled
from qd.events import (
    Event,
    JobAttempted,
    JobExceptionOccurred,
    JobFailed,
    JobProcessed,
    JobProcessing,
    JobReleased,
)
from qd.jobs import context
from qd.jobs.policy import GiveUp, Release
from tests.support.fakes import FakeQd


@pytest.fixture
def heard(app: FakeQd) -> list[Event]:
    events: list[Event] = []
    app.on(Event)(events.append)
    return events


def kinds(heard: list[Event]) -> list[type[Event]]:
    return [type(event) for event in heard]


def job(name: str = "mail.welcome") -> RunningJob:
    return RunningJob("an-id", name, "default", 2)


# -- the current job


def test_outside_a_job_there_is_no_current_job():
    with pytest.raises(NotInJob, match="outside a job"):
        current_job()


def test_the_current_job_is_visible_in_every_thread():
    found: list[RunningJob] = []
    one = job()
    context.enter(one)
    try:
        thread = threading.Thread(target=lambda: found.append(current_job()))
        thread.start()
        thread.join()
        assert current_job() is one
        assert found == [one]
    finally:
        context.leave(one)
    with pytest.raises(NotInJob):
        current_job()


def test_a_running_job_has_its_attributes():
    one = job()
    assert (one.id, one.name, one.queue, one.attempt, one.stopping, one.outcome) == (
        "an-id", "mail.welcome", "default", 2, False, None
    )  # fmt: skip


# -- release and fail


@pytest.mark.parametrize(("delay", "seconds"), [(0, 0.0), (30, 30.0), (timedelta(minutes=1), 60.0)])
def test_release_records_the_outcome_and_raises(delay, seconds):
    one = job()
    with pytest.raises(Settled):
        one.release(delay)
    assert one.outcome == Release(seconds)


def test_release_without_a_delay_is_immediate():
    one = job()
    with pytest.raises(Settled):
        one.release()
    assert one.outcome == Release(0.0)


def test_fail_records_the_outcome_and_raises():
    one = job()
    with pytest.raises(Settled):
        one.fail("no such order")
    assert one.outcome == GiveUp("no such order")


def test_release_and_fail_raise_what_a_job_may_raise_itself():
    with pytest.raises(Retry) as released:
        job().release(30, reason="not yet", counts=False)
    assert (
        released.value.decision == Retry(30, reason="not yet", counts=False).decision == Release(30.0, "not yet", False)
    )
    with pytest.raises(Fail) as failed:
        job().fail("no such order")
    assert failed.value.decision == Fail("no such order").decision == GiveUp("no such order")
    assert (str(released.value), str(failed.value)) == ("retry in 30 s", "no such order")


@pytest.mark.parametrize(
    "raised", [Retry(30), Retry(delay=timedelta(seconds=30), reason="r"), Fail("why"), Fail(reason="why")]
)
def test_they_return_from_a_pool_of_processes(raised):
    assert pickle.loads(pickle.dumps(raised)).decision == raised.decision


def test_a_raised_retry_decides_once_it_has_left_the_job():
    one = job()
    assert one.take_decision(Retry(5))
    assert one.outcome == Release(5.0)
    assert one.take_decision(Fail("too late"))  # the first decision stays
    assert one.outcome == Release(5.0)
    assert not job().take_decision(ValueError())
    assert not job().take_decision(None)


def test_a_raised_fail_keeps_its_cause_and_its_place():
    def work() -> None:
        try:
            raise KeyError("order 7")
        except KeyError as error:
            raise Fail("no such order") from error

    one = job()
    with pytest.raises(Fail) as raised:
        work()
    assert one.take_decision(raised.value)
    assert isinstance(one.outcome, GiveUp)
    failure = one.outcome.error
    assert isinstance(failure, JobFailure)
    assert (str(failure), repr(failure.__cause__)) == ("no such order", "KeyError('order 7')")
    assert failure.__traceback__ is not None


def test_a_group_of_errors_with_a_retry_decides():
    one = job()
    group = BaseExceptionGroup("of a TaskGroup", [ValueError(), BaseExceptionGroup("inner", [Retry(7), Fail("why")])])
    assert one.take_decision(group)
    assert one.outcome == Release(7.0)
    assert not job().take_decision(ExceptionGroup("others", [ValueError(), OSError()]))


def test_the_release_of_another_job_decides_nothing():
    inner, outer = job(), job()
    with pytest.raises(Retry) as raised:
        outer.release(5)
    assert not inner.take_decision(raised.value)
    assert (inner.outcome, outer.outcome) == (None, Release(5.0))


@pytest.mark.parametrize("delay", [-1, float("nan"), "5m", None])
def test_a_wrong_delay_of_a_retry_is_an_error_of_the_job(delay):
    with pytest.raises(ArgumentError, match=r"delay of Retry: .* (is not a duration|is text: write)"):
        Retry(delay)


def test_except_exception_does_not_catch_it():
    one = job()
    caught: list[BaseException] = []
    try:
        one.release(30)
    except Exception as error:
        caught.append(error)
    except Settled:
        pass
    assert caught == []


@pytest.mark.parametrize("delay", [-1, float("nan"), "soon"])
def test_a_wrong_delay_is_an_error_of_the_job(delay):
    one = job()
    with pytest.raises(ArgumentError):
        one.release(delay)
    assert one.outcome is None


# -- run()


def test_run_converts_as_a_worker_does(app: FakeQd):
    @app.job("sum")
    def total(parts: tuple[int, ...]) -> Any:
        return parts

    given: Any = [1, 2]
    assert total.run(given) == (1, 2)
    assert not app.opened


def test_run_returns_the_result_and_emits_the_events(app: FakeQd, heard: list[Event]):
    @app.job("mail.welcome", queue="mail")
    def welcome(to: str) -> str:
        one = current_job()
        return f"{one.name} {one.queue} {one.attempt} {to}"

    assert welcome.run("you") == "mail.welcome mail 1 you"
    assert kinds(heard) == [JobProcessing, JobProcessed, JobAttempted]
    with pytest.raises(NotInJob):
        current_job()


def test_run_uses_the_given_tags_queue_and_connection(app: FakeQd):
    @app.job("mail.welcome", tags=["mail"])
    def welcome() -> tuple[object, ...]:
        job = current_job()
        return job.tags, job.queue, job.connection

    @app.job("mail.note")
    class Note(Job[tuple[str, ...]]):
        number: int

        def tags(self) -> list[str]:
            return [f"note:{self.number}"]

        def handle(self) -> tuple[str, ...]:
            return current_job().tags

    assert welcome.run() == (("mail",), "", "")
    assert welcome.using(tags=["new", "one"], queue="q", connection="c").run() == (("new", "one"), "q", "c")
    assert Note(number=7).run() == ("note:7",)


def test_run_of_a_class_job(app: FakeQd):
    @app.job("charge")
    class Charge(Job[int]):
        order_id: int

        async def handle(self) -> int:
            await asyncio.sleep(0)
            assert current_job().name == "charge"
            return self.order_id

    assert Charge(order_id=7).run() == 7


def test_run_of_an_async_job(app: FakeQd):
    @app.job("sleep")
    async def sleep(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return current_job().attempt + seconds

    assert sleep.run(0) == 1.0


def test_run_of_an_async_job_in_a_running_loop_raises_with_a_hint(app: FakeQd):
    @app.job("sleep")
    async def sleep() -> None: ...

    async def main() -> None:
        sleep.run()

    with pytest.raises(RuntimeError, match="await"):
        asyncio.run(main())


def test_jobs_run_inside_jobs(app: FakeQd):
    @app.job("inner")
    def inner() -> str:
        return current_job().name

    @app.job("outer")
    def outer() -> list[str]:
        return [current_job().name, inner.run(), current_job().name]

    assert outer.run() == ["outer", "inner", "outer"]


def test_two_threads_run_their_own_jobs(app: FakeQd):
    barrier = threading.Barrier(2)
    names: list[str] = []

    @app.job("a")
    def a() -> None:
        barrier.wait(60)
        names.append(current_job().name)

    @app.job("b")
    def b() -> None:
        barrier.wait(60)
        names.append(current_job().name)

    threads = [threading.Thread(target=target) for target in (a.run, b.run)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(names) == ["a", "b"]


class Charging:
    """A class job that records the arguments of failed()."""

    def __init__(self, app: FakeQd, work: Any) -> None:
        self.errors = errors = list[BaseException]()

        @app.job("charge")
        class Charge(Job[None]):
            order_id: int

            def handle(self) -> None:
                work()

            def failed(self, error: BaseException) -> None:
                errors.append(error)

        self.call = Charge(order_id=7)


def test_an_error_is_raised_after_failed_and_the_events(app: FakeQd, heard: list[Event]):
    error = ValueError("no money")

    def work() -> None:
        raise error

    charging = Charging(app, work)
    with pytest.raises(ValueError, match="no money"):
        charging.call.run()
    assert charging.errors == [error]
    assert kinds(heard) == [JobProcessing, JobFailed, JobExceptionOccurred, JobAttempted]


def test_fail_is_a_job_failure(app: FakeQd, heard: list[Event]):
    charging = Charging(app, lambda: current_job().fail("no such order"))
    with pytest.raises(JobFailure, match="no such order"):
        charging.call.run()
    assert [str(error) for error in charging.errors] == ["no such order"]
    assert kinds(heard) == [JobProcessing, JobFailed, JobExceptionOccurred, JobAttempted]


def test_release_is_an_error_in_run(app: FakeQd, heard: list[Event]):
    charging = Charging(app, lambda: current_job().release(30))
    with pytest.raises(JobFailure, match="released itself for 30 s"):
        charging.call.run()
    assert charging.errors == []
    assert kinds(heard) == [JobProcessing, JobReleased, JobAttempted]


async def in_a_group(raised: BaseException) -> None:
    async def deep() -> None:
        raise raised

    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(60))
        group.create_task(deep())


def in_a_thread(raised: BaseException) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(straight, raised).result()


def straight(raised: BaseException) -> None:
    raise raised


@pytest.mark.parametrize("raises", [straight, in_a_thread, in_a_group])
def test_retry_and_fail_decide_from_any_depth(app: FakeQd, heard: list[Event], raises: Callable[[BaseException], Any]):
    """run() runs a job once: there a retry is an error."""

    @app.job("work")
    def work(fails: bool) -> Any:
        try:
            return raises(Fail("no such order") if fails else Retry(delay=30, reason="busy"))
        except Exception as error:
            raise AssertionError("it was caught") from error

    with pytest.raises(JobFailure, match=r"released itself for 30 s \(busy\)"):
        work.run(False)
    assert kinds(heard) == [JobProcessing, JobReleased, JobAttempted]
    heard.clear()
    with pytest.raises(JobFailure, match=r"^no such order$"):
        work.run(True)
    assert kinds(heard) == [JobProcessing, JobFailed, JobExceptionOccurred, JobAttempted]


def test_a_swallowed_fail_is_still_a_failure(app: FakeQd):
    def work() -> None:
        with suppress(BaseException):
            current_job().fail("no such order")

    with pytest.raises(JobFailure, match="no such order"):
        Charging(app, work).call.run()


def test_a_failure_of_an_inner_job_is_an_error_of_the_outer(app: FakeQd, heard: list[Event]):
    @app.job("inner")
    def inner() -> None:
        current_job().fail("inside")

    @app.job("outer")
    def outer() -> None:
        inner.run()

    with pytest.raises(JobFailure, match="inside"):
        outer.run()
    assert kinds(heard) == [JobProcessing, JobProcessing, *[JobFailed, JobExceptionOccurred, JobAttempted] * 2]


def test_an_error_in_a_listener_is_logged_and_ignored(app: FakeQd, caplog):
    @app.on(JobProcessing)
    def broken(event: JobProcessing) -> None:
        raise RuntimeError("listener down")

    seen: list[Event] = []
    app.on(JobProcessing)(seen.append)

    @app.job("mail.welcome")
    def welcome() -> int:
        return 7

    with caplog.at_level(logging.ERROR):
        assert welcome.run() == 7
    assert len(seen) == 1
    assert "broken" in caplog.text
    assert "listener down" in caplog.text


def test_a_listener_may_fail_the_job_before_it_runs(app: FakeQd):
    ran: list[int] = []

    @app.on(JobProcessing)
    def bouncer(event: JobProcessing) -> None:
        event.job.fail("not today")

    @app.job("mail.welcome")
    def welcome() -> None:
        ran.append(1)

    with pytest.raises(JobFailure, match="not today"):
        welcome.run()
    assert ran == []


# -- checkpoints


def test_a_new_job_has_no_checkpoint():
    assert job().saved is None


def test_a_checkpoint_is_stored_as_json_and_each_read_is_a_copy():
    running_job = job()
    running_job.checkpoint({"row": 7, "seen": (1, 2), "at": datetime(2026, 11, 21, tzinfo=UTC)})
    assert running_job.saved == {"row": 7, "seen": [1, 2], "at": "2026-11-21T00:00:00Z"}
    running_job.saved["row"] = 8
    assert running_job.saved["row"] == 7


def test_a_checkpoint_is_saved_before_it_is_visible():
    kept: list[bytes] = []
    running_job = RunningJob("an-id", "x", "default", 2, b'"before"', kept.append)
    assert running_job.saved == "before"
    running_job.checkpoint([1])
    assert (kept, running_job.saved) == ([b"[1]"], [1])

    def refuse(text: bytes) -> None:
        raise NotInJob("over")

    over = RunningJob("an-id", "x", "default", 2, b'"before"', refuse)
    with pytest.raises(NotInJob):
        over.checkpoint([1])
    assert over.saved == "before"


class Opaque:
    pass


LOOP: list[object] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (object(), "cannot save object: a value of type object has no JSON form"),
        ({"a": Opaque()}, "cannot save dict: a value of type Opaque has no JSON form"),
        (float("nan"), "cannot save float: nan is not a JSON number"),
        (datetime(2026, 11, 21), "cannot save datetime: a datetime without a time zone"),
        ("\ud800", "cannot save str: a string in it is not Unicode"),
        (LOOP, "cannot save list: it is nested too deep"),
        ("x" * 65_535, "was given 65537 bytes of JSON, more than 65536: save a position"),
    ],
    ids=["object", "inside", "nan", "naive", "surrogate", "loop", "large"],
)
def test_an_invalid_checkpoint_is_refused_and_the_last_one_stays(state, words):
    running_job = job()
    running_job.checkpoint(1)
    with pytest.raises(ArgumentError, match=words):
        running_job.checkpoint(state)
    assert running_job.saved == 1


def test_64_kib_can_be_saved():
    running_job = job()
    running_job.checkpoint("x" * 65_534)
    assert len(running_job.saved) == 65_534


@pytest.mark.parametrize("foreign", [b"", b"{", b"\xff"])
def test_a_value_written_by_another_program_is_no_checkpoint(foreign):
    assert RunningJob("an-id", "x", "default", 2, foreign).saved is None


def test_a_job_under_run_can_save_a_checkpoint(app: FakeQd):
    @app.job("steps")
    def steps() -> list[object]:
        current_job().checkpoint({"row": 7})
        return [current_job().attempt, current_job().saved]

    assert steps.run() == [1, {"row": 7}]


NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
made: list[str] = []


@dataclass
class Line:
    sku: str

    def __post_init__(self) -> None:
        made.append(self.sku)


@pytest.fixture
def seen(app: FakeQd) -> list[dict[str, Any]]:
    """The arguments as middleware around every job sees them."""
    found: list[dict[str, Any]] = []

    @app.middleware
    def looks(job: RunningJob, call_next: Callable[[], object]) -> object:
        found.append(job.arguments)
        return call_next()

    return found


def test_arguments_are_converted_and_include_the_defaults(app: FakeQd, seen: list[dict[str, Any]]) -> None:
    @app.job("x")
    def work(when: datetime, tags: set[str], note: str = "none", copies: int = 1) -> None: ...

    work.run(NOON, {"b", "a"}, copies=2)
    assert seen == [{"when": NOON, "tags": {"a", "b"}, "note": "none", "copies": 2}]


def test_arguments_of_a_class_job_include_factory_defaults(app: FakeQd, seen: list[dict[str, Any]]) -> None:
    @app.job("x")
    class Work(Job[None]):
        when: datetime
        parts: list[int] = field(default_factory=lambda: [1])

        def handle(self) -> None: ...

    app.call("x", b'{"when":"2026-11-22T13:00:00+01:00"}').run()
    assert seen == [{"when": NOON, "parts": [1]}]


def test_arguments_include_the_names_in_kwargs(app: FakeQd, seen: list[dict[str, Any]]) -> None:
    @app.job("x")
    def work(n: int = 1, **more: float) -> None: ...

    work.run(a=1)
    assert seen == [{"n": 1, "a": 1.0}]


def test_the_arguments_of_a_raw_job_are_its_data(app: FakeQd, seen: list[dict[str, Any]]) -> None:
    @app.job("x", raw=True)
    def work(body: Any) -> None: ...

    work.run({"a": 1})
    work.run([1])
    assert seen == [{"a": 1}, {}]


def test_arguments_are_converted_once_for_readers_and_the_function(app: FakeQd) -> None:
    found: list[object] = []

    @app.middleware
    def looks(job: RunningJob, call_next: Callable[[], object]) -> object:
        found.append(job.arguments["line"])
        return call_next()

    app.on(JobProcessed)(lambda event: found.append(event.job.arguments["line"]))

    @app.job("x")
    def work(line: Line) -> None:
        found.append(line)

    call = work.bind(Line("a"))
    made.clear()
    call.run()
    assert made == ["a"]
    assert found[0] is found[1] is found[2]


def test_a_changed_copy_of_arguments_affects_no_other_reader(app: FakeQd, seen: list[dict[str, Any]]) -> None:

    @app.middleware
    def clears(job: RunningJob, call_next: Callable[[], object]) -> object:
        job.arguments.clear()
        return call_next()

    @app.job("x")
    def work(n: int) -> int:
        return n

    assert work.run(7) == 7
    assert seen == [{"n": 7}]


def test_arguments_that_do_not_convert_are_returned_as_json(app: FakeQd) -> None:
    @app.job("x")
    def work(n: int, when: datetime = NOON) -> None: ...

    declared = app._registry.get("x")
    job = RunningJob("id", "x", "default", 1, declared=declared, data=b'{"n":"many"}')
    assert job.arguments == {"n": "many"}
    assert RunningJob("id", "y", "default", 1, data=b'{"n":"1"}').arguments == {"n": "1"}


# -- events and progress


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (object(), r"job.emit\(\) cannot send object: a value of type object has no JSON form"),
        (float("nan"), r"job.emit\(\) cannot send float: nan is not a JSON number"),
        ("x" * 16_384, r"job.emit\(\) was given 16386 bytes of JSON, more than 16384: emit smaller pieces"),
    ],
    ids=["object", "nan", "large"],
)
def test_an_invalid_event_is_refused(data, words):
    with pytest.raises(ArgumentError, match=words):
        job().emit(data)


def test_an_event_is_sent_as_json():
    sent: list[bytes] = []
    RunningJob("an-id", "x", "default", 1, _emit=sent.append).emit({"token": "Hallo", "n": (1, 2)})
    RunningJob("an-id", "x", "default", 1, _emit=sent.append).emit("x" * 16_382)
    assert sent[0] == b'{"token":"Hallo","n":[1,2]}'


def test_progress_has_a_message_and_fields():
    seen: list[tuple[float, bytes]] = []
    running_job = RunningJob("an-id", "x", "default", 1, _report_progress=lambda *now: seen.append(now))
    running_job.progress(5)
    running_job.progress(40, "scaling", step=3, of=7)
    running_job.progress(50, step=4)
    assert seen == [(5, b""), (40, b'{"message":"scaling","step":3,"of":7}'), (50, b'{"step":4}')]


@pytest.mark.parametrize(
    ("arguments", "fields", "words"),
    [
        ((101,), {}, "takes a number from 0 to 100, not 101"),
        ((True,), {}, "takes a number from 0 to 100, not True"),
        ((1,), {"step": object()}, "cannot report dict: a value of type object has no JSON form"),
        ((1, "x" * 16_384), {}, "bytes of JSON, more than 16384"),
    ],
)
def test_an_invalid_progress_is_refused(arguments, fields, words):
    with pytest.raises(ArgumentError, match=words):
        job().progress(*arguments, **fields)


def test_a_job_under_run_may_emit(app: FakeQd):
    @app.job("emits")
    def emits() -> str:
        current_job().emit({"token": "a"})
        current_job().progress(10, "begun")
        return "done"

    assert emits.run() == "done"
