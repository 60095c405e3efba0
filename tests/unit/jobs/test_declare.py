"""Declaring jobs: what is accepted, what is refused with which message, and what the worker finds in the registry."""

from __future__ import annotations

import gc
import inspect
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import field
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from qd import ArgumentError, DeclarationError, Job, JobFunction, NeverSent
from qd.errors import UnknownParameters, WrongType
from qd.jobs.registry import Declared
from tests.support.fakes import FakeQd

HERE = __name__


def declared(app: FakeQd, name: str) -> Declared:
    found = app._registry.get(name)
    assert found is not None
    return found


def prepared(app: FakeQd, name: str, data: bytes) -> Callable[[], object]:
    job = declared(app, name)
    return job.call(job.decode(data))


def at_the_top(to: str, subject: str = "Hello") -> str:
    """Says it."""
    return f"{subject}, {to}"


# -- names


def test_a_job_is_named_after_its_module_and_function(app: FakeQd):
    assert app.job(at_the_top).name == f"{HERE}.at_the_top"
    assert app._registry.names() == [f"{HERE}.at_the_top"]


def test_a_given_name_is_used(app: FakeQd):
    assert app.job("mail.welcome")(at_the_top).name == "mail.welcome"
    assert app.job()(at_the_top).name == f"{HERE}.at_the_top"


def test_a_class_job_is_named_after_its_module_and_class(app: FakeQd):
    @app.job
    class Charge(Job[None]):
        def handle(self) -> None: ...

    assert app._registry.names() == [f"{HERE}.test_a_class_job_is_named_after_its_module_and_class.Charge"]


def test_the_plain_call_is_the_function_itself(app: FakeQd):
    job = app.job("mail.welcome")(at_the_top)
    assert job("you") == "Hello, you"
    assert (job.__doc__, job.__module__) == ("Says it.", HERE)
    assert inspect.signature(job) == inspect.signature(at_the_top)
    assert app.sent == []


def test_a_duplicate_name_is_reported_with_both_places(app: FakeQd):
    app.job("mail.welcome")(at_the_top)
    with pytest.raises(DeclarationError) as raised:
        app.job("mail.welcome")(lambda_free)
    assert str(raised.value).count(f"{__file__}:") == 2
    assert "'mail.welcome'" in str(raised.value)
    assert declared(app, "mail.welcome").target is at_the_top


def lambda_free() -> None: ...


def test_similar_names_are_found(app: FakeQd):
    for name in ("mail.welcome", "mail.goodbye", "shop.charge"):
        app.job(name)(at_the_top)
    assert app._registry.near("mail.wellcome")[0] == "mail.welcome"
    assert app._registry.near("charge") == ["shop.charge"]  # the name of the function, without its module
    assert app._registry.near("zzz") == []
    assert app._registry.get("mail.wellcome") is None


# -- invalid jobs


class Shop:
    def method(self) -> None: ...

    @staticmethod
    def static() -> None: ...


def in_main() -> None: ...


in_main.__module__ = "__main__"


def yields() -> Iterator[int]:
    yield 1


async def async_yields() -> AsyncIterator[int]:
    yield 1


def stars(*args: int) -> None: ...


class Unhandled(Job[None]):
    order_id: int


class AsyncFailed(Job[None]):
    def handle(self) -> None: ...
    async def failed(self, error: BaseException) -> None: ...  # type: ignore[override]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (lambda: None, "lambda"),
        (Shop.method, "method"),
        (Shop().method, "method"),
        (Shop.__dict__["static"], "method"),
        (partial(at_the_top, "x"), "partial"),
        (print, "not a function"),
        (7, "not a function"),
        (in_main, "__main__"),
        (yields, "generator"),
        (async_yields, "generator"),
        (stars, "args"),
        (Shop, "qd.Job"),
        (Job, "qd.Job"),
        (Unhandled, "handle"),
        (AsyncFailed, "failed"),
    ],
)
def test_an_invalid_job_is_refused_at_its_declaration(app: FakeQd, target, words):
    with pytest.raises(DeclarationError, match=words):
        app.job(target)
    assert app._registry.names() == []


def test_a_method_is_refused_inside_its_class(app: FakeQd):
    with pytest.raises(DeclarationError, match=r"Later\.method cannot be a job: it is a method"):

        class Later:
            @app.job("later.method")
            def method(self) -> None: ...


def test_main_can_declare_jobs_with_a_name(app: FakeQd):
    assert app.job("main.thing")(in_main).name == "main.thing"


def test_a_job_is_declared_once(app: FakeQd):
    job = app.job("mail.welcome")(at_the_top)
    with pytest.raises(DeclarationError, match="is already a job"):
        app.job("mail.again")(job)


