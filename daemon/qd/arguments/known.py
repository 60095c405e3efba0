"""What an app knows of types beyond JSON: its providers and its serializers, and what of a job's parameters they concern.

A job that neither concerns has no Extras, and pays for nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from qd.arguments.carriers import Carrying, Serializer, carrying
from qd.arguments.providers import Opening, Provider, named
from qd.errors import DeclarationError, ModelGone, NoProvider, WrongType


class Forgets(Protocol):
    def forget(self) -> None: ...


class Known:
    """The providers and serializers of an app. Signatures that were read before one is added are read again."""

    def __init__(self) -> None:
        self.providers: dict[Any, Provider] = {}
        self.serializers: list[Serializer] = []
        self._readers: list[Forgets] = []

    def __bool__(self) -> bool:
        return bool(self.providers or self.serializers)

    def read_by(self, reader: Forgets) -> None:
        self._readers.append(reader)

    def provide(self, kind: Any, make: Callable[[], Any]) -> None:
        self.providers[kind] = Provider(kind, make)
        self._changed()

    def add_serializer(self, serializer: Serializer) -> None:
        missing = [
            name for name in ("recognizes", "name", "pack", "load") if not callable(getattr(serializer, name, None))
        ]
        if missing:
            raise DeclarationError(f"{serializer!r} is no serializer: it has no {missing[0]}() (see qd.Serializer)")
        self.serializers.append(serializer)
        self._changed()

    def _changed(self) -> None:
        for reader in self._readers:
            reader.forget()

    def provides(self, hint: Any) -> bool:
        try:
            return hint in self.providers
        except TypeError:  # unhashable
            return False

    def carrying(self, hint: Any) -> Carrying | None:
        return carrying(hint, self.serializers) if self.serializers else None


class Extras:
    """Of one job's parameters: those that are filled in, with their types, and those of which parts are loaded."""

    def __init__(self, title: str, known: Known, filled: Mapping[str, Any], carried: Mapping[str, Carrying]) -> None:
        self._title = title
        self._known = known
        self.filled = filled
        self.carried = carried

    def packed(self, name: str, value: object) -> object:
        """As it travels. Raises ValueError."""
        return self.carried[name].packed(value) if name in self.carried else value

    def check_provided(self) -> None:
        """Raises NoProvider."""
        for name, kind in self.filled.items():
            if not self._known.provides(kind):
                raise NoProvider(
                    f"{self._title}: nothing provides its parameter '{name}': call app.provide({named(kind)}, ...) in a "
                    "module that the worker imports"
                )

    def check(self, fields: Mapping[str, object]) -> None:
        """Raises WrongType: an object of another model."""
        for name, carried in self.carried.items():
            try:
                carried.check(fields.get(name))
            except WrongType as error:
                raise WrongType(f"{self._title}: argument '{name}' is of the wrong type: {error}") from None

    def prepared(self, target: Callable[..., Any], fields: Mapping[str, object]) -> Callable[[], object]:
        """Raises NoProvider."""
        self.check_provided()
        return partial(self.call, target, fields)

    def call(self, target: Callable[..., Any], fields: Mapping[str, object]) -> object:
        """Fill in and load what is missing, call, close. What is async is closed when it has run."""
        opening = Opening(self._known.providers)
        try:
            result = target(**self._completed(fields, opening))
        except BaseException as error:
            opening.close(error)
            raise
        if inspect.iscoroutine(result):
            return closed_after(result, opening)
        opening.close(None)
        return result

    def _completed(self, fields: Mapping[str, object], opening: Opening) -> dict[str, object]:
        whole = {name: opening.given(kind) for name, kind in self.filled.items()}
        for name, value in fields.items():
            carried = self.carried.get(name)
            try:
                whole[name] = value if carried is None else carried.loaded(value, opening.given)
            except ModelGone as error:
                raise ModelGone(f"{self._title}: argument '{name}': {error}") from None
        return whole


async def closed_after(coroutine: Any, opening: Opening) -> object:
    try:
        result: object = await coroutine
    except BaseException as error:
        opening.close(error)
        raise
    opening.close(None)
    return result
