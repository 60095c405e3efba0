"""The arguments of one job: Signature binds, encodes and decodes them; Pattern fills "order:{order_id}" from them.

`canonical` gives equal values one form, for the keys of locks and limits. Values with several forms in JSON become:

    set         sorted
    dict        sorted by its keys
    datetime    in UTC
    Decimal     without zeros at the end of its fraction
    float       0.0 for -0.0
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from string import Formatter
from typing import Any, get_type_hints

import msgspec

from qd.arguments import values
from qd.arguments.arrival import compare
from qd.arguments.injection import PROVIDED, Extras, Known, bare
from qd.arguments.parameters import ABSENT, Parameter, fields_of, parameters_of, title_of, type_of
from qd.arguments.values import FAILURES, NO_DATA, Check, encode, made, why
from qd.errors import ArgumentError, DeclarationError, UnknownParameters, WrongType
from qd.options.kinds import did_you_mean

_EXACT = (str, int, bool, type(None))
_LONGEST = 100  # digits before or after the point of a Decimal that is written without an exponent
_UNION = re.compile("^Type unions .* type `(.+)` is not supported", re.DOTALL)
# (hint, class): an object of exactly this class arrives unchanged. Not so for float | None: NaN becomes null in JSON.
_EXACT_TYPES: list[tuple[Any, type]] = [(str, str), (int, int), (float, float), (bool, bool)]
_EXACT_TYPES += [(str | None, str), (int | None, int), (bool | None, bool)]


def canonical(value: Any) -> Any:
    """`value`, an argument of its declared type, in its canonical JSON form."""
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
    if values.is_model(kind):
        return canonical(value.root) if kind.__pydantic_root_model__ else _model(value)
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else getattr(kind, "__attrs_attrs__", ())
    if names := [field.name for field in fields]:  # msgspec would write only the fields of the JSON, in its order
        return {name: canonical(getattr(value, name)) for name in names if hasattr(value, name)}
    return values.decode_value(encode(value))


def plain_text(plain: Any) -> str:
    """A JSON value as text: a string unchanged, anything else as JSON."""
    if isinstance(plain, str):
        return plain
    return str(plain) if type(plain) is int else json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def text_of(value: Any) -> str:
    """The text of a key that a callable returned: str(), except that equal sets and datetimes have one text, from JSON."""
    if isinstance(value, str | int | float | list | tuple | dict) and not isinstance(value, Enum):
        return str(value)
    try:
        return str(canonical(value))
    except FAILURES:  # it has no JSON form
        return str(value)


def _place(plain: Any) -> tuple[bool, Any]:
    """Sort numbers by value, before anything else by its JSON."""
    return (False, plain) if isinstance(plain, int | float) else (True, plain_text(plain))


def _struct(value: msgspec.Struct) -> Any:
    """With the names, tag and order in which it is sent."""
    plain = values.decode_value(encode(value))
    names = {field.encode_name: field.name for field in msgspec.structs.fields(value)}
    if isinstance(plain, list):  # array_like; a tag may precede the fields
        fields = [canonical(getattr(value, name)) for name in names.values()]
        return [*plain[: len(plain) - len(fields)], *fields]
    return {name: canonical(getattr(value, names[name])) if name in names else part for name, part in plain.items()}


def _model(value: Any) -> dict[str, Any]:
    """A pydantic model: its fields in order, then its undeclared ones."""
    parts = {name: canonical(getattr(value, name)) for name in type(value).model_fields}
    return {**parts, **canonical(value.__pydantic_extra__ or {})}


def _decimal(value: Decimal) -> str:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return str(value)  # NaN, infinity
    places = "".join(map(str, digits)).rstrip("0")
    if not places:
        return "0"
    exponent += len(digits) - len(places)
    short = Decimal((sign, tuple(map(int, places)), exponent))
    return format(short, "f") if abs(exponent) + len(places) < _LONGEST else str(short)


class Signature:
    """The parameters of one job. Types are evaluated on first use: they may be defined below the job. `encode` and
    `decode` raise DeclarationError if a type cannot be found or sent as JSON. parameters: those
    whose arguments are sent. extras: the parameters that are not sent as they are; None without any."""

    def __init__(
        self, title: str, parameters: Sequence[Parameter], rest: Parameter | None = None, known: Known | None = None
    ) -> None:
        self.title = title
        self.rest = rest  # **kwargs
        self._declared = tuple(parameters)
        self._known = known if known is not None else Known()
        self._known.on_change.append(self.forget)
        self.forget()

    def forget(self) -> None:
        """Drop what is known about the types, because the app has added a provider or serializer."""
        self.extras: Extras | None = None
        self._hints: dict[str, Any] | None = None
        self._untyped: dict[str, Check] = {}  # parameters whose annotation does not name all types
        self._exact: dict[str, type] = {}  # parameters with a type of _EXACT_TYPES
        self._decoder: msgspec.json.Decoder[Any] | None = None
        self._settled = not self._known and all(parameter.default is not PROVIDED for parameter in self._declared)
        self._set_parameters(self._declared)

    def _set_parameters(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = tuple(parameters)
        self._slots = {parameter.name: f"p{i}" for i, parameter in enumerate(self.parameters)}
        self._places = [parameter.name for parameter in self.parameters if parameter.positional]
        self._required = [parameter.name for parameter in self.parameters if parameter.required]

    def _settle(self) -> None:
        """Find the parameters that the worker provides and those with models sent by key. Raises DeclarationError."""
        known, filled, keyed = self._known, {}, {}
        for parameter in self._declared:
            if parameter.default is PROVIDED or known:
                try:
                    hint = type_of(parameter)
                except Exception as error:
                    raise self._unusable(parameter, error) from None
                if parameter.default is PROVIDED or known.provides(bare(hint)):
                    filled[parameter.name] = bare(hint)
                elif (found := known.keyed_models(hint)) is not None:
                    keyed[parameter.name] = found
        if filled or keyed:
            self.extras = Extras(self.title, known, filled, keyed)
            self._set_parameters([parameter for parameter in self._declared if parameter.name not in filled])
        self._settled = True  # last: another thread may run this too

    def bind(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        """The arguments by name, without defaults. Raises ArgumentError naming the parameter."""
        if not self._settled:
            self._settle()
        if len(args) > len(self._places):
            raise ArgumentError(f"{self.title} takes {len(self._places)} positional arguments, {len(args)} were given")
        bound: dict[str, object] = dict(zip(self._places, args, strict=False))
        for name, value in kwargs.items():
            if name in bound:
                raise ArgumentError(f"{self.title} got the argument '{name}' twice")
            if self.extras is not None and name in self.extras.filled:
                raise ArgumentError(f"{self.title}: argument '{name}' is provided on the worker and cannot be sent")
            if name not in self._slots and self.rest is None:
                raise ArgumentError(f"{self.title} has no parameter '{name}'{did_you_mean(name, self._slots)}")
            bound[name] = value
        if missing := [name for name in self._required if name not in bound]:
            raise ArgumentError(f"{self.title} is missing {_listed('argument', missing)}")
        return bound

    def encode(self, arguments: Mapping[str, object], partial: bool = False) -> bytes:
        """A JSON object with one entry per argument. partial: a required one is added later. Raises ArgumentError for a
        value that would not arrive unchanged."""
        try:
            if self.extras is not None:
                arguments = {name: self.extras.packed(name, value) for name, value in arguments.items()}
            data = encode(arguments)
            if self.rest is None:
                found = self._fast().decode(data)
                for name, value in arguments.items():
                    if type(value) is not self._exact.get(name):
                        compare(value, getattr(found, self._slots[name]))
            else:
                for name, value in msgspec.json.decode(data).items():
                    compare(arguments[name], msgspec.convert(value, self._hint(name), str_keys=True, dec_hook=made))
            if self._untyped:
                for name, value in arguments.items():
                    self._check_untyped(name, value)
        except FAILURES as error:
            culprit = self._culprit(arguments)
            if partial and culprit is None:
                return data
            name, reason = culprit or (", ".join(arguments), why(error))
            raise ArgumentError(f"{self.title}: argument {name} cannot be sent: {reason}") from None
        return data

    def _check_untyped(self, name: str, value: object) -> None:
        declared = name if self.rest is None or name in self._slots else self.rest.name
        if declared not in self._untyped:
            return
        try:
            self._untyped[declared](value)
        except ValueError as error:
            raise ValueError(f"{error}; annotate the parameter with a type, or send one of these") from None

    def _culprit(self, arguments: Mapping[str, object]) -> tuple[str, str] | None:
        """The first argument that cannot be sent, and why."""
        for name, value in arguments.items():
            try:
                value = value if self.extras is None else self.extras.packed(name, value)
                values.check_value(value)
                arrived = msgspec.json.decode(encode(value), type=self._hint(name), dec_hook=made)
                self._check_untyped(name, value)
                compare(value, arrived)
            except FAILURES as error:
                return _short(name), self._why(name, error)
        return None

    def _why(self, name: str, error: Exception, *, arrived: bool = False) -> str:
        models = None if self.extras is None else self.extras.keyed.get(name)
        return why(error) if models is None else models.explain(why(error), arrived)

    def decode(self, data: bytes) -> dict[str, object]:
        """The arguments in `data` as the declared types, without defaults. Raises UnknownParameters (a name is unknown or
        a required one is missing: a deploy may be in progress) and WrongType, naming the parameter."""
        if not self._settled:
            self._settle_late()
        fields = self._decoded(data)
        if self.extras is not None:
            self.extras.check(fields)
        return fields

    def takes(self, name: str, value: bytes) -> bool:
        """Whether the JSON text `value` converts to the type of the parameter; True if there is no such parameter."""
        if not self._settled:
            self._settle_late()
        if name not in self._slots and self.rest is None:
            return True
        try:
            msgspec.json.decode(value, type=self._hint(name), dec_hook=made)
        except Exception:
            return False
        return True

    def _settle_late(self) -> None:
        try:
            self._settle()
        except DeclarationError as error:
            raise WrongType(str(error)) from None

    def _decoded(self, data: bytes) -> dict[str, object]:
        if self.rest is None and data not in NO_DATA:
            try:
                found = self._fast().decode(data)
            except Exception:  # a dataclass of the user may raise anything
                return self._decode_repaired(data)  # repairs the data or finds the error
            fields = {name: getattr(found, slot) for name, slot in self._slots.items()}
            return {name: value for name, value in fields.items() if value is not msgspec.UNSET}
        return self._decode_repaired(data)

    def _decode_repaired(self, data: bytes) -> dict[str, object]:
        given = values.decode_value(data)
        if given is None or given in ("", []):
            given = {}
        if not isinstance(given, dict):
            kind = "a list" if isinstance(given, list) else type(given).__name__
            raise WrongType(f"{self.title} expects an object with one entry per parameter, its data is {kind}")
        unknown = [] if self.rest else [name for name in given if name not in self._slots]
        missing = [name for name in self._required if name not in given]
        if unknown:
            near = did_you_mean(unknown[0], [name for name in self._slots if name not in given])
            raise UnknownParameters(f"{self.title} has no {_listed('parameter', unknown)}{near}")
        if missing:
            needed = _listed("parameter", missing)
            raise UnknownParameters(f"{self.title} needs {needed}, which the payload lacks", missing)
        return {name: self._converted(name, value) for name, value in given.items()}

    def completed(self, fields: Mapping[str, object]) -> dict[str, object]:
        """The fields of `decode` with the defaults of the parameters that were not given, in order."""
        found = {each.name: fields[each.name] if each.name in fields else each.left_out() for each in self.parameters}
        return {name: value for name, value in found.items() if value is not ABSENT} | dict(fields)

    def converted(self, name: str, value: object) -> object:
        """One argument, converted from its JSON form to its declared type. Raises WrongType."""
        if not self._settled:
            self._settle_late()
        if self._hints is not None and type(value) is self._hints.get(name):
            return value
        return self._converted(name, value)

    def _converted(self, name: str, value: object) -> object:
        try:
            hint = self._hint(name)
            return msgspec.convert(value, hint, str_keys=True, dec_hook=made)
        except DeclarationError as error:
            raise WrongType(str(error)) from None
        except Exception as error:
            first = error
        try:
            return msgspec.convert(values.repair_cjson(value, hint), hint, str_keys=True, dec_hook=made)
        except Exception as error:
            # The first error is about the value that was sent; this one is about the repaired value.
            reason = self._why(name, error if "cut off" in str(error) else first, arrived=True)
            raise WrongType(f"{self.title}: argument {_short(name)} is of the wrong type: {reason}") from None

    def check(self) -> None:
        """Raises DeclarationError for a type that cannot be sent. A type that is not defined yet, or that the app may still
        provide or register a serializer for, is checked on first use."""
        for parameter in [*self._declared, *([self.rest] if self.rest else [])]:
            try:
                hint = type_of(parameter)
            except Exception:
                continue
            if parameter.default is PROVIDED or isinstance(bare(hint), type) or self._known.provides(bare(hint)):
                continue
            models = self._known.keyed_models(hint)
            try:
                usable(hint if models is None else models.wire)
            except NameError:
                continue
            except Exception as error:
                if not values.may_be_keyed(hint):
                    raise self._unusable(parameter, error) from None

    def _fast(self) -> msgspec.json.Decoder[Any]:
        """One decoder for the whole object. Its fields are p0, p1, ...: parameters may have any name."""
        if self._decoder is not None:
            return self._decoder
        fields: list[Any] = []
        for parameter in self.parameters:
            slot, hint = self._slots[parameter.name], self._hint(parameter.name)
            fields.append((slot, hint) if parameter.required else (slot, hint, msgspec.UNSET))
        names = {slot: name for name, slot in self._slots.items()}
        whole = msgspec.defstruct("Arguments", fields, rename=names, kw_only=True, forbid_unknown_fields=True)
        self._decoder = msgspec.json.Decoder(whole, dec_hook=made)
        return self._decoder

    def _hint(self, name: str) -> Any:
        if self._hints is None:
            rest = [self.rest] if self.rest else []
            hints = {parameter.name: self._looked_up(parameter) for parameter in [*self.parameters, *rest]}
            self._untyped = {
                name: check for name, hint in hints.items() if (check := values.check_of(hint)) is not None
            }
            self._exact = {name: kind for name, hint in hints.items() for form, kind in _EXACT_TYPES if form == hint}
            self._hints = hints  # last: another thread may run this too
        if name not in self._slots and self.rest is not None:
            name = self.rest.name
        return self._hints[name]

    def _looked_up(self, parameter: Parameter) -> Any:
        """Its type in the payload."""
        models = None if self.extras is None else self.extras.keyed.get(parameter.name)
        try:
            return usable(type_of(parameter) if models is None else models.wire)
        except Exception as error:
            raise self._unusable(parameter, error) from None

    def _unusable(self, parameter: Parameter, error: Exception) -> DeclarationError:
        reason = why(error)
        if isinstance(error, NameError):
            reason += " (import it outside `if TYPE_CHECKING:`)"
        elif (union := _UNION.search(str(error))) is not None:
            ways = "one of them, tagged msgspec structs, or pydantic models with a discriminator"
            reason = f"JSON cannot tell the types of {union[1]} apart; declare {ways}"
        what = f"the type of the parameter '{parameter.name}' of {self.title}"
        return DeclarationError(f"{what} cannot be used: {reason}")


def usable(hint: Any) -> Any:
    """The hint for msgspec. Raises TypeError for types that JSON cannot distinguish, NameError, and others."""
    hint = values.known_to_msgspec(hint)
    msgspec.json.Decoder(hint)
    return hint


def result_from(text: bytes, function: Any) -> Any:
    """A stored result, converted to the return annotation of `function` if that is possible. Raises one of FAILURES."""
    hint: Any = Any
    with suppress(Exception):  # whatever annotations raise
        hint = usable(get_type_hints(function, include_extras=True).get("return", Any))
    with suppress(*FAILURES):  # it does not match the annotation
        return msgspec.json.decode(text, type=hint, dec_hook=made)
    return msgspec.json.decode(text)


def _listed(word: str, names: Iterable[str]) -> str:
    shown = [_short(name) for name in names]
    return f"{word}{'s' if len(shown) > 1 else ''} {', '.join(shown[:5])}{', ...' if len(shown) > 5 else ''}"


def _short(name: str) -> str:
    """A name from a payload, for a message."""
    return repr(name[:80])


def signature_of(function: Callable[..., object], known: Known | None = None) -> Signature:
    """The signature of a function job. Raises DeclarationError for parameters that cannot be passed by name."""
    return Signature(title_of(function), *parameters_of(function), known)


def signature_of_fields(cls: type, known: Known | None = None) -> Signature:
    """The signature of a class job, which is a dataclass."""
    return Signature(title_of(cls), fields_of(cls), None, known)


class Pattern:
    """A text with parameters in braces. option: its name for messages. Raises DeclarationError for an unknown parameter."""

    def __init__(self, option: str, text: str, signature: Signature) -> None:
        try:
            self._pieces = list(Formatter().parse(text))
        except ValueError as error:
            raise DeclarationError(f"option {option} of {signature.title}: {text!r}: {error}") from None
        for _, name, spec, conversion in self._pieces:
            if name is not None and (spec or conversion or not name.isidentifier()):
                way = "has more than a name in braces (write 'order:{order_id}')"
                raise DeclarationError(f"option {option} of {signature.title}: {text!r} {way}")
        self.names = tuple([name for _, name, _, _ in self._pieces if name is not None])
        known = {parameter.name: parameter for parameter in signature.parameters}
        for name in self.names:
            if name not in known and signature.rest is None:
                near = did_you_mean(name, known)
                raise DeclarationError(f"option {option} of {signature.title}: it has no parameter '{name}'{near}")
        self._signature = signature
        self._known = {name: known[name] for name in self.names if name in known}

    def filled(self, data: bytes) -> str:
        """For people: strings as they are, other values as JSON; parameters that were not given have their defaults."""
        return self._filled(data, lambda name, value: plain_text(value))

    def key(self, data: bytes) -> str:
        """For keys: equal values have equal texts, however they were written."""
        return self._filled(data, self._value_text)

    def _filled(self, data: bytes, text: Callable[[str, Any], str]) -> str:
        found = values.decode_value(data) if self.names else None
        given = found if isinstance(found, dict) else {}
        texts = {name: text(name, given[name] if name in given else self._default(name)) for name in self.names}
        return "".join([piece + ("" if name is None else texts[name]) for piece, name, _, _ in self._pieces])

    def _default(self, name: str) -> Any:
        """The default as it would be sent."""
        default = self._known[name].left_out() if name in self._known else None
        if default is None or isinstance(default, str):
            return default
        return None if default is ABSENT else values.decode_value(values.encode_value(default))

    def _value_text(self, name: str, value: Any) -> str:
        """value: the JSON value. One that does not convert is used as it is; the error fails the job elsewhere."""
        with suppress(WrongType):
            value = self._signature.converted(name, value)
        return plain_text(canonical(value))
