"""The parameters of a job: those of a function, or the fields of a class whose objects are sent (class jobs, commands and
events: dataclasses, msgspec structs, attrs classes). signature.py makes a Signature of them.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import msgspec

from qd.errors import DeclarationError

ABSENT: Any = object()


class Parameter(NamedTuple):
    name: str
    required: bool
    positional: bool  # may be passed by position
    annotation: Any  # as written: possibly a string that names a type defined later
    scope: dict[str, Any]  # the namespace in which such a string is evaluated
    default: Any = ABSENT
    factory: Callable[[], Any] | None = None  # makes the default of a field

    def left_out(self) -> Any:
        """Its value if it was not passed; ABSENT if unknown."""
        return self.default if self.factory is None else self.factory()


def title_of(target: Callable[..., object]) -> str:
    """Its name in messages: "welcome()"."""
    name: str = getattr(target, "__qualname__", "") or repr(target)
    return f"{name.rpartition('<locals>.')[2]}()"


def named(thing: object) -> str:
    return getattr(thing, "__qualname__", None) or repr(thing)


def check_callable(title: str, function: Any, args: Sequence[object], shape: str) -> None:
    """Raises DeclarationError if `function` cannot be called with `args`, or is async and would never run. shape: the
    arguments as the message names them."""
    if not callable(function):
        raise DeclarationError(f"{title} cannot be called: pass a function that takes {shape}")
    if any(is_async(each) for each in (function, type(function).__call__)):
        raise DeclarationError(f"{title} is async and would never run: make it a def")
    try:
        inspect.signature(function).bind(*args)
    except TypeError as error:
        raise DeclarationError(f"{title} cannot be called with {shape}: {error}") from None
    except ValueError:
        pass  # a builtin without a signature


def is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def parameters_of(function: Callable[..., object], skip: int = 0) -> tuple[list[Parameter], Parameter | None]:
    """The parameters of a function without the first `skip`, and its **kwargs. Raises DeclarationError for parameters that
    cannot be passed by name."""
    scope: dict[str, Any] = getattr(inspect.unwrap(function), "__globals__", {})
    parameters: list[Parameter] = []
    rest = None
    for found in list(_inspected(function).parameters.values())[skip:]:
        if found.kind in (found.VAR_POSITIONAL, found.POSITIONAL_ONLY):
            star = "*" if found.kind is found.VAR_POSITIONAL else ""
            why = f"arguments are sent by name, and its parameter '{star}{found.name}' cannot be passed by name"
            raise DeclarationError(f"{title_of(function)} cannot be a job: {why}")
        required, positional = found.default is found.empty, found.kind is found.POSITIONAL_OR_KEYWORD
        default = ABSENT if required else found.default
        made = Parameter(found.name, required, positional, found.annotation, scope, default)
        if found.kind is found.VAR_KEYWORD:
            rest = made
        else:
            parameters.append(made)
    return parameters, rest


def _inspected(function: Callable[..., object]) -> inspect.Signature:
    if sys.version_info >= (3, 14):  # evaluates annotations: too early for types that are defined below
        import annotationlib

        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)


def type_of(parameter: Parameter) -> Any:
    """Its type, evaluated now. Raises whatever the evaluation raises, most often NameError."""
    if parameter.annotation is inspect.Parameter.empty:
        return Any

    def holder() -> None: ...

    holder.__annotations__ = {"type": parameter.annotation}
    hint = typing.get_type_hints(holder, globalns=parameter.scope, include_extras=True)["type"]
    if typing.get_origin(hint) is typing.Unpack or hint is object:  # **kwargs of a TypedDict: for type checkers
        return Any
    return Optional[hint] if parameter.default is None else hint  # noqa: UP045 - some hints have no `|`


def fields_of(cls: type) -> list[Parameter]:
    """The fields of a dataclass. Raises DeclarationError for an InitVar."""
    made = []
    for name, field in cls.__dataclass_fields__.items():  # type: ignore[attr-defined]
        if field._field_type is dataclasses._FIELD_INITVAR:  # type: ignore[attr-defined]
            why = "is an InitVar, whose value is not kept and cannot be sent: make it a field"
            raise DeclarationError(f"'{name}' of {cls.__qualname__} {why}")
    for field in dataclasses.fields(cls):
        if field.init:
            default = ABSENT if field.default is dataclasses.MISSING else field.default
            factory = None if field.default_factory is dataclasses.MISSING else field.default_factory
            required, scope = default is ABSENT and factory is None, _scope(cls, field.name)
            made.append(Parameter(field.name, required, not field.kw_only, field.type, scope, default, factory))
    return made


def object_fields(cls: type) -> dict[str, Parameter]:
    """The fields of a class: attribute -> the parameter that recreates it. Raises DeclarationError for a class without
    known fields."""
    if isinstance(cls, type) and issubclass(cls, msgspec.Struct):
        return {field.name: field for field in _of_struct(cls)}
    if isinstance(cls, type) and dataclasses.is_dataclass(cls):
        return {field.name: field for field in fields_of(cls)}
    if hasattr(cls, "__attrs_attrs__"):
        return _of_attrs(cls)
    way = "make it a dataclass, a msgspec.Struct or an attrs class, whose fields are the arguments"
    raise DeclarationError(f"{named(cls)} cannot be sent: {way}")


def _of_struct(cls: Any) -> list[Parameter]:
    names, defaults = cls.__struct_fields__, cls.__struct_defaults__
    padded = (msgspec.NODEFAULT,) * (len(names) - len(defaults)) + tuple(defaults)
    made = []
    for name, default in zip(names, padded, strict=True):
        required = default is msgspec.NODEFAULT
        factory = default.factory if type(default).__name__ == "Factory" else None
        default = ABSENT if required or factory is not None else default
        hint = next((found[name] for base in cls.__mro__ if name in (found := _annotations(base))), Any)
        made.append(Parameter(name, required, False, hint, _scope(cls, name), default, factory))
    return made


def _of_attrs(cls: Any) -> dict[str, Parameter]:
    made = {}
    for field in cls.__attrs_attrs__:
        required = type(field.default).__name__ in ("_Nothing", "NothingType")
        default = ABSENT if required or hasattr(field.default, "factory") else field.default
        if field.init:
            needs_object = getattr(field.default, "takes_self", False)
            scope, factory = _scope(cls, field.name), None if needs_object else getattr(field.default, "factory", None)
            made[field.name] = Parameter(field.alias, required, False, field.type, scope, default, factory)
    return made


def _scope(cls: type, name: str) -> dict[str, Any]:
    """The namespace of the module that declares the field, which may be inherited."""
    owner = next((base for base in cls.__mro__ if name in _annotations(base)), cls)
    return vars(sys.modules[owner.__module__])


def _annotations(base: type) -> Mapping[str, Any]:
    """Without inherited ones."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(base, format=annotationlib.Format.FORWARDREF)
    return inspect.get_annotations(base)
