"""The one form that equal values share, for the keys of locks and limits. pattern.py makes texts of it.

A value with a single form in JSON keeps it. These have several, and are written like this:

    set         sorted
    dict        sorted by its keys
    datetime    in UTC
    Decimal     without zeros at the end of its fraction
    float       0.0 for -0.0
"""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import msgspec

from qd.arguments.foreign import is_model
from qd.arguments.values import FAILURES, decode_value, encode

_EXACT = (str, int, bool, type(None))
_LONGEST = 100  # digits before or behind the point of a Decimal that is written without an exponent


def canonical(value: Any) -> Any:
    """`value`, an argument as its declared type, as what JSON holds."""
    if type(value) in _EXACT:
        return value
    if type(value) is float:
        return value + 0.0
    if isinstance(value, list | tuple | deque):
        return [canonical(part) for part in value]
    if isinstance(value, set | frozenset):
        return sorted([canonical(part) for part in value], key=_place)
    if isinstance(value, Mapping):
        parts = {plain_text(canonical(key)): canonical(part) for key, part in value.items()}
        return dict(sorted(parts.items()))
    if isinstance(value, datetime) and value.utcoffset() is not None:
        value = value.astimezone(UTC)
    elif isinstance(value, Decimal):
        return _decimal(value)
    elif isinstance(value, msgspec.Struct):
        return _struct(value)
    kind: Any = type(value)
    if is_model(kind):
        return canonical(value.root) if kind.__pydantic_root_model__ else _model(value)
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else getattr(kind, "__attrs_attrs__", ())
    if names := [field.name for field in fields]:  # msgspec would write only what was in the JSON, and in its order
        return {name: canonical(getattr(value, name)) for name in names if hasattr(value, name)}
    return decode_value(encode(value))


def plain_text(plain: Any) -> str:
    """What JSON holds, in a text: a text as it is, all else as its JSON."""
    if isinstance(plain, str):
        return plain
    return str(plain) if type(plain) is int else json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def text_of(value: Any) -> str:
    """What a callable gave as a key. str(), but equal sets and moments have one text, which is that of their JSON."""
    if isinstance(value, str | int | float | list | tuple | dict) and not isinstance(value, Enum):
        return str(value)
    try:
        return str(canonical(value))
    except FAILURES:  # JSON has nothing for it
        return str(value)


def _place(plain: Any) -> tuple[bool, Any]:
    """Numbers by their size, before all else by its JSON."""
    return (False, plain) if isinstance(plain, int | float) else (True, plain_text(plain))


def _struct(value: msgspec.Struct) -> Any:
    """With the names, the tag and the order that it travels with."""
    plain = decode_value(encode(value))
    names = {field.encode_name: field.name for field in msgspec.structs.fields(value)}
    if isinstance(plain, list):  # array_like; a tag may stand before the fields
        fields = [canonical(getattr(value, name)) for name in names.values()]
        return [*plain[: len(plain) - len(fields)], *fields]
    return {name: canonical(getattr(value, names[name])) if name in names else part for name, part in plain.items()}


def _model(value: Any) -> dict[str, Any]:
    """Of pydantic: its fields in their order, then those that it took without declaring them."""
    parts = {name: canonical(getattr(value, name)) for name in type(value).model_fields}
    return {**parts, **canonical(value.__pydantic_extra__ or {})}


def _decimal(value: Decimal) -> str:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return str(value)  # NaN, infinity
    places = list(digits)
    while len(places) > 1 and places[-1] == 0:
        places.pop()
        exponent += 1
    if places == [0]:
        return "0"
    short = Decimal((sign, tuple(places), exponent))
    return format(short, "f") if abs(exponent) + len(places) < _LONGEST else str(short)
