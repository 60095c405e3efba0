"""The pipeline around a job: middleware outermost first, the job's own code innermost.

    app.middleware, middleware=[...] of the job -> async middleware of an async job -> the job

Each is called with (job, call_next) and returns what the job returns; one that does not call `call_next` has the job end
there, well done. Worker and run() go through here; a job without middleware does not.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from qd.jobs.stages import check_stage, is_async

if TYPE_CHECKING:
    from qd.bus.running import RunningJob
    from qd.jobs import Declared
    from qd.jobs.plan import Middleware

F = TypeVar("F", bound="Middleware")


class Pipeline(MutableSequence["Middleware"]):
    """What stands around every job of an app, outermost first: a list, each entry checked as it is put in.

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
        """All that stands around jobs of `declared`, outermost first. Empty for most."""
        own = declared.options.middleware
        if own is None:
            return self._stages
        return (*self._stages, *own)

    def __repr__(self) -> str:
        return f"<middleware of every job: {self._stages}>"


def through(
    stages: Sequence[Middleware],
    declared: Declared,
    job: RunningJob,
    call: Callable[[], object],
    finished: Callable[[object], object],
) -> object:
    """Run `call` inside `stages`. finished: gives the result of what `call` returned, of a coroutine once it has run."""
    inside, left = call, len(stages)
    while left and declared.is_async and is_async(stages[left - 1]):
        left -= 1
        inside = partial(stages[left], job, inside)
    run: Callable[[], object] = partial(_run, inside, finished)
    for stage in reversed(stages[:left]):
        run = partial(stage, job, run)
    return run()


def _run(inside: Callable[[], object], finished: Callable[[object], object]) -> object:
    return finished(inside())
