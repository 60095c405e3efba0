"""Values where the annotation names no type: Any, object, none at all, a bare list or dict. signature.py looks here.

The worker gets the JSON value there, so only what JSON itself holds may be sent: anything else would arrive as something
else than it was sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

Look = Callable[[Any], None]  # raises ValueError

_SERIES = (list, tuple, set, frozenset, Sequence)
_DICTS = (dict, Mapping)
_SENT_AS_LIST = (list, tuple, set, frozenset, deque)
_BARE: dict[Any, Any] = {kind: kind[Any] for kind in (list, set, frozenset)} | {
    dict: dict[Any, Any],
    tuple: tuple[Any, ...],
}


def look_of(hint: Any) -> Look | None:
    """What looks at a value of this type; None where the type says everything."""
    if hint is Any or hint is object:
        return plain
    hint = _BARE.get(hint, hint)
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return look_of(parts[0])
    inner = [look_of(part) for part in parts]
    if not any(inner):
        return None
    if origin in (Union, UnionType):
        return _one_of(parts, inner)
    if origin in _DICTS:
        return _dict_of(*inner)
    if origin is tuple and Ellipsis not in parts:
        return _tuple_of(inner)
    return _series_of(inner[0]) if origin in _SERIES and inner[0] is not None else None


def plain(value: Any) -> None:
    """Raises ValueError: a part of it is nothing that JSON holds."""
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, Enum)):
        return
    if isinstance(value, list):
        for part in value:
            plain(part)
    elif isinstance(value, dict):
        for key, part in value.items():
            _check_key(key)
            plain(part)
    else:
        raise ValueError(f"a {_name(value)} would arrive as something else: {_RULE}")


def _check_key(key: object) -> None:
    if not isinstance(key, str):
        raise ValueError(f"a dict with the key {key!r:.40} would arrive with texts as keys: {_RULE}")


_RULE = "without a declared type JSON's own may be sent (None, bool, int, float, str, list, dict with texts as keys)"


def _name(value: object) -> str:
    return type(value).__qualname__.rpartition("<locals>.")[2]


def _series_of(look: Look) -> Look:
    def each(value: Any) -> None:
        if not isinstance(value, _SENT_AS_LIST):
            return plain(value)
        for part in value:
            look(part)

    return each


def _tuple_of(inner: Sequence[Look | None]) -> Look:
    def each(value: Any) -> None:
        if not isinstance(value, _SENT_AS_LIST):
            return plain(value)
        for look, part in zip(inner, value, strict=False):
            if look is not None:
                look(part)

    return each


def _dict_of(key_look: Look | None, look: Look | None) -> Look:
    def each(value: Any) -> None:
        if not isinstance(value, dict):
            return plain(value)
        for key, part in value.items():
            if key_look is not None:
                _check_key(key)
            if look is not None:
                look(part)

    return each


def _one_of(parts: Sequence[Any], inner: Sequence[Look | None]) -> Look | None:
    """Which of several types is meant is not guessed: an untyped one among them, or the one beside None, counts."""
    if plain in inner:
        return plain
    named = [look for look, part in zip(inner, parts, strict=True) if part is not type(None)]
    if len(named) != 1 or (look := named[0]) is None:
        return None
    known: Look = look
    return lambda value: None if value is None else known(value)
