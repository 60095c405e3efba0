"""Undo by the declared type what Lua's cjson does to `data` when a PHP worker retries a job. signature.py calls it for
what did not convert as it was.

cjson writes [] as {} (and PHP {} as []), and integers from 10^14 on as 1e+14: 14 digits are kept, zeros behind them not
written. Whether digits were lost cannot be seen; that a number really ends in that many zeros can be more or less likely.
"""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import inspect as types

from qd.arguments.foreign import hints_of, is_model

_SERIES = (
    types.ListType,
    types.SetType,
    types.FrozenSetType,
    types.VarTupleType,
    types.TupleType,
    types.NamedTupleType,
)
_OBJECTS = (types.DictType, types.StructType, types.DataclassType, types.TypedDictType)
_CUT_FROM = 10**14
_SURE = 10  # digits before the zeros: of an id of 15 or more digits, one in 10,000 is rounded to so few


def mend(value: Any, hint: Any) -> Any:
    """`value`, freshly decoded from JSON, nearer to the type `hint`. Raises ValidationError for lost digits."""
    return _mend(value, types.type_info(hint))


def _mend(value: Any, kind: types.Type) -> Any:
    while isinstance(kind, types.Metadata):
        kind = kind.type
    if isinstance(kind, types.UnionType):
        return _of_union(value, kind)
    if isinstance(value, float):
        return _integer(value) if isinstance(kind, types.IntType | types.EnumType) and value.is_integer() else value
    if isinstance(kind, types.CustomType) and is_model(kind.cls):
        return _model({} if value == [] else value, kind.cls)
    if _is_series(kind):
        return _series([] if value == {} else value, kind)
    if isinstance(kind, _OBJECTS):
        return _object({} if value == [] else value, kind)
    return value


def _is_series(kind: types.Type) -> bool:
    return isinstance(kind, _SERIES) or (isinstance(kind, types.StructType) and kind.array_like)


def _series(value: Any, kind: Any) -> Any:
    if not isinstance(value, list):
        return value
    if isinstance(kind, types.TupleType):
        kinds = list(kind.item_types)
    elif isinstance(kind, types.NamedTupleType | types.StructType):
        kinds = [field.type for field in kind.fields]
    else:
        kinds = [kind.item_type] * len(value)
    return [_mend(part, kind) for part, kind in zip(value, kinds, strict=False)] + value[len(kinds) :]


def _object(value: Any, kind: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if isinstance(kind, types.DictType):
        return {key: _mend(part, kind.value_type) for key, part in value.items()}
    kinds = {field.encode_name: field.type for field in kind.fields}
    return {key: _mend(part, kinds[key]) if key in kinds else part for key, part in value.items()}


def _model(value: Any, model: type) -> Any:
    """Of pydantic: by the types of those of its fields that msgspec knows."""
    hints = hints_of(model) if isinstance(value, dict) else {}
    mended = dict(value) if hints else value
    for name in hints.keys() & mended:
        with suppress(TypeError):
            mended[name] = mend(mended[name], hints[name])
    return mended


def _of_union(value: Any, union: types.UnionType) -> Any:
    """By the member that the value can only be meant for; as it is when there are several, or none."""
    if isinstance(value, float):
        numbers = [kind for kind in union.types if isinstance(kind, types.IntType | types.FloatType)]
        return _mend(value, numbers[0]) if len(numbers) == 1 else value
    series: list[types.Type] = [kind for kind in union.types if _is_series(kind)]
    objects: list[types.Type] = [kind for kind in union.types if isinstance(kind, _OBJECTS) and not _is_series(kind)]
    tags = [kind for kind in objects if isinstance(kind, types.StructType) and kind.tag_field is not None]
    if isinstance(value, dict) and len(tags) > 1:
        objects = [*(kind for kind in tags if value.get(str(kind.tag_field)) == kind.tag)]
    first, second = (series, objects) if isinstance(value, list) else (objects, series)
    for kinds in (first, () if value else second):
        if len(kinds) == 1 and isinstance(value, list | dict):
            return _mend(value, kinds[0])
    return value


def _integer(value: float) -> int:
    number = int(Decimal(repr(value)))  # not int(value): 1e23 is 10^23 here, not the binary number next to it
    if abs(number) >= _CUT_FROM and len(str(abs(number)).rstrip("0")) > _SURE:
        raise msgspec.ValidationError(
            "Expected `int`, got one whose last digits a PHP worker may have cut off (send such numbers as text)"
        )
    return number
