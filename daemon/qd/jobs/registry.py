"""The declared jobs by name. The worker looks up the name of a payload only here: a payload never causes an import."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from qd.arguments.injection import Known
from qd.arguments.signature import Signature
from qd.arguments.values import decode_value, encode_value
from qd.errors import ArgumentError, DeclarationError, ModelGone, NoProvider, UnknownParameters, WrongType
from qd.jobs.versions import upgraded, version_of
from qd.options.tables import JobOptions


class Declared:
    """A job function under its name. where: "file:line" of the declaration."""

    has_failed_hook = False  # whether it is a class that defines failed()

    def __init__(
        self, name: str, target: Callable[..., Any], signature: Signature, options: JobOptions, where: str
    ) -> None:
        self.name, self.target, self.signature, self.options, self.where = name, target, signature, options, where
        signature.title = f"job '{name}'"  # used in its error messages
        self.version = version_of(name, options)  # of its arguments
        self.is_async = inspect.iscoroutinefunction(target)
        self._needs = any(parameter.required for parameter in signature.parameters)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The `data` of a call. Raises ArgumentError naming the parameter."""
        if not (args or kwargs or self._needs):
            return b"{}"
        return self.signature.encode(self.signature.bind(args, kwargs))

    def upgraded(self, data: bytes, version: int) -> bytes:
        """`data` of an older version as that of the declared one. Raises WrongType."""
        return upgraded(self.name, self.options.upgrade or (), data, version)

    def encode_link(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, bytes]:
        """The name of its first parameter, and the `data` of a call without that. Raises ArgumentError."""
        if self.options.raw:
            raise ArgumentError(f"{self.signature.title} is raw, and takes the whole data: it cannot take a result")
        bound = self.signature.bind((None, *args), kwargs)
        first = next(iter(bound))
        del bound[first]
        return first, self.signature.encode(bound, partial=True)

    def is_link(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether all arguments but the first are given."""
        with suppress(ArgumentError):
            self.encode_link(args, kwargs)
            try:
                self.signature.bind(args, kwargs)
            except ArgumentError:
                return True
        return False

    def decode(self, data: bytes) -> Any:
        """The argument of `call` and `arguments`. Raises UnknownParameters or WrongType."""
        return self.signature.decode(data)

    def call(self, fields: Any) -> Callable[[], object]:
        """The call of its function; that of an async job returns a coroutine."""
        extras = self.signature.extras
        return partial(self.target, **fields) if extras is None else extras.prepared(self.target, fields)

    def arguments(self, fields: Any) -> dict[str, Any]:
        """By name, with the defaults."""
        return self.signature.completed(fields)

    def on_failed(self, data: Callable[[], bytes], error: BaseException) -> None:
        """Called once the job has failed permanently. Does nothing for a function. data: returns that of the declared
        version, or raises WrongType."""


class DeclaredClass(Declared):
    """A class job: its fields are the arguments, `handle` does the work, `failed` is called after a permanent failure."""

    def __init__(self, name: str, target: type[Any], *rest: Any) -> None:
        super().__init__(name, target, *rest)
        self.is_async = inspect.iscoroutinefunction(target.handle)

    def call(self, fields: Any) -> Callable[[], object]:
        extras = self.signature.extras
        handled = partial(handle, self.target)
        return partial(handled, **fields) if extras is None else extras.prepared(handled, fields)

    def on_failed(self, data: Callable[[], bytes], error: BaseException) -> None:
        """Call failed(error) on a new instance, if the class defines it. Raises what that raises.

        Does nothing if the data does not convert, which may be the failure itself.
        """
        if not self.has_failed_hook:
            return
        try:
            fields, extras = self.signature.decode(data()), self.signature.extras
        except (UnknownParameters, WrongType):
            return
        if extras is None:
            self.target(**fields).failed(error)
        else:
            with suppress(ModelGone, NoProvider):  # may be the failure itself
                extras.call(lambda **whole: self.target(**whole).failed(error), fields)


def handle(job: Callable[..., Any], /, **fields: Any) -> object:
    return job(**fields).handle()


class DeclaredRaw(Declared):
    """A function that takes the whole `data`, which may be any JSON value."""

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        (value,) = self.signature.bind(args, kwargs).values()
        return encode_value(value, f"the data of job '{self.name}'", as_it_is=True)

    def decode(self, data: bytes) -> Any:
        return decode_value(data)

    def call(self, fields: Any) -> Callable[[], object]:
        return partial(self.target, fields)

    def arguments(self, fields: Any) -> dict[str, Any]:
        """Its data if that is an object, else {}."""
        return dict(fields) if isinstance(fields, dict) else {}


NO_JOBS = "the app declares no jobs: are their modules named in imports = of [qd], or of QD in Django's settings?"


class Registry:
    """Every declared job of an app."""

    def __init__(self) -> None:
        self.known = Known()  # types that need a serializer or a provider
        self._declared: dict[str, Declared] = {}

    def add(self, declared: Declared) -> None:
        """Raises DeclarationError if the name is taken, or if JSON cannot carry the type of a parameter."""
        if not declared.options.raw:
            declared.signature.check()
        other = self._declared.setdefault(declared.name, declared)
        if other is not declared:
            places = f"at {other.where} and at {declared.where}"
            raise DeclarationError(f"two jobs are called '{declared.name}': {places}; rename one")

    def get(self, name: str) -> Declared | None:
        return self._declared.get(name)

    def __iter__(self) -> Iterator[Declared]:
        """In the order of their names."""
        return iter([self._declared[name] for name in sorted(self._declared)])

    def names(self) -> list[str]:
        return sorted(self._declared)

    def hint(self, name: str) -> str:
        """What to do about a name that no job has."""
        if near := ", ".join(f"'{other}'" for other in self.near(name)):
            return f"did you mean {near}?"
        return "`qd declared` lists them" if self._declared else NO_JOBS

    def near(self, name: str) -> list[str]:
        """At most three names similar to `name`, best match first: without its module, or misspelled."""
        import difflib  # loaded only for an error message

        last = name.rpartition(".")[2]
        same = [other for other in self.names() if other.rpartition(".")[2] == last]
        return list(dict.fromkeys([*same, *difflib.get_close_matches(name, self._declared, n=3)]))[:3]
