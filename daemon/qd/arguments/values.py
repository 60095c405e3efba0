"""Values as JSON and back, for signature.py and for jobs that take their `data` whole.

Types that msgspec does not know: pathlib's paths and pydantic's models (2 and later). msgspec calls `json_form` and `made`
for them. Nothing here imports pydantic: without an import elsewhere there are no models.

    Order(id=7, to=Path("a/b"))  ->  {"id": 7, "to": "a/b"}  ->  Order.model_validate_json(...)

Untyped values (Any, object, a bare list or dict): the worker gets the JSON value, so `plain` refuses anything that JSON
itself cannot hold. NaN, infinity and naive datetimes are always refused.

Values that Lua's cjson changed when a PHP worker retried a job: `repair_cjson` restores them by the declared type. cjson
writes [] as {} (and PHP {} as []), and integers from 10^14 on as 1e+14 with 14 digits. Whether digits were lost cannot be
seen, only whether it is likely that the number really ends in that many zeros.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import cache
from itertools import repeat
from math import isfinite
from pathlib import PurePath
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin
from uuid import UUID

import msgspec
from msgspec import inspect as types

from qd.arguments.injection import bare, with_parts
from qd.errors import ArgumentError, WrongType

_BIG_FLOAT = re.compile(rb"\d{15}\.0|\de[+\d]")  # how cjson writes an integer that it may have cut off


def is_model(kind: Any) -> bool:
    """Whether it is a pydantic model class."""
    base: Any = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    return hasattr(base, "model_validate_json") and isinstance(kind, type) and issubclass(kind, base)


def is_parametrized(kind: Any, of: type) -> bool:
    """Whether it is a parametrized model such as Page[int] of the class Page, whose objects are accepted for it."""
    return is_model(kind) and kind.__pydantic_generic_metadata__["origin"] is of


def json_form(value: Any) -> Any:
    """The JSON form of a path or model; None for other values. Raises ValueError."""
    if isinstance(value, PurePath):
        return str(value)
    if is_model(type(value)):
        return value.model_dump(mode="json", round_trip=True, warnings=False, by_alias=not _by_name())
    return None


def made(kind: Any, value: Any) -> Any:
    """A `kind` made from its JSON form; `value` itself if `kind` is neither path nor model. Raises ValueError."""
    if isinstance(value, str) and isinstance(kind, type) and issubclass(kind, PurePath):
        return kind(value)
    if not (discriminated := isinstance(kind, Discriminated)) and not is_model(kind):
        return value
    text = msgspec.json.encode(value)
    if not discriminated and _BIG_FLOAT.search(text):
        text = msgspec.json.encode(repair_cjson(value, kind))
    validate = kind.adapter.validate_json if discriminated else kind.model_validate_json
    names = {"by_name": True, "by_alias": True} if _by_name() else {}
    try:
        return validate(text, **names)
    except sys.modules["pydantic_core"].ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        place, text = ".".join(map(str, found[0]["loc"])), found[0]["msg"]
        text += f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ValueError(f"{place}: {text}" if place else text) from None


@cache
def _by_name() -> bool:
    """Whether this pydantic can validate by field name; before 2.11 it needs the aliases."""
    return tuple(map(int, sys.modules["pydantic"].VERSION.split(".")[:2])) >= (2, 11)


def attributes_of(model: Any) -> dict[str, str] | None:
    """The attributes of a model by the keys of its JSON object. None if any key may have a meaning."""
    attributes = {}
    if model.model_config.get("extra") == "allow":
        return None
    for name, field in model.model_fields.items():
        for key in (name, field.alias, field.validation_alias):
            if key is not None and not isinstance(key, str):
                return None  # a path, or several aliases
            attributes[key or name] = name
    return attributes


class Discriminated(type):
    """A union of models with a discriminator, as one class: msgspec has no unions of foreign types."""

    adapter: Any

    def __instancecheck__(cls, thing: object) -> bool:
        return True  # its adapter made it


def known_to_msgspec(hint: Any) -> Any:
    """The hint with a Discriminated class in place of each union of models with a discriminator."""
    if get_origin(hint) is not Annotated:
        return with_parts(hint, known_to_msgspec)
    inner, *metadata = get_args(hint)
    kinds = [bare(part) for part in get_args(inner)]
    if any(map(is_model, kinds)) and any(getattr(each, "discriminator", None) for each in metadata):
        title = " | ".join(getattr(kind, "__name__", repr(kind)) for kind in kinds)
        return Discriminated(title, (), {"adapter": sys.modules["pydantic"].TypeAdapter(hint)})
    changed = known_to_msgspec(inner)
    return hint if changed is inner else Annotated[(changed, *metadata)]


def may_be_keyed(hint: Any) -> bool:
    """Whether a serializer could take a class in the hint, even if no serializer of the app does so yet."""
    if parts := get_args(hint):
        return any(map(may_be_keyed, parts))
    if not isinstance(hint, type) or hasattr(hint, "__mapper__"):  # SQLAlchemy's classes may be dataclasses
        return isinstance(hint, type)
    if is_model(hint) or issubclass(hint, PurePath):
        return False

    try:
        return isinstance(types.type_info(hint), types.CustomType)
    except Exception:  # a class with a field whose type cannot be used
        return False


_SERIES = (
    types.ListType, types.SetType, types.FrozenSetType, types.VarTupleType, types.TupleType, types.NamedTupleType
)  # fmt: skip
_OBJECTS = (types.DictType, types.StructType, types.DataclassType, types.TypedDictType)
_CUT_FROM = 10**14
_SURE = 10  # digits before the zeros: one in 10,000 ids of 15 or more digits is rounded to so few


def repair_cjson(value: Any, hint: Any) -> Any:
    """`value`, as decoded from JSON, converted toward the type `hint`. Raises ValidationError for lost digits."""
    return _repair(value, types.type_info(hint))


def _repair(value: Any, kind: types.Type) -> Any:
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
    return [_repair(part, kind) for part, kind in zip(value, kinds, strict=False)] + value[len(kinds) :]


def _object(value: Any, kind: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if isinstance(kind, types.DictType):
        return {key: _repair(part, kind.value_type) for key, part in value.items()}
    kinds = {field.encode_name: field.type for field in kind.fields}
    return {key: _repair(part, kinds[key]) if key in kinds else part for key, part in value.items()}


def _model(value: Any, model: Any) -> Any:
    """A pydantic model: by the types of the fields that msgspec knows."""
    if not isinstance(value, dict):
        return value
    fields, repaired = model.model_fields, dict(value)
    for key, name in (attributes_of(model) or {name: name for name in fields}).items():
        if key in repaired:
            with suppress(TypeError):
                repaired[key] = repair_cjson(repaired[key], fields[name].annotation)
    return repaired


def _of_union(value: Any, union: types.UnionType) -> Any:
    """By the only member that can fit the value; unchanged if there are several or none."""
    if isinstance(value, float):
        numbers = [kind for kind in union.types if isinstance(kind, types.IntType | types.FloatType)]
        return _repair(value, numbers[0]) if len(numbers) == 1 else value
    series: list[types.Type] = [kind for kind in union.types if _is_series(kind)]
    objects: list[types.Type] = [kind for kind in union.types if isinstance(kind, _OBJECTS) and not _is_series(kind)]
    tags = [kind for kind in objects if isinstance(kind, types.StructType) and kind.tag_field is not None]
    if isinstance(value, dict) and len(tags) > 1:
        objects = [*(kind for kind in tags if value.get(str(kind.tag_field)) == kind.tag)]
    first, second = (series, objects) if isinstance(value, list) else (objects, series)
    for kinds in (first, () if value else second):
        if len(kinds) == 1 and isinstance(value, list | dict):
            return _repair(value, kinds[0])
    return value


def _integer(value: float) -> int:
    number = int(Decimal(repr(value)))  # not int(value): 1e23 is 10^23 here, not the binary number next to it
    if abs(number) >= _CUT_FROM and len(str(abs(number)).rstrip("0")) > _SURE:
        why = "whose last digits a PHP worker may have cut off (send such numbers as strings)"
        raise msgspec.ValidationError(f"Expected `int`, got one {why}")
    return number


Check = Callable[[Any], None]  # raises ValueError

_UNTYPED_SERIES = (list, tuple, set, frozenset, Sequence)
_DICTS = (dict, Mapping)
_SENT_AS_LIST = (list, tuple, set, frozenset, deque)
_BARE: dict[Any, Any] = {kind: kind[Any] for kind in (list, set, frozenset)} | {
    dict: dict[Any, Any], tuple: tuple[Any, ...]
}  # fmt: skip


def check_of(hint: Any) -> Check | None:
    """The check for untyped parts of a value of this type; None if the type is complete."""
    if hint is Any or hint is object:
        return plain
    hint = _BARE.get(hint, hint)
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return check_of(parts[0])
    inner = [check_of(part) for part in parts]
    if not any(inner):
        return None
    if origin in (Union, UnionType):
        if plain in inner:
            return plain
        checks = [check for check, part in zip(inner, parts, strict=True) if part is not type(None)]
        only = checks[0] if len(checks) == 1 else None  # of several members it may be any
        return only and (lambda value: None if value is None else only(value))
    if origin in _DICTS:
        return _dict_of(*inner)
    if origin is tuple and Ellipsis not in parts:
        return _list_of(inner)
    return _list_of(repeat(inner[0])) if origin in _UNTYPED_SERIES and inner[0] is not None else None


def plain(value: Any) -> None:
    """Raises ValueError if a part of the value is not a JSON value."""
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
        name = type(value).__qualname__.rpartition("<locals>.")[2]
        raise ValueError(f"a {name} would arrive as something else: {_RULE}")


def _check_key(key: object) -> None:
    if not isinstance(key, str):
        raise ValueError(f"a dict with the key {key!r:.40} would arrive with strings as keys: {_RULE}")


_RULE = "without a declared type only JSON values can be sent (None, bool, int, float, str, list, dict with str keys)"


def _list_of(checks: Iterable[Check | None]) -> Check:
    """checks: one for each item."""

    def each(value: Any) -> None:
        if not isinstance(value, _SENT_AS_LIST):
            return plain(value)
        for check, part in zip(checks, value, strict=False):
            if check is not None:
                check(part)

    return each


def _dict_of(key_check: Check | None, check: Check | None) -> Check:
    def each(value: Any) -> None:
        if not isinstance(value, dict):
            return plain(value)
        for key, part in value.items():
            if key_check is not None:
                _check_key(key)
            if check is not None:
                check(part)

    return each


_OF_MSGSPEC = (
    "Expected ", "Invalid ", "Object ", "Integer ", "Number ", "Out of range", "Type ", "Only ", "Input ", "Can ",
)  # fmt: skip
NO_DATA = frozenset((b"", b'""', b"[]", b"{}", b"null"))  # each means "no arguments"
FAILURES = (TypeError, ValueError, ArithmeticError, RecursionError)  # raised by msgspec; its own are ValueErrors

_SAFE = frozenset((str, int, bool, type(None), bytes, bytearray, UUID, date))


def encode_value(value: object, what: str = "the data of a job", *, as_it_is: bool = False) -> bytes:
    """`value` as JSON text. what: names it in the error. as_it_is: accept JSON values only. Raises ArgumentError."""
    try:
        check_value(value)
        data = encode(value)
        if as_it_is:
            plain(value)
        return data
    except FAILURES as error:
        raise ArgumentError(f"{what} cannot be sent: {why(error)}") from None


def decode_value(data: bytes) -> Any:
    """The JSON value in `data`, unconverted; None if it is empty. Raises WrongType."""
    try:
        return msgspec.json.decode(data) if data else None
    except FAILURES as error:
        raise WrongType(f"the data of the job cannot be read: {_where(data) or why(error)}") from None


def _where(data: bytes) -> str:
    """Which argument cannot be read, and why; "" if no single one is the cause."""
    with suppress(*FAILURES):
        for name, raw in msgspec.json.decode(data, type=dict[str, msgspec.Raw]).items():
            try:
                msgspec.json.decode(raw)
            except FAILURES as error:
                return f"argument {name!r:.80}: {why(error)}"
    return ""


def unknown(value: object) -> object:
    """Encode what msgspec cannot: subclasses of str (Django's SafeString), int and float, deques, paths and models."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, deque):
        return list(value)
    if (form := json_form(value)) is not None:
        return form
    raise TypeError(f"a value of type {type(value).__qualname__} has no JSON form (send its id or its fields)")


encode = msgspec.json.Encoder(enc_hook=unknown).encode


class Unfit(ValueError):
    """A part of a value would change on the way. place: its position in the value, such as ".lines[0].at"."""

    def __init__(self, what: str, place: str = "") -> None:
        super().__init__(f"{what} (at {place})" if place else what)
        self.what, self.place = what, place


def check_value(value: Any) -> None:
    """Raises Unfit if a part of `value` would change on the way."""
    if type(value) in _SAFE:
        return
    if isinstance(value, float | Decimal):
        if not (value.is_finite() if isinstance(value, Decimal) else isfinite(value)):
            raise Unfit(f"{value} is not a JSON number")
    elif isinstance(value, datetime):
        if value.utcoffset() is None:
            raise Unfit("a datetime without a time zone (set one: tzinfo=UTC)")
    elif isinstance(value, Enum):
        check_value(value.value)
    else:
        is_object = not isinstance(value, (dict, *_SENT_AS_LIST))
        parts: Iterable[tuple[Any, Any]]
        if is_object:
            parts = ((name, getattr(value, name, None)) for name in field_names(type(value)) or ())
        else:
            parts = value.items() if isinstance(value, dict) else enumerate(value)
        step: object = None
        try:  # not in its own function: max_depth (512) levels must fit into Python's recursion limit
            for step, part in parts:
                if type(step) not in _SAFE:
                    check_value(step)
                if type(part) not in _SAFE:
                    check_value(part)
        except Unfit as error:
            raise Unfit(error.what, (f".{step}" if is_object else f"[{step!r:.40}]") + error.place) from None


def why(error: Exception) -> str:
    """The error as the end of a message: what was expected, what was found, and where in the value."""
    if isinstance(error, RecursionError):
        return "it is nested too deep, or contains itself"
    if isinstance(error, UnicodeError):
        return "a string in it is not Unicode"
    text = str(error).replace("`", "")[:300]
    for kind, form in _TEXTS.items():
        text = re.sub(rf"Invalid RFC3339 encoded {kind}\b", f'Expected {kind}, or text such as "{form}"', text)
    return text[:1].lower() + text[1:] if text.startswith(_OF_MSGSPEC) else text


_TEXTS = {"date": "2026-11-28", "datetime": "2026-11-28T10:00:00Z", "time": "10:00:00"}
_FIELD = dataclasses._FIELD  # type: ignore[attr-defined]
EXTRA = "__pydantic_extra__"  # undeclared fields of a model


def field_names(kind: Any) -> Sequence[str] | None:
    """The fields of a Struct, dataclass, attrs class, pydantic model or NamedTuple; None for other classes."""
    if hasattr(kind, "__struct_fields__"):
        return kind.__struct_fields__  # type: ignore[no-any-return]
    if (found := getattr(kind, "__dataclass_fields__", None)) is not None:
        return [name for name, field in found.items() if field._field_type is _FIELD]
    if (found := getattr(kind, "__attrs_attrs__", None)) is not None:
        return [field.name for field in found]
    if is_model(kind):
        return [*kind.model_fields, EXTRA]
    return getattr(kind, "_fields", None) if issubclass(kind, tuple) else None
