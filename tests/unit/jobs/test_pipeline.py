"""Middleware around a job: its order, its forms, and what is refused at the declaration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from qd import DeclarationError, Job, RunningJob, current_job
from qd.errors import JobFailure
from qd.events import JobReleased
from tests.support.fakes import FakeQd

Next = Callable[[], object]


def noting(name: str, seen: list[str]) -> Any:
    def around(job: RunningJob, call_next: Next) -> object:
        seen.append(f"{name} in")
        result = call_next()
        seen.append(f"{name} out")
        return result

    return around


def noting_async(name: str, seen: list[str]) -> Any:
    async def around(job: RunningJob, call_next: Callable[[], Any]) -> object:
        seen.append(f"{name} in")
        result = await call_next()
        seen.append(f"{name} out")
        return result

    return around


def test_middleware_of_the_app_wraps_that_of_the_job(app: FakeQd):
    seen: list[str] = []
    app.middleware.append(noting("app", seen))

    @app.job("x", middleware=[noting("first", seen), noting("second", seen)])
    def work() -> int:
        seen.append("job")
        return 7

    assert work.run() == 7
    assert seen == ["app in", "first in", "second in", "job", "second out", "first out", "app out"]


def test_sync_middleware_sees_the_result_of_an_async_job_and_wraps_async_middleware(app: FakeQd):
    seen: list[str] = []

    def doubled(job: RunningJob, call_next: Next) -> object:
        result = call_next()
        assert isinstance(result, int)
        return result * 2

    @app.job("x", middleware=[doubled, noting("sync", seen), noting_async("async", seen)])
    async def work() -> int:
        seen.append("job")
        return 21

    assert work.run() == 42
    assert seen == ["sync in", "async in", "job", "async out", "sync out"]


def test_an_object_with_an_async_call_is_async_middleware(app: FakeQd):
    class Around:
        async def __call__(self, job: RunningJob, call_next: Any) -> object:
            return (await call_next()) + 1

    @app.job("x", middleware=[Around()])
    async def work() -> int:
        return 1

    assert work.run() == 2


def test_a_class_job_has_middleware_too(app: FakeQd):
    @app.job("x", middleware=[lambda job, call_next: [call_next()]])
    class Work(Job[int]):
        n: int

        def handle(self) -> int:
            return self.n

    assert Work(n=3).run() == [3]  # type: ignore[comparison-overlap]


def test_the_return_value_of_middleware_is_the_result_even_if_the_job_does_not_run(app: FakeQd):
    ran: list[int] = []

    @app.job("x", middleware=[lambda job, call_next: "instead"])
    def work() -> str:
        ran.append(1)
        return "job"

    assert (work.run(), ran) == ("instead", [])


def test_middleware_gets_the_current_job(app: FakeQd):
    found: list[RunningJob] = []

    @app.middleware
    def look(job: RunningJob, call_next: Next) -> object:
        found.append(job)
        return call_next()

    @app.job("mail.welcome", queue="mail")
    def work() -> None:
        assert current_job() is found[0]

    work.run()
    assert (found[0].name, found[0].queue, found[0].payload) == ("mail.welcome", "mail", b"")
    assert found[0].uuid == found[0].id


def test_a_job_released_by_middleware_reports_the_reason(app: FakeQd):
    heard: list[JobReleased] = []
    app.on(JobReleased)(heard.append)

    def not_now(job: RunningJob, call_next: Next) -> object:
        job.release(3, reason="not now", counts=False)

    @app.job("x", middleware=[not_now])
    def work() -> None: ...

    with pytest.raises(JobFailure, match=r"x released itself for 3 s \(not now\)"):
        work.run()
    assert (heard[0].delay, heard[0].reason) == (3, "not now")


def test_a_release_counts_even_if_middleware_swallows_it(app: FakeQd):
    def deaf(job: RunningJob, call_next: Next) -> object:
        try:
            return call_next()
        except BaseException:
            return "swallowed"

    @app.job("x", middleware=[deaf])
    def work() -> None:
        current_job().release(3)

    with pytest.raises(JobFailure, match="released itself"):
        work.run()


# -- errors


def two(job: RunningJob, call_next: Next) -> object:
    return call_next()


async def two_async(job: RunningJob, call_next: Any) -> object:
    return await call_next()


def one(job: RunningJob) -> None: ...


def yields(job: RunningJob, call_next: Next) -> Any:
    yield call_next()


async def yields_async(job: RunningJob, call_next: Next) -> Any:
    yield call_next()


class Yields:
    def __call__(self, job: RunningJob, call_next: Next) -> Any:
        yield call_next()

    def __repr__(self) -> str:
        return "Yields()"


GENERATOR = "middleware {} of shop.x is a generator, whose body would never run; return call_next() instead of yield"


class Made:
    def __init__(self, a: object = None, b: object = None) -> None: ...

    def __call__(self, job: RunningJob, call_next: Next) -> object:
        return call_next()


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (one, "middleware one of shop.x does not take (job, call_next)"),
        (Made, "middleware Made of shop.x is a class; give an instance, Made(...)"),
        (3, "middleware 3 of shop.x cannot be called"),
        (yields, GENERATOR.format("yields")),
        (yields_async, GENERATOR.format("yields_async")),
        (Yields(), GENERATOR.format("Yields()")),
        (
            two_async,
            "middleware two_async of shop.x is async, but only a single async job can have async middleware; make it a def",
        ),
    ],
)
def test_middleware_with_a_wrong_signature_is_refused_at_the_declaration(app: FakeQd, stage: Any, message: str):
    with pytest.raises(DeclarationError) as refused:

        @app.job("shop.x", middleware=[two, stage])
        def work() -> None: ...

    assert message in str(refused.value)
    assert app._registry.get("shop.x") is None


def test_async_middleware_before_sync_is_refused(app: FakeQd):
    with pytest.raises(DeclarationError, match="middleware two of x is sync, but inside two_async, which is async"):

        @app.job("x", middleware=[two_async, two])
        async def work() -> None: ...


def test_a_class_job_with_a_wrong_middleware_is_refused(app: FakeQd):
    with pytest.raises(DeclarationError, match="middleware one of x does not take"):

        @app.job("x", middleware=[one])  # type: ignore[list-item]
        class Work(Job[None]):
            def handle(self) -> None: ...


def test_middleware_of_the_app_is_checked_when_it_is_added(app: FakeQd):
    with pytest.raises(DeclarationError, match=r"middleware one of app\.middleware does not take"):
        app.middleware.append(one)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="is async"):
        app.middleware += [two_async]
    app.middleware.append(two)
    with pytest.raises(DeclarationError, match="does not take"):
        app.middleware[0] = one
    assert list(app.middleware) == [two]
    app.middleware.remove(two)
    assert not app.middleware


def test_using_does_not_accept_middleware(app: FakeQd):
    @app.job("x")
    def work() -> None: ...

    with pytest.raises(DeclarationError, match="takes no middleware"):
        work.using(middleware=[two])
