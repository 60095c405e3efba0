"""The parameters of a function: names, what is needed, and their types once they are asked for. signature.py makes a
Signature of them.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

from qd.errors import DeclarationError

ABSENT: Any = object()


class Parameter(NamedTuple):
    name: str
    required: bool
    positional: bool  # may be given by its place
    annotation: Any  # as written: maybe a text, of a type that does not exist yet
    scope: dict[str, Any]  # where that text is looked up
    default: Any = ABSENT
    factory: Callable[[], Any] | None = None  # of a class whose field makes its default anew

    def left_out(self) -> Any:
        """What it is if it was not given; ABSENT: nothing is known."""
        return self.default if self.factory is None else self.factory()


def title_of(target: Callable[..., object]) -> str:
    """How it is called in messages: "welcome()"."""
    name: str = getattr(target, "__qualname__", "") or repr(target)
    return f"{name.rpartition('<locals>.')[2]}()"


def parameters_of(function: Callable[..., object], skip: int = 0) -> tuple[list[Parameter], Parameter | None]:
    """Its parameters but the first `skip`, and its **kwargs. Raises DeclarationError for parameters that cannot be given by
    name."""
    scope: dict[str, Any] = getattr(inspect.unwrap(function), "__globals__", {})
    parameters: list[Parameter] = []
    rest = None
    for found in list(_inspected(function).parameters.values())[skip:]:
        if found.kind in (found.VAR_POSITIONAL, found.POSITIONAL_ONLY):
            star = "*" if found.kind is found.VAR_POSITIONAL else ""
            raise DeclarationError(
                f"{title_of(function)} cannot be a job: arguments travel by name, and its parameter "
                f"'{star}{found.name}' cannot be given by one"
            )
        required, positional = found.default is found.empty, found.kind is found.POSITIONAL_OR_KEYWORD
        default = ABSENT if required else found.default
        made = Parameter(found.name, required, positional, found.annotation, scope, default)
        if found.kind is found.VAR_KEYWORD:
            rest = made
        else:
            parameters.append(made)
    return parameters, rest


def _inspected(function: Callable[..., object]) -> inspect.Signature:
    if sys.version_info >= (3, 14):  # there annotations are evaluated when asked for: too early for what stands below
        import annotationlib

        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)


def type_of(parameter: Parameter) -> Any:
    """Its type, looked up now. Raises whatever looking it up raises, NameError first of all."""
    if parameter.annotation is inspect.Parameter.empty:
        return Any

    def holder() -> None: ...

    holder.__annotations__ = {"type": parameter.annotation}
    hint = typing.get_type_hints(holder, globalns=parameter.scope, include_extras=True)["type"]
    if typing.get_origin(hint) is typing.Unpack or hint is object:  # **kwargs of a TypedDict: the checker's business
        return Any
    return Optional[hint] if parameter.default is None else hint  # noqa: UP045 - `hint | None` is not for all of them
