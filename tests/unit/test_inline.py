"""app.inline(): dispatched jobs run at once, in the dispatching process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from qd import Fail, Job, NotInJob, Qd, Retry, RunningJob, current_job
from qd.errors import AttemptsExceeded, ConfigError, JobFailure
from qd.events import JobFailed, JobProcessed, JobProcessing, JobReleased
from qd.jobs.plan import Middleware
from qd.middleware import ConcurrencyLimit, RateLimited, SkipIfBatchCancelled, ThrottlesExceptions, WithoutOverlapping


@pytest.fixture
def app(tmp_path, monkeypatch) -> Qd:
    """An app that cannot be configured: reading a file, a variable or a server would raise."""
    (tmp_path / "qd.toml").write_text("this is no TOML")
    monkeypatch.chdir(tmp_path)
    return Qd()


@pytest.fixture
def done() -> list[Any]:
    return []


def test_a_job_runs_at_dispatch_and_is_recorded(app: Qd, done: list[Any]):
    @app.job("mail.welcome", queue="mail")
    def welcome(to: str) -> None:
        job = current_job()
        done.append((to, job.id, job.attempt, job.queue, threading.get_ident()))

    with app.inline() as ran:
        sent = welcome.dispatch("a@b.c")
        assert done == [("a@b.c", sent.id, 1, "mail", threading.get_ident())]
    assert [each.arguments for each in ran.dispatched(welcome)] == [{"to": "a@b.c"}]
    with pytest.raises(NotInJob):
        current_job()
    with pytest.raises(ConfigError):
        welcome.dispatch("a@b.c")


def test_delays_are_ignored_and_bulk_jobs_run_in_order(app: Qd, done: list[Any]):
    @app.job("note")
    def note(number: int) -> None:
        done.append(number)

    with app.inline():
        app.dispatch(note.using(delay=3600).bind(1), note.bind(2), note.bind(3))
    assert done == [1, 2, 3]


def test_arguments_are_converted_as_in_a_queue(app: Qd, done: list[Any]):
    @app.job("note")
    def note(numbers: set[int]) -> None:
        done.append(numbers)

    given = {1, 2}
    with app.inline():
        note.dispatch(given)
    assert done == [given]
    assert done[0] is not given


def test_a_job_dispatched_by_a_job_runs_inside_it(app: Qd, done: list[Any]):
    @app.job("outer")
    def outer() -> None:
        done.append("begin")
        inner.dispatch()
        done.append(current_job().name)

    @app.job("inner")
    def inner() -> None:
        done.append(current_job().name)

    with app.inline():
        outer.dispatch()
    assert done == ["begin", "inner", "outer"]


def test_limiting_middleware_lets_all_jobs_pass(app: Qd, done: list[Any]):
    """No other job runs that they could wait for."""
    held: list[Middleware] = [
        WithoutOverlapping("{number}"),
        ConcurrencyLimit("crm", 1),
        RateLimited("crm", 1, per=60),
        ThrottlesExceptions(1, 60, 60),
        SkipIfBatchCancelled(),
    ]

    @app.job("sync", middleware=held)
    def sync(number: int) -> None:
        done.append(number)
        if number == 1:
            sync.dispatch(3)

    with app.inline():
        app.dispatch(sync.bind(1), sync.bind(2))
        app.batch(sync.bind(4)).dispatch()
    assert done == [1, 3, 2, 4]


def test_dispatch_raises_after_failed_and_the_listeners(app: Qd, done: list[Any]):
    @app.job("pay.charge", tries=5)
    class Charge(Job[None]):
        order_id: int

        def handle(self) -> None:
            done.append("handle")
            raise ValueError("no money")

        def failed(self, error: BaseException) -> None:
            done.append(str(error))

    app.on(JobFailed)(lambda event: done.append(type(event)))
    with app.inline(), pytest.raises(ValueError, match="no money"):
        Charge(order_id=1).dispatch()
    assert done == ["handle", "no money", JobFailed]


def test_a_job_that_fails_itself_raises_its_reason(app: Qd):
    @app.job("note")
    def note() -> None:
        current_job().fail("no such order")

    with app.inline(), pytest.raises(JobFailure, match="no such order"):
        note.dispatch()


def test_a_released_job_runs_again_at_once(app: Qd, done: list[Any]):
    @app.job("poll", tries=3)
    def poll() -> None:
        done.append(current_job().attempt)
        if current_job().attempt < 3:
            current_job().release(60)

    for event in (JobProcessing, JobReleased, JobProcessed):
        app.on(event)(lambda event: done.append(type(event).__name__))
    with app.inline():
        poll.dispatch()
    assert done == [
        "JobProcessing",
        1,
        "JobReleased",
        "JobProcessing",
        2,
        "JobReleased",
        "JobProcessing",
        3,
        "JobProcessed",
    ]


def test_a_job_may_raise_retry_and_fail(app: Qd, done: list[Any]):
    @app.job("poll", tries=5)
    async def poll() -> None:
        done.append(current_job().attempt)
        raise Retry(60) if current_job().attempt < 3 else Fail("still not there")

    with app.inline(), pytest.raises(JobFailure, match="still not there"):
        poll.dispatch()
    assert done == [1, 2, 3]


def test_a_released_job_finds_its_checkpoint(app: Qd, done: list[Any]):
    @app.job("load", tries=2)
    def load() -> None:
        done.append(current_job().saved)
        if current_job().attempt == 1:
            current_job().checkpoint({"row": 7})
            current_job().release(60)

    with app.inline():
        load.dispatch()
    assert done == [None, {"row": 7}]


@pytest.mark.parametrize(("tries", "runs"), [(2, 2), (0, 1000)])
def test_a_job_that_always_releases_itself_eventually_fails(app: Qd, done: list[Any], tries: int, runs: int):
    @app.job("poll", tries=tries)
    class Poll(Job[None]):
        def handle(self) -> None:
            done.append(1)
            current_job().release(60)

        def failed(self, error: BaseException) -> None:
            done.append(error)

    with app.inline(), pytest.raises(AttemptsExceeded, match="poll was released until its tries were used up"):
        Poll().dispatch()
    assert len(done) == runs + 1
    assert isinstance(done[-1], AttemptsExceeded)


def test_an_async_job_runs_with_and_without_a_loop_around_it(app: Qd, done: list[Any]):
    @app.job("fetch")
    async def fetch(number: int) -> None:
        await asyncio.sleep(0)
        if number < 0:
            raise ValueError(number)
        done.append((number, current_job().name))

    async def main() -> None:
        fetch.dispatch(2)
        await fetch.adispatch(3)
        with pytest.raises(ValueError, match="-1"):
            fetch.dispatch(-1)

    with app.inline():
        fetch.dispatch(1)
        asyncio.run(main())
    assert done == [(number, "fetch") for number in (1, 2, 3)]


def test_a_chain_runs_in_order(app: Qd, done: list[Any]):
    @app.job("step")
    def step(number: int) -> None:
        done.append(number)
        if number < 0:
            raise ValueError(number)

    with app.inline() as ran:
        app.chain(step.bind(1), step.using(delay=60).bind(2), catch=step.bind(99)).dispatch()
        with pytest.raises(ValueError, match="-1"):
            app.chain(step.bind(3), step.bind(-1), step.bind(4), catch=step.bind(5)).dispatch()
    assert done == [1, 2, 3, -1, 5]
    assert [[job.arguments["number"] for job in chain.jobs] for chain in ran.chains] == [[1, 2], [3, -1, 4]]


def test_a_chain_runs_to_its_end_however_long(app: Qd, done: list[Any]):
    @app.job("step")
    def step(number: int) -> None:
        done.append(number)

    with app.inline():
        app.chain(*[step.bind(number) for number in range(1200)]).dispatch()
    assert done == list(range(1200))


def test_the_first_error_of_a_chain_is_raised_even_if_catch_fails(app: Qd, done: list[Any]):
    @app.job("step")
    def step(number: int) -> None:
        done.append(number)
        raise ValueError(number)

    with app.inline(), pytest.raises(ValueError, match="1"):
        app.chain(step.bind(1), catch=step.bind(2)).dispatch()
    assert done == [1, 2]


def test_jobs_of_other_programs_are_only_recorded(app: Qd):
    with app.inline() as ran:
        app.queue("php").push(r"App\Jobs\Report@fire", {"month": 7})
    assert [each.job for each in ran.pushed("php")] == [r"App\Jobs\Report@fire"]


def test_middleware_wraps_an_inline_job(app: Qd, done: list[Any]):
    def seen(job: RunningJob, call_next: Callable[[], object]) -> object:
        done.append((job.name, job.connection, job.uuid != job.id, job.tags, job.payload[:1]))
        return call_next()

    def patient(job: RunningJob, call_next: Callable[[], object]) -> object:
        if len(done) < 3:
            job.release(60, reason="not yet", counts=False)
        return call_next()

    app.middleware.append(seen)

    @app.job("note", middleware=[patient], tags=["slow"], tries=1)
    def note() -> None:
        done.append(current_job().attempt)

    with app.inline():
        note.dispatch()
    assert done == [("note", "redis", True, ("slow",), b"{")] * 3 + [1]


def step_of(app: Qd, done: list[Any]) -> Any:
    @app.job("step")
    def step(what: object) -> None:
        done.append(what)
        if what == "add":
            app.current_batch().add(step.bind("added"))
        if what == "cancel":
            app.current_batch().cancel()
        if what == "fail":
            raise ValueError(what)

    return step


def test_a_batch_runs_and_then_its_callbacks(app: Qd, done: list[Any]):
    step = step_of(app, done)
    with app.inline() as ran:
        sent = app.batch(
            step.bind(1), step.bind("add"), step.bind(2),
            then=step.bind("then"), catch=step.bind("catch"), finally_=step.bind("finally"),
        ).dispatch()  # fmt: skip
        assert (sent.total, sent.pending, sent.failed, sent.finished, sent.progress) == (4, 0, 0, True, 100)
    assert done == [1, "add", "added", 2, "then", "finally"]
    assert len(ran.batches[0].jobs) == 4


def test_a_batch_raises_its_failure_at_the_end(app: Qd, done: list[Any]):
    step = step_of(app, done)
    with app.inline(), pytest.raises(ValueError, match="fail"):
        app.batch(
            step.bind("fail"), step.bind("fail"), step.bind(2),
            then=step.bind("then"), catch=step.bind("catch"), finally_=step.bind("finally"),
        ).dispatch()  # fmt: skip
    assert done == ["fail", "catch", "fail", 2, "finally"]


def test_a_batch_that_allows_failures_does_not_raise(app: Qd, done: list[Any]):
    step = step_of(app, done)
    with app.inline():
        sent = app.batch(step.bind("fail"), step.bind(2), catch=step.bind("catch"), allow_failures=True).dispatch()
        assert (sent.failed, sent.cancelled, sent.finished) == (1, False, True)
    assert done == ["fail", "catch", 2]


def test_then_does_not_run_for_a_cancelled_batch_with_skipped_jobs(app: Qd, done: list[Any]):
    def skip(job: RunningJob, call_next: Callable[[], object]) -> object:
        job.skipped = app.current_batch().cancelled
        return None if job.skipped else call_next()

    @app.job("careful", middleware=[skip])
    def careful(what: str) -> None:
        done.append(what)
        app.current_batch().cancel()

    step = step_of(app, done)
    with app.inline():
        callbacks = {"then": step.bind("then"), "finally_": step.bind("finally")}
        app.batch(careful.bind("a"), careful.bind("b"), **callbacks).dispatch()
        app.batch(step.bind("cancel"), step.bind("c"), then=step.bind("then")).dispatch()
    assert done == ["a", "finally", "cancel", "c", "then"]


def test_an_empty_batch_finishes_at_once(app: Qd, done: list[Any]):
    step = step_of(app, done)
    with app.inline():
        assert app.batch(then=step.bind("then"), finally_=step.bind("finally")).dispatch().finished
    assert done == ["then", "finally"]


def test_a_result_can_be_read(app: Qd):
    @app.job("sum", result_ttl=60)
    def total(numbers: set[int]) -> int:
        current_job().progress(50)
        return 10 // sum(numbers)

    with app.inline():
        sent = total.dispatch({1, 4})
        assert (sent.status(), sent.result(), sent.progress(), sent.cancel()) == ("done", 2, 100.0, False)
        assert total.using(result_ttl=0).dispatch({1}).status() == "unknown"
        with pytest.raises(ZeroDivisionError):
            total.dispatch({0})
