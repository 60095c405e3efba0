"""The middleware around a job: checked when it is declared, run by workers and run().

    app.middleware, middleware=[...] of the job -> async middleware of an async job -> the job

Each is called with (job, call_next) and returns what the job returns. If one does not call `call_next`, the job ends there
as done.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, MutableSequence, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar, overload

from qd.arguments.parameters import named
from qd.errors import DeclarationError
from qd.jobs.context import RunningJob
from qd.jobs.plan import Middleware
from qd.jobs.registry import Declared

SHAPE = "write def middleware(job, call_next): return call_next()"


def is_async(stage: object) -> bool:
    return inspect.iscoroutinefunction(stage) or inspect.iscoroutinefunction(getattr(stage, "__call__", None))  # noqa: B004


def check_stages(declared: Declared) -> None:
    """Check the middleware of one job, outermost first, also with its own `check(declared)`. Raises DeclarationError."""
    outer: object = None  # the last async one
    for stage in declared.options.middleware or ():
        check_stage(declared.name, stage, runs_async=declared.is_async)
        if hasattr(stage, "check"):
            stage.check(declared)
        if is_async(stage):
            outer = stage
        elif outer is not None:
            fact = f"is sync, but inside {named(outer)}, which is async"
            refuse(declared.name, stage, fact, "put sync middleware before async middleware")


def check_stage(job: str, stage: object, *, runs_async: bool) -> None:
    if isinstance(stage, type):
        refuse(job, stage, "is a class", f"give an instance, {stage.__name__}(...)")
    if not callable(stage):
        refuse(job, stage, "cannot be called", SHAPE)
    if any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in (stage, stage.__call__)):
        refuse(job, stage, "is a generator, whose body would never run", "return call_next() instead of yield")
    if not takes_two(stage):
        refuse(job, stage, "does not take (job, call_next)", SHAPE)
    if is_async(stage) and not runs_async:
        refuse(job, stage, "is async, but only a single async job can have async middleware", "make it a def")


def takes_two(stage: object) -> bool:
    try:
        inspect.signature(stage).bind(None, None)  # type: ignore[arg-type]
    except TypeError:
        return False
    except ValueError:
        pass  # a callable written in C, without a signature
    return True


def title_of(stage: Any) -> str:
    """For lists: `shop.jobs.timed`, or the repr() of an instance that defines one."""
    if isinstance(stage, partial):
        return title_of(stage.func)
    if not hasattr(stage, "__qualname__"):
        written: object = type(stage).__repr__
        if written is not object.__repr__:
            return repr(stage)
        stage = type(stage)
    return f"{stage.__module__}.{stage.__qualname__}"


def refuse(job: str, stage: object, fact: str, fix: str) -> NoReturn:
    raise DeclarationError(f"middleware {named(stage)} of {job} {fact}; {fix}")


F = TypeVar("F", bound=Middleware)


class Pipeline(MutableSequence[Middleware]):
    """The middleware of every job of an app, outermost first: a list that checks each entry as it is added.

    app.middleware.append(timed), or @app.middleware above its def.
    """

    def __init__(self) -> None:
        self._stages: list[Middleware] = []

    def __call__(self, stage: F) -> F:
        """As a decorator: the innermost so far."""
        self.append(stage)
        return stage

    def insert(self, index: int, value: Middleware) -> None:
        check_stage("app.middleware", value, runs_async=False)
        self._stages.insert(index, value)

    @overload
    def __getitem__(self, index: int) -> Middleware: ...
    @overload
    def __getitem__(self, index: slice) -> MutableSequence[Middleware]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._stages[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        for stage in value if isinstance(index, slice) else (value,):
            check_stage("app.middleware", stage, runs_async=False)
        self._stages[index] = value

    def __delitem__(self, index: int | slice) -> None:
        del self._stages[index]

    def __len__(self) -> int:
        return len(self._stages)

    def around(self, declared: Declared) -> Sequence[Middleware]:
        """All middleware of jobs of `declared`, outermost first."""
        own = declared.options.middleware
        return self._stages if own is None else (*self._stages, *own)

    def __repr__(self) -> str:
        return f"<middleware of every job: {self._stages}>"


def through(
    stages: Sequence[Middleware],
    declared: Declared,
    job: RunningJob,
    call: Callable[[], object],
    finished: Callable[[object], object],
) -> object:
    """Run `call` inside `stages`. finished: turns what `call` returned into the result; runs a coroutine to its end."""
    inside, left = call, len(stages)
    while left and declared.is_async and is_async(stages[left - 1]):
        left -= 1
        inside = partial(stages[left], job, inside)

    def run() -> object:
        return finished(inside())

    outermost: Callable[[], object] = run
    for stage in reversed(stages[:left]):
        outermost = partial(stage, job, outermost)
    return outermost()
