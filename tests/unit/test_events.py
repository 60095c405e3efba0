"""Events: signatures of listeners, and errors in them."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from qd import DeclarationError
from qd.events import JobFailed, Looping
from qd.worker.worker import LISTENERS, Worker
from tests.support.fakes import FakeQd

# -- signatures of listeners


def takes_nothing() -> None: ...


def takes_two(event: object, other: object) -> None: ...


def takes_by_name_only(*, event: object) -> None: ...


class AsyncCallable:
    async def __call__(self, event: object) -> None: ...


@pytest.mark.parametrize(
    ("listener", "message"),
    [
        (takes_nothing, "listener takes_nothing cannot be called with one JobFailed: too many positional"),
        (takes_two, "listener takes_two cannot be called with one JobFailed: missing a required argument"),
        (takes_by_name_only, "listener takes_by_name_only cannot be called"),
        (AsyncCallable(), "is async and would never run: make it a def"),
        ("no function", "the listener 'no function' cannot be called: pass a function that takes one JobFailed"),
    ],
)
def test_a_listener_with_a_wrong_signature_is_refused_when_it_is_added(app: FakeQd, listener: Any, message: str):
    with pytest.raises(DeclarationError, match=message):
        app.on(JobFailed)(listener)
    assert not app._listeners.has(JobFailed)


def takes_more_with_defaults(event: object, heard: list[object], more: int = 0) -> None:
    heard.append(event)


def test_any_callable_with_one_parameter_is_a_listener(app: FakeQd):
    heard: list[object] = []
    app.on(Looping)(heard.append)
    app.on(Looping)(partial(takes_more_with_defaults, heard=heard))
    app._listeners.emit(Looping("redis", ("mail",)))
    assert heard == [Looping("redis", ("mail",))] * 2


def test_base_exceptions_in_a_listener_are_raised_outside_a_worker(app: FakeQd) -> None:
    def interrupted(event: object) -> None:
        raise KeyboardInterrupt

    app.on(Looping)(interrupted)
    with pytest.raises(KeyboardInterrupt):
        app.emit(Looping("redis", ()))


def test_the_time_announced_for_listeners_is_reset_after_them(app: FakeQd) -> None:
    announced: list[float] = []
    app.on(Looping)(lambda event: announced.append(-1.0))
    worker: Any = SimpleNamespace(app=app, hears=app._listeners.has, _beat=announced.append)
    assert Worker._emit(worker, Looping, "redis", ())
    assert announced == [LISTENERS, -1.0, 0.0]
