"""job.arguments, as middleware and listeners see it: values of the declared types, with defaults, converted once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from qd import Job, RunningJob
from qd.events import JobProcessed
from tests.support.fakes import FakeQd

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
made: list[str] = []


@dataclass
class Line:
    sku: str

    def __post_init__(self) -> None:
        made.append(self.sku)


@pytest.fixture
def seen(app: FakeQd) -> list[dict[str, Any]]:
    """What middleware around every job finds."""
    found: list[dict[str, Any]] = []

    @app.middleware
    def looks(job: RunningJob, call_next: Callable[[], object]) -> object:
        found.append(job.arguments)
        return call_next()

    return found


def test_arguments_are_converted_and_hold_the_defaults(app: FakeQd, seen: list[dict[str, Any]]) -> None:
    @app.job("x")
    def work(when: datetime, tags: set[str], note: str = "none", copies: int = 1) -> None: ...

    work.run(NOON, {"b", "a"}, copies=2)
    assert seen == [{"when": NOON, "tags": {"a", "b"}, "note": "none", "copies": 2}]


def test_arguments_of_a_class_job_hold_what_its_factories_make(app: FakeQd, seen: list[dict[str, Any]]) -> None:
    @app.job("x")
    class Work(Job[None]):
        when: datetime
        parts: list[int] = field(default_factory=lambda: [1])

        def handle(self) -> None: ...

    app.call("x", b'{"when":"2026-11-22T13:00:00+01:00"}').run()
    assert seen == [{"when": NOON, "parts": [1]}]


def test_names_of_kwargs_are_there_too(app: FakeQd, seen: list[dict[str, Any]]) -> None:
    @app.job("x")
    def work(n: int = 1, **more: float) -> None: ...

    work.run(a=1)
    assert seen == [{"n": 1, "a": 1.0}]


def test_a_raw_job_has_the_object_that_is_its_data(app: FakeQd, seen: list[dict[str, Any]]) -> None:
    @app.job("x", raw=True)
    def work(body: Any) -> None: ...

    work.run({"a": 1})
    work.run([1])
    assert seen == [{"a": 1}, {}]


def test_arguments_are_converted_once_for_all_who_look_and_for_the_function(app: FakeQd) -> None:
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


def test_a_dict_that_somebody_changes_is_nobody_elses(app: FakeQd, seen: list[dict[str, Any]]) -> None:

    @app.middleware
    def clears(job: RunningJob, call_next: Callable[[], object]) -> object:
        job.arguments.clear()
        return call_next()

    @app.job("x")
    def work(n: int) -> int:
        return n

    assert work.run(7) == 7
    assert seen == [{"n": 7}]


def test_arguments_that_do_not_convert_are_given_as_json(app: FakeQd) -> None:
    @app.job("x")
    def work(n: int, when: datetime = NOON) -> None: ...

    declared = app._registry.get("x")
    job = RunningJob("id", "x", "default", 1, declared=declared, data=b'{"n":"many"}')
    assert job.arguments == {"n": "many"}
    assert RunningJob("id", "y", "default", 1, data=b'{"n":"1"}').arguments == {"n": "1"}
