"""Arguments that do not travel themselves: rows of a database go as model and key, and are loaded on the worker.

    Order(id=42, ...)  ->  {"model": "shop.Order", "key": 42}  ->  Order(id=42, ...), as it is by then

A Serializer handles one family of types (the models of Django, the mapped classes of SQLAlchemy). contrib/ has them,
app.serializer adds one. Signature looks for such types in its hints: a model, a union, a list, a tuple or a dict of models.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Annotated, Any, Protocol, TypeVar, Union, get_args, get_origin

import msgspec

from qd.errors import ModelGone, WrongType

T = TypeVar("T")
Key = int | str | list[int | str]
_HOLD = (list, tuple, dict, Sequence, Mapping)  # what may hold them


class Provided(Protocol):
    """Gives what the app provides for a type, the same one to all parameters of a call: given(Session)."""

    def __call__(self, kind: type[T], /) -> T: ...


class Serializer(Protocol):
    """Converts the objects of a family of types to a model and a key, and back."""

    def recognizes(self, kind: type) -> bool:
        """Whether objects of this type are of the family."""

    def name(self, kind: type) -> str:
        """What the type is called in a payload: "shop.Order"."""

    def pack(self, thing: Any) -> Any:
        """The key of an object, as int, text, UUID, or a list of them; None: it has none yet, and cannot be sent."""

    def load(self, kind: type, key: Key, given: Provided) -> object | None:
        """The object, looked up now; None: it is gone. key: as JSON gave it back, a UUID as text."""


class Serialized(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object in a payload: its model and its key."""

    model: str
    key: Key


class Carrying:
    """What of one parameter is carried. wire: its type on the way. kinds: by their names."""

    def __init__(self, serializers: Sequence[Serializer]) -> None:
        self._serializers = serializers
        self._kinds: dict[str, tuple[Serializer, type]] = {}
        self.wire: Any = None
        self._in_dict = False  # then an object of JSON may be meant as well

    def packed(self, value: Any) -> Any:
        """With keys in place of objects. Raises ValueError for one that has none."""
        if isinstance(value, list | tuple):
            return [self.packed(part) for part in value]
        if isinstance(value, dict):
            return {name: self.packed(part) for name, part in value.items()}
        for (
            base
        ) in value.__class__.__mro__:  # what it is goes before what it derives from; a proxy says what it stands for
            for name, (serializer, kind) in self._kinds.items():
                if kind is base:
                    return self._keyed(name, serializer.pack(value))
        return value

    def _keyed(self, name: str, key: object) -> object:
        if key is None:
            raise ValueError(f"this {name} has no key yet (save it before it is sent)")
        return {"model": name, "key": key}

    def told(self, text: str, arrived: bool) -> str:
        """What is wrong with a value, with the model in place of its form on the way, which is all that msgspec knows."""
        if self._in_dict:
            return text
        names = " or ".join(self._kinds)
        form = f'{{"model":"{next(iter(self._kinds))}","key":...}}' if arrived else "an object of it"
        return text.replace("expected object", f"expected {names} ({form})", 1)

    def check(self, value: Any) -> None:
        """Raises WrongType: it is an object of another model."""

        def known(carried: Serialized) -> None:
            if carried.model not in self._kinds:
                raise WrongType(f"a {carried.model} was sent, a {' or a '.join(self._kinds)} is wanted")

        walk(value, known)

    def loaded(self, value: Any, given: Provided) -> Any:
        """With objects in place of keys. Raises ModelGone, and whatever loading raises."""

        def load(carried: Serialized) -> object:
            serializer, kind = self._kinds[carried.model]
            if (found := serializer.load(kind, carried.key, given)) is None:
                raise ModelGone(f"{carried.model} {carried.key} is gone")
            return found

        return walk(value, load)

    def replaced(self, hint: Any) -> Any:
        """The hint with Serialized for the types of a family."""
        if isinstance(hint, type) and get_origin(hint) is None:
            serializer = next((serializer for serializer in self._serializers if serializer.recognizes(hint)), None)
            if serializer is None:
                return hint
            self._kinds[serializer.name(hint)] = (serializer, hint)
            return Serialized
        if get_origin(hint) is Annotated:
            inner = self.replaced(first := get_args(hint)[0])
            return hint if inner is first else inner
        changed = with_parts(hint, self.replaced)
        self._in_dict |= changed is not hint and get_origin(hint) in (dict, Mapping)
        return changed


def bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def with_parts(hint: Any, of: Callable[[Any], Any]) -> Any:
    """A union, list, tuple or dict with of(...) in place of each part; the hint itself if no part changes."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin not in (Union, types.UnionType, *_HOLD):
        return hint
    inside = tuple([part if part is Ellipsis else of(part) for part in parts])
    if inside == parts:
        return hint
    return reduce(or_, inside) if origin in (Union, types.UnionType) else origin[inside]


def walk(value: Any, of: Callable[[Serialized], object]) -> Any:
    """`value` with `of(...)` in place of each Serialized in it."""
    if isinstance(value, Serialized):
        return of(value)
    if isinstance(value, list | tuple):
        return type(value)([walk(part, of) for part in value])
    if isinstance(value, dict):
        return {name: walk(part, of) for name, part in value.items()}
    return value


def carrying(hint: Any, serializers: Sequence[Serializer]) -> Carrying | None:
    """None: nothing in the hint is carried."""
    found = Carrying(serializers)
    found.wire = found.replaced(hint)
    return None if found.wire is hint else found
