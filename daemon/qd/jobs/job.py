"""What a producer uses: `@app.job` (Declare), a declared job (JobFunction, Job) and a job with its arguments (Call).

    welcome.dispatch("a@b.c")                      straight to the sender
    welcome.using(delay=60).dispatch("a@b.c")      a copy with another plan
    welcome.bind("a@b.c")                          a Call, for app.dispatch(...) and others
    welcome.bind("a@b.c").call(timeout=5)          dispatch and wait for the result
    convert.link("webm")                           a Link: all arguments but the first, for app.chain(..., pass_results=True)

Arguments are encoded where they are given, so that a wrong value raises there.
"""

from __future__ import annotations

import copy
import inspect
import sys
import warnings
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from functools import update_wrapper
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Final,
    Generic,
    Never,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    cast,
    dataclass_transform,
    overload,
)

from qd.arguments.parameters import ABSENT, named
from qd.arguments.signature import Signature, signature_of, signature_of_fields
from qd.errors import ArgumentError, DeclarationError, NotInJob
from qd.jobs.context import current_job
from qd.jobs.pipeline import check_stages
from qd.jobs.plan import Duration, Handle, Options, Plan, Sender, SendOptions, waiting_time
from qd.jobs.registry import Declared, DeclaredClass, DeclaredRaw, Registry
from qd.options.tables import JobOptions

P = ParamSpec("P")
Rest = ParamSpec("Rest")
A = TypeVar("A")
C = TypeVar("C")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
J = TypeVar("J", bound="Job[Any]")
KEPT = 300.0  # seconds for which the result of call() is kept, if the job itself keeps none
COMPUTED = ("display_name", "tags", "tries", "backoff")


class NeverSent(UserWarning):
    """A bind() or using() was dropped, and nothing was sent."""


_warned = dict[str, dict[Any, Any]]()  # file -> registry of warnings: each line warns once


def caller() -> tuple[str, int]:
    """File and line of the code that called the caller."""
    frame = sys._getframe(2)
    return frame.f_code.co_filename, frame.f_lineno


class Unsent:
    """Warns if it is dropped before it was sent."""

    _origin: tuple[str, int] | None = None  # file and line that made it; None: it was sent, or need not be

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._origin is not None and not finalizing():
            file, line = self._origin
            text = f"{self!r} was never sent: call .dispatch() on it"
            warnings.warn_explicit(text, NeverSent, file, line, registry=_warned.setdefault(file, {}))


class Call(Unsent, Generic[T_co]):
    """A job with its arguments, not sent yet."""

    def __init__(self, sender: Sender, plan: Plan, data: bytes, origin: tuple[str, int] | None = None) -> None:
        self._sender, self._plan, self._data, self._origin = sender, plan, data, origin

    def _to_send(self) -> tuple[Sender, Plan, bytes]:
        """All that sending needs. From now on it counts as sent."""
        self._origin = None
        return self._sender, self._plan, self._data

    def using(self, **options: Unpack[SendOptions]) -> Self:
        """A copy of the call with these options: `call.using(delay=60, queue="mail")`. Raises DeclarationError."""
        plan = self._to_send()[1].using(options)
        other = copy.copy(self)
        other._plan, other._origin = plan, caller()
        return other

    def dispatch(self) -> Handle[T_co]:
        """Send it and return its handle. Raises ConfigError, ConnectionLost, ServerRefused."""
        sender, plan, data = self._to_send()
        return Handle(sender.send(plan, data), sender, plan)

    async def adispatch(self) -> Handle[T_co]:
        """Send it without blocking the event loop."""
        sender, plan, data = self._to_send()
        return Handle(await sender.asend(plan, data), sender, plan)

    def call(self, *, timeout: Duration) -> T_co:
        """Send it, wait until it has ended, and return its result: `count.bind("report.pdf").call(timeout=5)`.

        Args:
            timeout: Seconds to wait at most, or a timedelta. Without result_ttl the result is kept for 5 minutes.

        Raises:
            ResultTimeout: It did not end in time and keeps running.
            JobFailedError: It has failed, or was cancelled.
        """
        sender, plan, data, seconds = to_wait_for(*self._to_send(), timeout)
        return Handle[T_co](sender.send(plan, data), sender, plan).result(seconds)

    async def acall(self, *, timeout: Duration) -> T_co:
        """As call(), without blocking the event loop. If the task is cancelled, the job keeps running."""
        sender, plan, data, seconds = to_wait_for(*self._to_send(), timeout)
        return await Handle[T_co](await sender.asend(plan, data), sender, plan).aresult(seconds)

    def run(self) -> T_co:
        """Run it in this process, as a worker would: conversion, middleware, events. Nothing is sent or retried."""
        sender, plan, data = self._to_send()
        return sender.run(plan, data)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<call of job {self._plan.declared.name}>"


JOINED = "is part of the open transaction, and exists once it is committed"
_waits_in_jobs = set[str]()  # names of the jobs that have been warned about