def test_an_empty_name_is_refused(app: FakeQd):
    with pytest.raises(DeclarationError, match="empty name"):
        app.job(" ")(at_the_top)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"trys": 5}, "'trys'.*did you mean 'tries'"),
        ({"delay": 5}, "unknown option 'delay'"),
        ({"middleware": ["lock"]}, "middleware 'lock' of mail.welcome cannot be called"),
        ({"unique": ""}, "unique"),
        ({"unique_until": "end"}, "neither 'start' nor 'done'"),
        ({"tries": -1}, "tries"),
        ({"timeout": "soon"}, "timeout"),
        ({"backoff": [1, -5]}, "backoff"),
        ({"queue": ""}, "queue"),
    ],
)
def test_options_are_checked_at_the_declaration(app: FakeQd, options, words):
    with pytest.raises(DeclarationError, match=words):
        app.job("mail.welcome", **options)(at_the_top)


def test_durations_in_options_become_numbers(app: FakeQd):
    app.job("a", tries=5, timeout=timedelta(minutes=2), backoff=[1, timedelta(seconds=5)], tags=["x"])(at_the_top)
    options = declared(app, "a").options
    assert (options.tries, options.timeout, options.backoff, options.tags) == (5, 120.0, (1.0, 5.0), ("x",))
    assert options.queue is None


# -- class jobs


def test_fields_are_keywords_with_defaults(app: FakeQd):
    @app.job("payments.charge")
    class Charge(Job[int]):
        order_id: int
        currency: str = "EUR"
        lines: list[str] = field(default_factory=list)

        def handle(self) -> int:
            return self.order_id

    one = Charge(order_id=7)
    assert (one.order_id, one.currency, one.lines, one.handle()) == (7, "EUR", [], 7)
    assert one == Charge(order_id=7)
    assert "order_id=7" in repr(one)
    with pytest.raises(TypeError):
        Charge(7)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["handle", "failed", "using", "dispatch", "adispatch", "run"])
def test_a_field_that_hides_a_method_is_refused(name):
    with pytest.raises(DeclarationError, match=f"'{name}'"):
        type("Hiding", (Job,), {"__annotations__": {name: "int"}, "__module__": HERE})


def test_a_class_without_a_declaration_cannot_be_sent(app: FakeQd):
    with pytest.raises(DeclarationError, match=r"put @app\.job"):
        Unhandled(order_id=1).dispatch()


def test_a_subclass_of_a_job_is_not_a_job(app: FakeQd):
    @app.job("parent")
    class Parent(Job[None]):
        number: int

        def handle(self) -> None: ...

    class Child(Parent):
        other: int = 0

    with pytest.raises(DeclarationError, match="Child"):
        Child(number=1).dispatch()
    app.job("child")(Child).__call__(number=1, other=2).dispatch()
    assert (app.last["job"], app.last["data"]) == ("child", {"number": 1, "other": 2})


# -- in the worker


def test_prepare_converts_now_and_calls_later(app: FakeQd):
    @app.job("sum")
    def total(parts: tuple[int, ...], wait: timedelta = timedelta(0)) -> Any:
        return parts, wait

    call = prepared(app, "sum", b'{"parts":[1,2],"wait":"PT5S"}')
    assert call() == ((1, 2), timedelta(seconds=5))


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b'{"parts":"x"}', WrongType, "parts"),
        (b'{"parts":[],"more":1}', UnknownParameters, "more"),
        (b"[]", UnknownParameters, "parts"),
    ],
)
def test_prepare_reports_arguments_that_do_not_fit(app: FakeQd, data, error, words):
    @app.job("sum")
    def total(parts: list[int]) -> None: ...

    with pytest.raises(error, match=words):
        prepared(app, "sum", data)


@pytest.mark.parametrize("data", [b"", b'""', b"[]", b"{}", b"null"])
def test_no_data_is_no_arguments(app: FakeQd, data):
    app.job("at_the_top")(lambda_free)
    assert prepared(app, "at_the_top", data)() is None


async def sleeper(seconds: float) -> float:
    return seconds


def test_an_async_job_is_recognized_and_returns_a_coroutine(app: FakeQd):
    app.job("sleep")(sleeper)
    job = declared(app, "sleep")
    assert job.is_async
    coroutine = job.call(job.decode(b'{"seconds":1}'))()
    assert inspect.iscoroutine(coroutine)
    with pytest.raises(StopIteration) as done:
        coroutine.send(None)
    assert done.value.value == 1.0


