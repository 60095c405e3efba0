"""Types that msgspec does not know and qd carries: the paths of pathlib and the models of pydantic (2 and later).

    Order(id=7, to=Path("a/b"))  ->  {"id": 7, "to": "a/b"}  ->  Order.model_validate_json(...)

msgspec asks json_form and made for what it cannot encode or decode by itself. Nothing here imports pydantic: where no module
has done so, there is no model.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import PurePath
from typing import Annotated, Any, get_args, get_origin

import msgspec

from qd.arguments.carriers import bare, with_parts

_BIG_FLOAT = re.compile(rb"\d{15}\.0|\de[+\d]")  # an integer that cjson may have cut off is written so


def is_model(kind: Any) -> bool:
    """Whether it is a class of pydantic models."""
    base: Any = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    return hasattr(base, "model_validate_json") and isinstance(kind, type) and issubclass(kind, base)


def is_parametrized(kind: Any, of: type) -> bool:
    """Whether it is a model such as Page[int], of the class Page: Page(items=[1]) is meant as one."""
    return is_model(kind) and kind.__pydantic_generic_metadata__["origin"] is of


def json_form(value: Any) -> Any:
    """What stands for it in JSON; None: it is neither a path nor a model. Raises ValueError."""
    if isinstance(value, PurePath):
        return str(value)
    if is_model(type(value)):
        return value.model_dump(mode="json", round_trip=True, warnings=False, by_alias=not _by_name())
    return None


def made(kind: Any, value: Any) -> Any:
    """A `kind` made of its JSON form; what it was, if `kind` is none of ours. Raises ValueError."""
    if isinstance(value, str) and isinstance(kind, type) and issubclass(kind, PurePath):
        return kind(value)
    if not (discriminated := isinstance(kind, Discriminated)) and not is_model(kind):
        return value
    text = msgspec.json.encode(value)
    if not discriminated and _BIG_FLOAT.search(text):
        from qd.arguments.mend import mend  # seldom needed

        text = msgspec.json.encode(mend(value, kind))
    validate = kind.adapter.validate_json if discriminated else kind.model_validate_json
    names = {"by_name": True, "by_alias": True} if _by_name() else {}
    try:
        return validate(text, **names)
    except sys.modules["pydantic_core"].ValidationError as error:
        raise ValueError(_said(error)) from None


@cache
def _by_name() -> bool:
    """Whether this pydantic validates by the names of the fields; before 2.11 it wants their aliases."""
    return tuple(map(int, sys.modules["pydantic"].VERSION.split(".")[:2])) >= (2, 11)


def _said(error: Any) -> str:
    """The first of its errors in one line, without the value."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    place = ".".join(map(str, found[0]["loc"]))
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"{place}: {found[0]['msg']}{more}" if place else f"{found[0]['msg']}{more}"


def attributes_of(model: Any) -> dict[str, str] | None:
    """By each key that a JSON object may have for a model: the attribute. None: any key may have a meaning."""
    attributes = {}
    if model.model_config.get("extra") == "allow":
        return None
    for name, field in model.model_fields.items():
        for key in (name, field.alias, field.validation_alias):
            if key is not None and not isinstance(key, str):
                return None  # a path, or a choice of them
            attributes[key or name] = name
    return attributes


def hints_of(model: Any) -> Mapping[str, Any]:
    """The types of its fields, by every key that they may have."""
    fields = model.model_fields
    return {
        key: fields[name].annotation for key, name in (attributes_of(model) or {name: name for name in fields}).items()
    }


class Discriminated(type):
    """A union of models with a discriminator, as one class: msgspec knows no unions of foreign types."""

    adapter: Any

    def __instancecheck__(cls, thing: object) -> bool:
        return True  # its adapter has made it


def known_to_msgspec(hint: Any) -> Any:
    """The hint with a class of its own in place of each union of models with a discriminator."""
    if get_origin(hint) is not Annotated:
        return with_parts(hint, known_to_msgspec)
    inner, *said = get_args(hint)
    kinds = [bare(part) for part in get_args(inner)]
    if any(map(is_model, kinds)) and any(getattr(each, "discriminator", None) for each in said):
        title = " | ".join(getattr(kind, "__name__", repr(kind)) for kind in kinds)
        return Discriminated(title, (), {"adapter": sys.modules["pydantic"].TypeAdapter(hint)})
    changed = known_to_msgspec(inner)
    return hint if changed is inner else Annotated[(changed, *said)]


def may_be_carried(hint: Any) -> bool:
    """Whether a class in it may be one that a serializer takes, though no serializer of the app does so yet."""
    if parts := get_args(hint):
        return any(map(may_be_carried, parts))
    if not isinstance(hint, type) or hasattr(hint, "__mapper__"):  # SQLAlchemy's classes may be dataclasses
        return isinstance(hint, type)
    if is_model(hint) or issubclass(hint, PurePath):
        return False
    from msgspec import inspect as types  # seldom needed

    try:
        return isinstance(types.type_info(hint), types.CustomType)
    except Exception:  # a class with fields, of which one has a type that cannot be used
        return False