def to_wait_for(sender: Sender, plan: Plan, data: bytes, timeout: Duration) -> tuple[Sender, Plan, bytes, float | None]:
    """Its arguments, the plan with a result_ttl and the timeout in seconds. Warns in a worker. Raises ArgumentError."""
    name = plan.declared.name
    if plan.after_commit or plan.custom_send is not None or sender.in_transaction(plan):
        why = "has after_commit=True" if plan.after_commit else "has its own send()" if plan.custom_send else JOINED
        raise ArgumentError(f"job '{name}' {why}: call() cannot wait for it; dispatch() it, and query its handle later")
    with suppress(NotInJob):
        job = current_job()
        if job.mark and job.name not in _waits_in_jobs:  # in a worker
            _waits_in_jobs.add(job.name)
            import logging  # loaded only for this warning

            text = "job '%s' waits for job '%s': when all workers wait, none is left to run it; use a chain, or other queues"
            logging.getLogger("qd.results").warning(text, job.name, name)
    plan = plan if plan.options.result_ttl else plan.using({"result_ttl": KEPT})
    return sender, plan, data, waiting_time(timeout, "call()")


class Link(Unsent, Generic[A, T_co]):
    """A job of a chain with all arguments but the first (takes), which is the result of the job before it."""

    def __init__(self, plan: Plan, takes: str, data: bytes, origin: tuple[str, int] | None) -> None:
        self._plan, self._takes, self._data, self._origin = plan, takes, data, origin

    def __repr__(self) -> str:
        return f"<link of job {self._plan.declared.name}>"


OF_CELERY = {
    "delay": "dispatch(...)",
    "apply_async": "dispatch(...), with options using(delay=60).dispatch(...)",
    "s": "bind(...), or link(...) behind another job of a chain",
    "si": "bind(...)",
}