def test_a_class_with_an_async_handle_is_async(app: FakeQd):
    @app.job("a")
    class Async(Job[None]):
        async def handle(self) -> None: ...

    @app.job("b")
    class Plain(Job[None]):
        def handle(self) -> None: ...

    assert (declared(app, "a").is_async, declared(app, "b").is_async) == (True, False)


def test_failed_is_called_on_a_fresh_instance(app: FakeQd):
    failures: list[Any] = []

    @app.job("charge")
    class Charge(Job[None]):
        order_id: int

        def handle(self) -> None: ...

        def failed(self, error: BaseException) -> None:
            failures.append((self.order_id, error))

    error = ValueError("no money")
    declared(app, "charge").on_failed(lambda: b'{"order_id":7}', error)
    assert failures == [(7, error)]
    for unreadable in (b'{"order_id":"x"}', b"{}", b"{"):
        declared(app, "charge").on_failed(partial(bytes, unreadable), error)
    assert failures == [(7, error)]


def test_the_data_of_a_job_without_failed_is_not_read(app: FakeQd):
    @app.job("charge")
    class Charge(Job[None]):
        order_id: int

        def handle(self) -> None: ...

    app.job("plain")(at_the_top)
    declared(app, "charge").on_failed(lambda: b"{", ValueError())
    declared(app, "plain").on_failed(lambda: b"{", ValueError())


def test_the_constructor_of_a_class_job_runs_when_the_job_runs(app: FakeQd):
    @app.job("strict")
    class Strict(Job[None]):
        number: int

        def __post_init__(self) -> None:
            raise RuntimeError("not today")

        def handle(self) -> None: ...

    call = prepared(app, "strict", b'{"number":1}')
    with pytest.raises(RuntimeError, match="not today"):
        call()


def test_a_raw_job_gets_its_whole_data(app: FakeQd):
    @app.job("hook", raw=True)
    def hook(data: Any) -> Any:
        return data

    assert prepared(app, "hook", b'[1,{"a":null}]')() == [1, {"a": None}]
    assert prepared(app, "hook", b'""')() == ""
    hook.dispatch([1, 2])
    assert app.last["data"] == [1, 2]


def test_a_raw_job_takes_one_argument(app: FakeQd):
    with pytest.raises(DeclarationError, match="one argument"):
        app.job("welcome", raw=True)(at_the_top)
    with pytest.raises(DeclarationError, match="cannot be raw"):
        app.job("class", raw=True)(type("Raw", (Job,), {"handle": lambda self: None, "__module__": HERE}))


# -- discarded calls


def line_of(text: str) -> int:
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if text in line and "line_of" not in line)


def discarded(make: Any) -> list[warnings.WarningMessage]:
    """Warnings about calls that `make` discards, without those of earlier tests that wait for the garbage collector."""
    gc.collect()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        make()
        gc.collect()
    return [each for each in warned if issubclass(each.category, NeverSent)]


def test_a_discarded_bind_warns_with_its_line(app: FakeQd):
    job = app.job("mail.welcome")(at_the_top)

    def forgetful() -> None:
        job.bind("you")  # discarded: bind

    (warning,) = discarded(forgetful)
    assert (warning.category, warning.filename, warning.lineno) == (NeverSent, __file__, line_of("# discarded: bind"))
    assert "mail.welcome" in str(warning.message)
    assert ".dispatch()" in str(warning.message)


def test_a_discarded_using_warns_with_its_line(app: FakeQd):
    job = app.job("mail.welcome")(at_the_top)

    def forgetful() -> None:
        job.using(delay=5)  # discarded: using

    (warning,) = discarded(forgetful)
    assert (warning.category, warning.lineno) == (NeverSent, line_of("# discarded: using"))


def test_a_discarded_using_of_an_instance_warns(app: FakeQd):
    @app.job("number")
    class Number(Job[None]):
        number: int

        def handle(self) -> None: ...

    assert [warning.category for warning in discarded(lambda: Number(number=1).using(delay=1))] == [NeverSent]


def test_a_call_that_was_sent_run_or_passed_on_does_not_warn(app: FakeQd):
    job: JobFunction[..., Any, Any] = app.job("mail.welcome")(at_the_top)

    @app.job("number")
    class Number(Job[None]):
        number: int

        def handle(self) -> None: ...

    def careful() -> None:
        job.bind("you").dispatch()
        job.bind("you").using(delay=1).using(tries=3).dispatch()
        job.using(delay=1).using(queue="high").dispatch("you")
        job.using(delay=1).bind("you").run()
        app.dispatch(job.bind("you"), Number(number=1).using(delay=1))
        Number(number=1)
        with pytest.raises(ArgumentError):
            job.using(delay=1).dispatch()

    assert discarded(careful) == []
