"""Built-in middleware: what is refused at the declaration, and what it does without a store."""

from __future__ import annotations

import re

import pytest

from qd import DeclarationError, JobTimeout, Qd, RunningJob
from qd import middleware as concurrency
from qd.events import JobFailed
from qd.jobs.plan import Middleware
from qd.middleware import (
    ConcurrencyLimit,
    FailOnException,
    RateLimited,
    SkipIf,
    SkipIfBatchCancelled,
    ThrottlesExceptions,
    WithoutOverlapping,
)
from tests.support.fakes import FakeQd


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConcurrencyLimit("crm", 0), "at most 0 jobs at a time is invalid"),
        (lambda: ConcurrencyLimit(7, 1), "the key 7 is neither a string nor a function"),  # type: ignore[arg-type]
        (lambda: ConcurrencyLimit("crm", 1, release_after=-1), "release_after"),
        (lambda: WithoutOverlapping(expires=0), "expires"),
        (lambda: WithoutOverlapping(shared=True), "shared=True needs a key"),
        (lambda: RateLimited("stripe", 100), "needs both numbers"),
        (lambda: RateLimited("stripe", 0, per=60), "the limit 'stripe' of 0 per 60 s lets nothing run"),
        (lambda: RateLimited("stripe", 1, per=0), "of 1 per 0 s lets nothing run"),
        (lambda: ThrottlesExceptions(0, 60, 60), "lets nothing run"),
        (lambda: SkipIf(True), "pass a function of the job"),  # type: ignore[arg-type]
        (lambda: FailOnException(), "takes types of errors"),
        (lambda: FailOnException("ValueError"), "takes types of errors"),  # type: ignore[arg-type]
    ],
)
def test_impossible_numbers_are_refused_at_the_declaration(make, message):
    with pytest.raises(DeclarationError, match=re.escape(message)):
        make()


NOBODY = [
    ConcurrencyLimit("{nobody}", 1),
    WithoutOverlapping("{nobody}"),
    RateLimited("x", 1, per=1, key="{nobody}"),
    ThrottlesExceptions(1, 1, 1, key="{nobody}"),
]


@pytest.mark.parametrize("middleware", NOBODY, ids=lambda each: type(each).__name__)
def test_a_key_that_names_no_parameter_is_refused_at_the_declaration(app: FakeQd, middleware):
    with pytest.raises(DeclarationError, match=r"middleware \w+ of job 'x': it has no parameter 'nobody'"):

        @app.job("x", middleware=[middleware])
        def work(order_id: int) -> None: ...


def test_a_limit_is_declared_once(app: FakeQd):
    app.limit("stripe", 100, per=60)
    app.limit("stripe", 100, per=60.0)
    with pytest.raises(DeclarationError, match="the limit 'stripe' is declared twice: 100 per 60 s before"):
        app.limit("stripe", 50, per=60)


def test_a_limit_that_is_not_declared_is_reported_with_the_known_ones(app: FakeQd):
    app.limit("stripe", 100, per=60)

    @app.job("x", middleware=[RateLimited("strip")])
    def work() -> None: ...

    with pytest.raises(DeclarationError, match=r"no limit 'strip' is declared \(known: stripe\)"):
        work.run()


def test_a_store_without_rate_limits_is_an_error(app: FakeQd):
    @app.job("x", middleware=[WithoutOverlapping()])
    def work() -> None: ...

    job = RunningJob("an-id", "x", "default", 1, backing=app._services)
    with pytest.raises(Exception, match="keeps jobs and nothing else"):
        WithoutOverlapping()(job, lambda: None)


@pytest.mark.parametrize(
    "middleware",
    [
        WithoutOverlapping("{number}", drop=True),
        ConcurrencyLimit("crm", 1),
        RateLimited("crm", 1, per=60),
        ThrottlesExceptions(1, 60, 60),
        SkipIfBatchCancelled(),
    ],
    ids=lambda each: type(each).__name__,
)
def test_run_uses_no_server_and_is_not_limited(monkeypatch: pytest.MonkeyPatch, middleware: Middleware):
    monkeypatch.setenv("QD_REDIS_URL", "unix:///nope")
    app = Qd()

    @app.job("sync", middleware=[middleware])
    def sync(number: int) -> int:
        if number > 2:
            raise ValueError(number)
        return sync.run(number + 1) if number == 1 else number

    assert (sync.run(1), sync.run(2)) == (2, 2)
    for _ in range(3):
        with pytest.raises(ValueError, match="3"):
            sync.run(3)


def test_skip_if_and_a_job_of_no_batch(app: FakeQd):
    ran: list[int] = []

    @app.job("x", middleware=[SkipIf(lambda job: job.arguments.get("n", 0) > 1), SkipIfBatchCancelled()])
    def work(n: int = 0) -> None:
        ran.append(n)

    work.run()
    work.run(1)
    work.run(2)
    assert ran == [0, 1]


def test_fail_on_exception_fails_with_the_error_itself(app: FakeQd):
    heard: list[JobFailed] = []
    app.on(JobFailed)(heard.append)

    @app.job("x", middleware=[FailOnException(KeyError, ValueError)])
    def work(kind: str) -> None:
        raise {"value": ValueError, "os": OSError}[kind]("no")

    for kind, error in (("value", ValueError), ("os", OSError), ("none", KeyError)):
        with pytest.raises(error):
            work.run(kind)
    assert [type(event.error) for event in heard] == [ValueError, OSError, KeyError]


@pytest.mark.parametrize("answers", [True, False])
def test_a_place_taken_during_an_alarm_is_given_back(monkeypatch: pytest.MonkeyPatch, answers: bool):
    freed: list[str] = []

    def ring(job: RunningJob, ask: object) -> float:
        raise JobTimeout("ran longer than its timeout of 1s")

    def update(job: RunningJob, update: object, otherwise: str) -> bool:
        freed.append(job.id)
        return answers

    monkeypatch.setattr(concurrency, "query_store", ring)
    monkeypatch.setattr(concurrency, "update_store", update)
    job = RunningJob("an-id", "x", "default", 1)
    with pytest.raises(JobTimeout):
        ConcurrencyLimit(lambda job: "k", 1)(job, lambda: None)
    assert (freed, job.unfreed) == (["an-id"], 0 if answers else 1)
