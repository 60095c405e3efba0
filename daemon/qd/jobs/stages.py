"""The shape of middleware: what may stand around a job, found out where it is declared."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any, NoReturn

from qd.errors import DeclarationError
from qd.jobs.registry import Declared

SHAPE = "write def middleware(job, call_next): return call_next()"


def is_async(stage: object) -> bool:
    return inspect.iscoroutinefunction(stage) or inspect.iscoroutinefunction(getattr(stage, "__call__", None))  # noqa: B004


def is_generator(stage: object) -> bool:
    called = getattr(stage, "__call__", None)  # noqa: B004
    return any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in (stage, called))


def check_stages(declared: Declared) -> None:
    """The middleware of one job, outermost first; each that has a `check(declared)` is asked as well. Raises
    DeclarationError naming the job and the one that cannot be."""
    before: object = None
    job, stages = declared.name, declared.options.middleware or ()
    for stage in stages:
        check_stage(job, stage, runs_async=declared.is_async)
        if hasattr(stage, "check"):
            stage.check(declared)
        if before is not None and not is_async(stage):
            fact = f"stands inside {name_of(before)}, which is async: sync middleware stands around the async one"
            refuse(job, stage, fact, "put it before")
        before = stage if is_async(stage) else before


def check_stage(job: str, stage: object, *, runs_async: bool) -> None:
    if isinstance(stage, type):
        refuse(job, stage, "is a class", f"make one of it, {stage.__name__}(...)")
    if not callable(stage):
        refuse(job, stage, "cannot be called", SHAPE)
    if is_generator(stage):
        refuse(job, stage, "is a generator, whose body would never run", "return call_next() instead of yield")
    if not takes_two(stage):
        refuse(job, stage, "does not take (job, call_next)", SHAPE)
    if is_async(stage) and not runs_async:
        refuse(job, stage, "is async, which can stand around one async job only", "make it a def")


def takes_two(stage: object) -> bool:
    try:
        inspect.signature(stage).bind(None, None)  # type: ignore[arg-type]
    except TypeError:
        return False
    except ValueError:
        pass  # a callable of C that tells nothing of itself
    return True


def name_of(stage: object) -> str:
    return getattr(stage, "__qualname__", None) or repr(stage)


def title_of(stage: Any) -> str:
    """For lists: `shop.jobs.timed`, or what an instance says of itself."""
    if isinstance(stage, partial):
        return title_of(stage.func)
    if not hasattr(stage, "__qualname__"):
        written: object = type(stage).__repr__
        if written is not object.__repr__:
            return repr(stage)
        stage = type(stage)
    return f"{stage.__module__}.{stage.__qualname__}"


def refuse(job: str, stage: object, fact: str, way_out: str) -> NoReturn:
    raise DeclarationError(f"middleware {name_of(stage)} of {job} {fact}; {way_out}")
