"""`@app.job`: check a function or class, name it, register it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Never, ParamSpec, TypeVar, Unpack, overload

from qd.arguments.injection import Known
from qd.arguments.parameters import named
from qd.arguments.signature import signature_of, signature_of_fields
from qd.errors import DeclarationError
from qd.jobs.job import Job, JobFunction
from qd.jobs.pipeline import check_stages
from qd.jobs.plan import Options, Plan, Sender
from qd.jobs.registry import Declared, DeclaredClass, DeclaredRaw, Registry
from qd.options.tables import JobOptions

P = ParamSpec("P")
T = TypeVar("T")
J = TypeVar("J", bound=Job[Any])


class Declare:
    """`@app.job`, and what `@app.job("name", tries=5)` returns."""

    def __init__(self, registry: Registry, sender: Sender, name: str | None = None, **options: Any) -> None:
        self._registry, self._sender, self._name, self._options = registry, sender, name, options

    @overload
    def __call__(self, name: str = ..., /, **options: Unpack[Options]) -> Declare: ...
    @overload  # a class is also callable: the overlap is meant
    def __call__(self, target: type[J], /) -> type[J]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: Callable[P, Coroutine[Any, Any, T]], /) -> JobFunction[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(self, target: Callable[P, T], /) -> JobFunction[P, T, T]: ...

    def __call__(self, target: Any = None, /, **options: Any) -> Any:
        if target is None or isinstance(target, str):
            name = self._name if target is None else target
            return Declare(self._registry, self._sender, name, **{**self._options, **options})
        if options:
            refuse(target, "takes no options in the same call", "write @app.job(...) above it")
        frame = sys._getframe(1)
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        is_class = isinstance(target, type)
        (check_class if is_class else check_function)(target)
        name = job_name(target, self._name)
        given = JobOptions.read(self._options, name)
        declared = (declared_class if is_class else declared_function)(target, name, given, where, self._registry.known)
        check_stages(declared)
        self._registry.add(declared)
        plan = Plan(declared, given)
        if not is_class:
            return JobFunction(self._sender, plan)
        target._declared_as = (self._sender, plan)
        return target


def declared_function(target: Any, name: str, options: JobOptions, where: str, known: Known) -> Declared:
    signature = signature_of(target, known)
    if options.raw and (len(signature.parameters) != 1 or signature.rest or not signature.parameters[0].positional):
        refuse(target, "is raw and must take exactly one argument", f"write def {target.__name__}(data)")
    return (DeclaredRaw if options.raw else Declared)(name, target, signature, options, where)


def declared_class(target: type[Any], name: str, options: JobOptions, where: str, known: Known) -> Declared:
    if options.raw:
        refuse(target, "cannot be raw", "take the whole data as the one argument of a function with raw=True")
    declared = DeclaredClass(name, target, signature_of_fields(target, known), options, where)
    declared.has_failed_hook = target.failed is not Job.failed
    return declared


NAME_IT = 'name it, as in @app.job("shop.mail")'


def job_name(target: Any, name: str | None) -> str:
    """The given name, or module.function. Raises DeclarationError."""
    if name is not None:
        if not isinstance(name, str) or not name.strip():
            refuse(target, "has an empty name", NAME_IT)
        return name
    title = getattr(target, "__qualname__", None)
    if title is None or "<lambda>" in title:
        refuse(target, "has no name a worker could find", "write a function with def, or name the job")
    if target.__module__ == "__main__":
        refuse(target, "is in __main__, a module that workers import under another name", NAME_IT)
    return f"{target.__module__}.{title}".replace("<locals>.", "")


def refuse(target: Any, fact: str, fix: str) -> Never:
    raise DeclarationError(f"{named(target)} cannot be a job: it {fact}; {fix}")


def check_function(target: Any) -> None:
    as_function = "write a function, or a class derived from qd.Job"
    if isinstance(target, JobFunction):
        refuse(target, "is already a job", "declare it once, or declare the plain function under another name")
    if inspect.ismethod(target) or isinstance(target, staticmethod | classmethod):
        refuse(target, "is a method", as_function)
    if not inspect.isfunction(target):
        refuse(target, f"is not a function but {type(target).__name__}", "write a function with def")
    if target.__name__ == "<lambda>":
        refuse(target, "is a lambda, which has no name a worker could find", "write a function with def")
    if "." in target.__qualname__.rpartition("<locals>.")[2]:
        refuse(target, "is a method", as_function)
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        refuse(target, "is a generator, whose body would never run", "return instead of yield")


def check_class(target: type[Any]) -> None:
    if not issubclass(target, Job) or target is Job:
        refuse(target, "is not derived from qd.Job", f"write class {target.__name__}(Job[None])")
    if target.handle is Job.handle:
        refuse(target, "has no handle()", "define it: it does the work")
    if target.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        refuse(target, "is a frozen dataclass", "remove @dataclass(frozen=True): qd.Job makes the class a dataclass")
    for name in ("send", "failed"):
        if inspect.iscoroutinefunction(getattr(target, name)):
            refuse(target, f"has an async {name}(), which would never run", f"make {name}() a def")
