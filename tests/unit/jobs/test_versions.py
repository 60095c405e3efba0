"""Versions of a job's arguments (jobs/versions.py): declaration, payload, upgrade step by step."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from qd import DeclarationError, Job
from qd.errors import UnknownParameters, WrongType
from qd.jobs.context import RunningJob
from qd.payload.format import read
from qd.scheduler.entry_job import Guard, job_of
from tests.support.fakes import FakeQd


def from_v1(data: dict[str, Any]) -> dict[str, Any]:
    first, _, last = data.pop("name").partition(" ")
    return {**data, "first": first, "last": last}


def from_v2(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "born": date(2000, 1, 1)}


def third(app: FakeQd, *steps: Callable[[dict[str, Any]], Any]) -> Callable[[bytes, int | None], Any]:
    """A job in version 3, and a function that runs a payload of any version."""

    @app.job("greet", version=3, upgrade=dict(enumerate(steps or (from_v1, from_v2), 1)))
    def greet(first: str, last: str, born: date, twice: bool = False) -> tuple[object, ...]:
        return first, last, born, twice

    def run(data: bytes, version: int | None) -> Any:
        declared = app._registry.get("greet")
        assert declared is not None
        job = RunningJob("1", "greet", "default", 1, declared=declared, data=data, version=version)
        return job.prepared(declared)(), job.arguments

    return run


NEW = {"first": "Ada", "last": "Byron", "born": date(2000, 1, 1), "twice": True}
OLDER = {
    1: b'{"name":"Ada Byron","twice":true}',
    2: b'{"first":"Ada","last":"Byron","twice":true}',
    3: b'{"first":"Ada","last":"Byron","born":"2000-01-01","twice":true}',
}


@pytest.mark.parametrize("version", OLDER)
def test_an_older_payload_is_upgraded_step_by_step(app: FakeQd, version: int):
    assert third(app)(OLDER[version], version) == (tuple(NEW.values()), NEW)


def test_a_payload_made_here_has_the_declared_version(app: FakeQd):
    assert third(app)(OLDER[3], None) == (tuple(NEW.values()), NEW)


def test_each_step_runs_once_in_an_attempt(app: FakeQd):
    calls = []

    def counted(data: dict[str, Any]) -> dict[str, Any]:
        calls.append(data)
        return from_v1(data)

    third(app, counted, from_v2)(OLDER[1], 1)
    assert len(calls) == 1


@pytest.mark.parametrize("data", [b'""', b"[]", b"{}", b"null", b""])
def test_no_arguments_are_an_empty_dict(app: FakeQd, data: bytes):
    run = third(app, lambda given: {**given, "first": "a", "last": "b"}, from_v2)
    assert run(data, 1)[0] == ("a", "b", date(2000, 1, 1), False)


@pytest.mark.parametrize(
    ("step", "data", "reason"),
    [
        (from_v1, b'{"nam":"Ada"}', "its upgrade from version 1 to 2, from_v1, raised KeyError: 'name'"),
        (lambda data: data.update(first="x"), b"{}", "<lambda>, returned None: return the dict of arguments"),
        (lambda data: {"first": object()}, b"{}", "what its upgrade to version 3 returned cannot be sent: "),
        (lambda data: {"first": 7, "last": ""}, b"{}", "argument 'first' is of the wrong type"),
        (from_v1, b"[1]", "expects an object with one entry per parameter, its data is [1]"),
    ],
)
def test_an_upgrade_that_fails_is_a_wrong_argument(app: FakeQd, step: Any, data: bytes, reason: str):
    with pytest.raises(WrongType) as raised:
        third(app, step, from_v2)(data, 1)
    assert reason in str(raised.value)


def test_an_upgrade_that_leaves_an_old_parameter_is_an_unknown_parameter(app: FakeQd):
    with pytest.raises(UnknownParameters, match="'name'"):
        third(app, lambda data: data, from_v2)(OLDER[1], 1)


def test_the_arguments_of_a_job_whose_upgrade_fails_are_those_of_the_payload(app: FakeQd):
    third(app)
    job = RunningJob("1", "greet", "q", 1, declared=app._registry.get("greet"), data=b'{"nam":"Ada"}', version=1)
    assert job.arguments == {"nam": "Ada"}


def test_failed_gets_upgraded_fields_and_is_not_called_if_the_upgrade_fails(app: FakeQd):
    seen = []

    @app.job("charge", version=2, upgrade={1: lambda data: {"order_id": data["id"]}})
    class Charge(Job[None]):
        order_id: int

        def handle(self) -> None: ...

        def failed(self, error: BaseException) -> None:
            seen.append(self.order_id)

    declared = app._registry.get("charge")
    assert declared is not None
    for data in (b'{"id":7}', b'{"no":7}'):
        job = RunningJob("1", "charge", "q", 1, declared=declared, data=data, version=1)
        declared.on_failed(job.current_data, ValueError())
    assert seen == [7]


# -- payloads


def test_the_version_travels_with_every_way_to_send(app: FakeQd):
    @app.job("old")
    def old(n: int) -> None: ...

    @app.job("new", version=2, upgrade={1: dict}, retry_for=60, tags=["a"])
    def new(n: int) -> None: ...

    @app.job("class", version=2, upgrade={1: dict})
    class Class(Job[None]):
        n: int

        def handle(self) -> None: ...

    new.dispatch(1)
    new.dispatch(2)  # from the template of the first one
    new.using(delay=5).dispatch(3)
    app.dispatch(new.bind(4), Class(n=5))
    app.call("new", b'{"n":6}').dispatch()
    old.dispatch(7)
    assert [read(sent.payload).job_version for sent in app.sent] == [2] * 6 + [1]
    assert b"job_version" not in app.sent[-1].payload
    assert [json.loads(sent.payload)["data"]["n"] for sent in app.sent] == [1, 2, 3, 4, 5, 6, 7]


def test_the_version_travels_with_the_later_jobs_of_a_chain_and_with_schedule_entries(app: FakeQd):
    @app.job("new", version=2, upgrade={1: dict})
    def new(n: int) -> None: ...

    app.chain(new.bind(1), new.bind(2)).dispatch()
    first = read(app.sent[0].payload)
    assert first.qd is not None
    assert [first.job_version, read(first.qd.chain[0].payload.encode()).job_version] == [2, 2]
    app.schedule(new.bind(3)).hourly()
    job = job_of(app, app.schedule.entries()[0], Guard())
    assert job is not None
    assert read(job.message().body).job_version == 2


def test_the_version_of_a_command_travels(app: FakeQd):
    @dataclass
    class Invoice:
        order_id: int

    app.map(Invoice, lambda invoice: None, "invoice", version=2, upgrade={1: dict})
    app.send(Invoice(7))
    assert read(app.sent[0].payload).job_version == 2


def test_run_here_does_not_upgrade(app: FakeQd):
    @app.job("new", version=2, upgrade={1: lambda data: {"n": 0}})
    def new(n: int) -> int:
        return n

    assert new.run(7) == 7


# -- declarations


async def later(data: dict[str, Any]) -> dict[str, Any]:
    return data


def two(data: dict[str, Any], more: int) -> dict[str, Any]:
    return data


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"version": 2}, "job 'x' has version=2 and 0 functions in upgrade; write upgrade={1: from_v1}"),
        ({"version": 3, "upgrade": {1: dict}}, "write upgrade={1: from_v1, 2: from_v2}"),
        ({"version": 1, "upgrade": {1: dict}}, "version=1 and 1 functions in upgrade; write version=2"),
        ({"upgrade": {1: dict}}, "has no version and 1 functions in upgrade; write version=2"),
        ({"version": 0}, "has version=0 and 0 functions in upgrade; write version=1"),
        ({"version": -1}, "option version of job 'x': -1 is not a whole number"),
        ({"version": "two"}, "option version of job 'x': 'two' is not a whole number"),
        ({"version": 3, "upgrade": {2: dict}}, "it has no function for version 1 (keys: 2); give one for each"),
        ({"version": 3, "upgrade": {1: dict, 3: dict}}, "it has no function for version 2 (keys: 1, 3)"),
        ({"version": 2, "upgrade": {"1": dict}}, "it has no function for version 1 (keys: '1')"),
        ({"version": 2, "upgrade": from_v1}, "is not a dict of functions (write {1: from_v1})"),
        ({"version": 2, "upgrade": {1: later}}, "its upgrade from version 1, later, is async and would never run"),
        ({"version": 2, "upgrade": {1: two}}, "its upgrade from version 1, two, cannot be called with a dict"),
        ({"version": 2, "upgrade": {1: 7}}, "its upgrade from version 1, 7, cannot be called"),
        ({"version": 2, "upgrade": {1: dict}, "raw": True}, "is raw and cannot have a version: put the version into"),
    ],
)
def test_a_wrong_declaration_is_refused(app: FakeQd, options: dict[str, Any], text: str):
    with pytest.raises(DeclarationError) as raised:

        @app.job("x", **options)
        def job(data: int) -> None: ...

    assert text in str(raised.value)


@pytest.mark.parametrize("options", [{"version": 2}, {"upgrade": {1: dict}}])
def test_a_version_belongs_to_the_declaration(app: FakeQd, options: dict[str, Any]):
    @app.job("x")
    def job(data: int) -> None: ...

    with pytest.raises(DeclarationError, match=r"using\(\) .* (version|upgrade)\b.*: set it in @app\.job"):
        job.using(**options)


def test_version_1_needs_no_upgrade(app: FakeQd):
    @app.job("x", version=1)
    def job(data: int) -> None: ...

    job.dispatch(1)
    assert b"job_version" not in app.sent[0].payload