class JobFunction(Unsent, Generic[P, C, T]):
    """What @app.job returns for a function. Calling it calls the function."""

    def __init__(self, sender: Sender, plan: Plan) -> None:
        self._sender, self._plan = sender, plan
        self._function: Callable[..., Any] = plan.declared.target
        self.name: Final[str] = plan.declared.name
        update_wrapper(self, plan.declared.target)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        return self._function(*args, **kwargs)  # type: ignore[no-any-return]

    def using(self, **options: Unpack[SendOptions]) -> Self:
        """A copy of the job with these options: `welcome.using(delay=60, queue="mail").dispatch("ada")`.

        Raises DeclarationError.
        """
        self._origin = None
        other = copy.copy(self)
        other._plan, other._origin = self._plan.using(options), caller()
        return other

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Call[T]:
        """The job with its arguments, for a chain, a batch, a schedule, or to send later. Raises ArgumentError."""
        self._origin = None
        try:
            data = self._plan.declared.encode(args, kwargs)
        except ArgumentError as error:
            if not self._plan.declared.is_link(args, kwargs):
                raise
            way = "behind another job of a chain use link(...), with pass_results=True"
            raise ArgumentError(f"{error} ({way})") from None
        return Call(self._sender, self._plan, data, caller())

    def link(self: Callable[Concatenate[A, Rest], Any], *args: Rest.args, **kwargs: Rest.kwargs) -> Link[A, T]:
        """The job with all arguments but the first, which is the result of the job before it:
        `app.chain(fetch.bind(url), convert.link("webm"), pass_results=True)`. Raises ArgumentError."""
        job = cast(JobFunction[..., Any, T], self)  # mypy infers A of a Callable only
        job._origin = None
        return Link(job._plan, *job._plan.declared.encode_link(args, kwargs), caller())

    def handle(self, id: str) -> Handle[T]:
        """The handle of a call that was sent earlier; to another queue: `job.using(queue=...).handle(id)`."""
        self._origin = None
        return Handle(id, self._sender, self._sender.place(self._plan))

    def dispatch(self, *args: P.args, **kwargs: P.kwargs) -> Handle[T]:
        """Send the job: `welcome.dispatch("ada@example.org")`.

        Returns:
            Its handle, for status, result, progress and cancellation.

        Raises:
            ArgumentError: The arguments do not match the signature, or JSON cannot represent them. Nothing was sent.
            ConfigError: The configuration is invalid. Nothing was sent.
            ConnectionLost: The server is unreachable. Unless it is Unreachable, the job may have been sent.
            ServerRefused: The server answered with an error. Nothing was sent.
        """
        self._origin = None
        plan = self._plan
        return Handle(self._sender.send(plan, plan.declared.encode(args, kwargs)), self._sender, plan)

    async def adispatch(self, *args: P.args, **kwargs: P.kwargs) -> Handle[T]:
        """As dispatch(), without blocking the event loop. If the task is cancelled, the job may have been sent."""
        return await self.bind(*args, **kwargs).adispatch()

    def run(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run it in this process, as a worker would: conversion, middleware, events. Nothing is sent or retried."""
        return self.bind(*args, **kwargs).run()

    if not TYPE_CHECKING:  # type checkers report unknown attributes by themselves

        def __getattr__(self, name: str) -> Any:
            if (ours := OF_CELERY.get(name)) is not None:
                raise AttributeError(f"job '{self.name}' has no '{name}': use {ours}", name=name, obj=self)
            return object.__getattribute__(self, name)  # raises

    def __repr__(self) -> str:
        return f"<job {self.name}>"


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class Job(Call[T_co]):
    """A class job: its annotated fields are the arguments, an instance is a Call.

    Example:
        @app.job("mail.welcome")
        class Welcome(Job[None]):
            to: str

            def handle(self) -> None: ...

        Welcome(to="ada@example.org").dispatch()
    """

    _declared_as: ClassVar[tuple[Sender, Plan] | None] = None
    _defaults: ClassVar[tuple[tuple[str, Any], ...]] = ()
    _computed: ClassVar[tuple[str, ...]] = ()  # options that the class computes from its fields

    if TYPE_CHECKING:  # mypy generates none for a class without fields

        def __init__(self) -> None: ...

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclass(kw_only=True)(cls)
        own = [each for each in fields(cls) if each.init]  # type: ignore[arg-type]
        if taken := [each.name for each in own if hasattr(Job, each.name) or each.name in ("_plan", "_sender")]:
            raise DeclarationError(f"field '{taken[0]}' of {cls.__qualname__} hides an attribute of qd.Job: rename it")
        cls._declared_as = None  # a subclass of a declared job is not that job
        cls._defaults = tuple([(each.name, each.default) for each in own])
        names = [each.name for each in own]
        cls._computed = tuple([name for name in COMPUTED if name not in names and hasattr(cls, name)])

    def handle(self) -> T_co | Coroutine[Any, Any, T_co]:
        """The work. May be async."""
        raise NotImplementedError

    def failed(self, error: BaseException) -> None:
        """Called in a worker, on a new instance, once the job has failed permanently."""

    def send(self, connection: Any) -> object:
        """A class that defines this sends its jobs itself. connection: the qd.Queue that the job would go to."""
        raise NotImplementedError

    def _to_send(self) -> tuple[Sender, Plan, bytes]:
        self._origin = None
        if self._declared_as is None:
            raise DeclarationError(f"{type(self).__qualname__} is not a job of any app yet: put @app.job(...) above it")
        sender, plan = self._declared_as
        given = {name: value for name, default in self._defaults if not same(value := getattr(self, name), default)}
        data, mine = plan.declared.encode((), given), self.__dict__.get("_plan", plan)
        if self._computed:
            computed = {}
            for name in self._computed:
                if getattr(mine.options, name) is getattr(plan.options, name):  # not set by using()
                    value = getattr(self, name)
                    computed[name] = literal(value() if callable(value) else value)
            try:
                mine = mine.using(computed)
            except DeclarationError as error:
                raise DeclarationError(f"{type(self).__qualname__.rpartition('<locals>.')[2]}: {error}") from None
        if type(self).send is not Job.send:
            mine = mine.using({})
            mine.custom_send = self.send
        return sender, mine, data


def literal(value: object) -> object:
    """Escape the braces of a computed string, which is not a pattern."""
    return value.replace("{", "{{").replace("}", "}}") if isinstance(value, str) else value


def plan_of(job: object) -> Plan | None:
    """The plan of a declared job, which counts as used from now on; None for anything else."""
    if isinstance(job, JobFunction):
        job._origin = None
        return job._plan
    declared_as = job._declared_as if isinstance(job, type) and issubclass(job, Job) else None
    return declared_as and declared_as[1]


def declared_plan(job: object) -> Plan:
    """The same. Raises ArgumentError for anything else."""
    plan = plan_of(job)
    if plan is None:
        raise ArgumentError(f"{job!r} is not a job: pass the function or class that @app.job decorated")
    return plan


AnyJob = JobFunction[..., Any, T] | type[Job[T]]


def same(value: object, default: object) -> bool:
    """Whether the field has its default value. It is then left out of the payload, and the worker's default applies."""
    if default is MISSING or default is ABSENT:
        return False
    return value is default or (type(value) is type(default) and value == default)


# -- @app.job: check a function or class, name it, register it


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
        is_class, known = isinstance(target, type), self._registry.known
        (check_class if is_class else check_function)(target)
        name = job_name(target, self._name)
        given = JobOptions.read(self._options, name)
        signature = (signature_of_fields if is_class else signature_of)(target, known)
        kind = DeclaredClass if is_class else DeclaredRaw if given.raw else Declared
        if given.raw:
            check_raw(target, signature)
        declared = kind(name, target, signature, given, where)
        declared.has_failed_hook = is_class and target.failed is not Job.failed
        check_stages(declared)
        self._registry.add(declared)
        plan = Plan(declared, given)
        if not is_class:
            return JobFunction(self._sender, plan)
        target._declared_as = (self._sender, plan)
        return target


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


def check_raw(target: Any, signature: Signature) -> None:
    if isinstance(target, type):
        refuse(target, "cannot be raw", "take the whole data as the one argument of a function with raw=True")
    if len(signature.parameters) != 1 or signature.rest or not signature.parameters[0].positional:
        refuse(target, "is raw and must take exactly one argument", f"write def {target.__name__}(data)")
