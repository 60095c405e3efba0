"""The one form that equal values share, for the keys of locks and limits. pattern.py makes texts of it.

A value with a single form in JSON keeps it. These have several, and are written like this:

    set         sorted
    dict        sorted by its keys
    datetime    in UTC
    Decimal     without zeros at the end of its fraction
    float       0.0 for -0.0

What a job can be called with: names, which of them are needed, and their types. See Signature.

A text with arguments in it, "order:{order_id}": checked where the job is declared, filled where it is sent.
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
from typing import Any

import msgspec

from qd.arguments.arrival import compare
from qd.arguments.injection import PROVIDED, Extras, Known, bare
from qd.arguments.parameters import ABSENT, Parameter, fields_of, parameters_of, title_of, type_of
from qd.arguments.values import (
    FAILURES,
    NO_DATA,
    Look,
    decode_value,
    encode,
    encode_value,
    is_model,
    known_to_msgspec,
    look,
    look_of,
    made,
    may_be_carried,
    why,
)
from qd.errors import ArgumentError, DeclarationError, UnknownParameters, WrongType
from qd.options.kinds import did_you_mean

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


_UNION = re.compile("^Type unions .* type `(.+)` is not supported", re.DOTALL)
# A value of exactly this type arrives as it is. Not so for float | None: JSON makes null of NaN.
_EXACT_TYPES = (
    (str, str),
    (int, int),
    (float, float),
    (bool, bool),
    (str | None, str),
    (int | None, int),
    (bool | None, bool),
)


class Signature:
    """The parameters of one job. Types are looked up at first use: what they name may be defined below the job.

    `encode` and `decode` raise DeclarationError when a type cannot be found, or is none that JSON can carry; `resolve`
    does so at once, for those who want to know at the start.

    extras: what of the parameters does not travel as it is; None, as a rule: nothing. parameters: those that travel.
    """

    __slots__ = (
        "_declared",
        "_decoder",
        "_exact",
        "_hints",
        "_known",
        "_places",
        "_required",
        "_settled",
        "_slots",
        "_untyped",
        "extras",
        "parameters",
        "rest",
        "title",
    )

    def __init__(
        self, title: str, parameters: Sequence[Parameter], rest: Parameter | None = None, known: Known | None = None
    ) -> None:
        self.title = title
        self.rest = rest  # **kwargs
        self._declared = tuple(parameters)
        self._known = known if known is not None else Known()
        self._known.read_by(self)
        self.forget()

    def forget(self) -> None:
        """The app provides, or carries, other types by now: what was found out about types counts no more."""
        self.extras: Extras | None = None
        self._hints: dict[str, Any] | None = None
        self._untyped: dict[str, Look] = {}  # by the parameters whose types do not say everything
        self._exact: dict[str, type] = {}  # by the parameters with a type of _EXACT
        self._decoder: msgspec.json.Decoder[Any] | None = None
        self._settled = not self._known and all(parameter.default is not PROVIDED for parameter in self._declared)
        self._travelling(self._declared)

    def _travelling(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = tuple(parameters)
        self._slots = {parameter.name: f"p{i}" for i, parameter in enumerate(self.parameters)}
        self._places = [parameter.name for parameter in self.parameters if parameter.positional]
        self._required = [parameter.name for parameter in self.parameters if parameter.required]

    def _settle(self) -> None:
        """Find out which parameters are filled in on the worker, and which are loaded. Raises DeclarationError."""
        known, filled, carried = self._known, {}, {}
        for parameter in self._declared:
            if parameter.default is PROVIDED or known:
                hint = self._type_of(parameter)
                if parameter.default is PROVIDED or known.provides(bare(hint)):
                    filled[parameter.name] = bare(hint)
                elif (found := known.carrying(hint)) is not None:
                    carried[parameter.name] = found
        if filled or carried:
            self.extras = Extras(self.title, known, filled, carried)
            self._travelling([parameter for parameter in self._declared if parameter.name not in filled])
        self._settled = True  # last: another thread may be here, too

    # -- at the caller

    def bind(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        """Arguments by name, defaults left out. Raises ArgumentError naming the parameter."""
        if not self._settled:
            self._settle()
        if len(args) > len(self._places):
            raise ArgumentError(f"{self.title} takes {len(self._places)} arguments by place, {len(args)} were given")
        bound: dict[str, object] = dict(zip(self._places, args, strict=False))
        for name, value in kwargs.items():
            if name in bound:
                raise ArgumentError(f"{self.title} got the argument '{name}' twice")
            if self.extras is not None and name in self.extras.filled:
                raise ArgumentError(f"{self.title}: argument '{name}' is provided on the worker, and cannot be sent")
            if name not in self._slots and self.rest is None:
                raise ArgumentError(f"{self.title} has no parameter '{name}'{did_you_mean(name, self._slots)}")
            bound[name] = value
        if missing := [name for name in self._required if name not in bound]:
            raise ArgumentError(f"{self.title} misses {_listed('argument', missing)}")
        return bound

    def encode(self, arguments: Mapping[str, object]) -> bytes:
        """A JSON object, one entry an argument. Raises ArgumentError for what does not arrive as the declared type."""
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
                self._check_each(arguments, data)
            if self._untyped:
                for name, value in arguments.items():
                    self._check_untyped(name, value)
        except FAILURES as error:
            name, reason = self._culprit(arguments) or (", ".join(arguments), why(error))
            raise ArgumentError(f"{self.title}: argument {name} cannot be sent: {reason}") from None
        return data

    def _check_each(self, arguments: Mapping[str, object], data: bytes) -> None:
        for name, value in msgspec.json.decode(data).items():
            compare(arguments[name], msgspec.convert(value, self._hint(name), str_keys=True, dec_hook=made))

    def _check_untyped(self, name: str, value: object) -> None:
        declared = name if self.rest is None or name in self._slots else self.rest.name
        if declared not in self._untyped:
            return
        try:
            self._untyped[declared](value)
        except ValueError as error:
            raise ValueError(f"{error}; annotate it with its type, or send one of these") from None

    def _culprit(self, arguments: Mapping[str, object]) -> tuple[str, str] | None:
        """The first argument that cannot be sent, and why."""
        for name, value in arguments.items():
            try:
                value = value if self.extras is None else self.extras.packed(name, value)
                look(value)
                arrived = msgspec.json.decode(encode(value), type=self._hint(name), dec_hook=made)
                self._check_untyped(name, value)
                compare(value, arrived)
            except FAILURES as error:
                return _short(name), self._why(name, error)
        return None

    def _why(self, name: str, error: Exception, *, arrived: bool = False) -> str:
        carried = self.extras.carried.get(name) if self.extras is not None else None
        return why(error) if carried is None else carried.told(why(error), arrived)

    # -- in the worker

    def decode(self, data: bytes) -> dict[str, object]:
        """The arguments in `data`, as the declared types; defaults left out.

        Raises UnknownParameters (a name is not known here, or a needed one missing: a deploy may be under way) and
        WrongType, naming the parameter.
        """
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
                return self._decode_mended(data)  # finds out what is wrong, or puts it right
            return {
                name: value
                for name, slot in self._slots.items()
                if (value := getattr(found, slot)) is not msgspec.UNSET
            }
        return self._decode_mended(data)

    def _decode_mended(self, data: bytes) -> dict[str, object]:
        given = None if data in NO_DATA else decode_value(data)
        if given is None or given in ("", []):
            given = {}
        if not isinstance(given, dict):
            kind = "a list" if isinstance(given, list) else f"{type(given).__name__}"
            raise WrongType(f"{self.title} wants an object with one entry a parameter, its data is {kind}")
        self._check_names(given)
        return {name: self._converted(name, value) for name, value in given.items()}

    def _check_names(self, given: Mapping[str, object]) -> None:
        unknown = [] if self.rest else [name for name in given if name not in self._slots]
        missing = [name for name in self._required if name not in given]
        if unknown:
            near = did_you_mean(unknown[0], [name for name in self._slots if name not in given])
            raise UnknownParameters(f"{self.title} has no {_listed('parameter', unknown)}{near}")
        if missing:
            said = f"{self.title} needs {_listed('parameter', missing)}, which the payload has not"
            raise UnknownParameters(said, missing)

    def completed(self, fields: Mapping[str, object]) -> dict[str, object]:
        """fields: as `decode` gives them. With the defaults of the parameters that were not given, in their order."""
        found = {each.name: fields[each.name] if each.name in fields else each.left_out() for each in self.parameters}
        return {name: value for name, value in found.items() if value is not ABSENT} | dict(fields)

    def converted(self, name: str, value: object) -> object:
        """One argument, as JSON holds it, as its declared type. Raises WrongType."""
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
        from qd.arguments.values import repair_cjson  # seldom needed

        try:
            return msgspec.convert(repair_cjson(value, hint), hint, str_keys=True, dec_hook=made)
        except Exception as error:
            # The first error speaks of what was sent; the second of what was left after mending it.
            told = error if "cut off" in str(error) else first
            reason = self._why(name, told, arrived=True)
            raise WrongType(f"{self.title}: argument {_short(name)} is of the wrong type: {reason}") from None

    # -- types

    def resolve(self) -> None:
        """Look up the types now. Raises DeclarationError naming the parameter."""
        if not self._settled:
            self._settle()
        self._fast()

    def check(self) -> None:
        """Raises DeclarationError for a type that no job can take. A type that is not defined yet, or that the app may still
        provide or carry, is checked at its first use."""
        for parameter in [*self._declared, *([self.rest] if self.rest else [])]:
            try:
                hint = type_of(parameter)
            except Exception:
                continue
            if parameter.default is PROVIDED or isinstance(bare(hint), type) or self._known.provides(bare(hint)):
                continue
            carried = self._known.carrying(hint)
            try:
                usable(hint if carried is None else carried.wire)
            except NameError:
                continue
            except Exception as error:
                if not may_be_carried(hint):
                    raise self._unusable(parameter, error) from None

    def _fast(self) -> msgspec.json.Decoder[Any]:
        if self._decoder is None:
            self._decoder = self._made_decoder()
        return self._decoder

    def _made_decoder(self) -> msgspec.json.Decoder[Any]:
        """One decoder for the whole object. Its fields are p0, p1, ...: a parameter may be called anything."""
        fields: list[Any] = []
        for parameter in self.parameters:
            slot, hint = self._slots[parameter.name], self._hint(parameter.name)
            fields.append((slot, hint) if parameter.required else (slot, hint, msgspec.UNSET))
        names = {slot: name for name, slot in self._slots.items()}
        whole = msgspec.defstruct("Arguments", fields, rename=names, kw_only=True, forbid_unknown_fields=True)
        return msgspec.json.Decoder(whole, dec_hook=made)

    def _hint(self, name: str) -> Any:
        if self._hints is None:
            rest = [self.rest] if self.rest else []
            hints = {parameter.name: self._looked_up(parameter) for parameter in [*self.parameters, *rest]}
            self._untyped = {name: look for name, hint in hints.items() if (look := look_of(hint)) is not None}
            self._exact = {name: kind for name, hint in hints.items() for form, kind in _EXACT_TYPES if form == hint}
            self._hints = hints  # last: another thread may be here, too
        if name not in self._slots and self.rest is not None:
            name = self.rest.name
        return self._hints[name]

    def _looked_up(self, parameter: Parameter) -> Any:
        """Its type, as it travels."""
        carried = self.extras.carried.get(parameter.name) if self.extras is not None else None
        hint = self._type_of(parameter) if carried is None else carried.wire
        try:
            return usable(hint)
        except Exception as error:
            raise self._unusable(parameter, error) from None

    def _type_of(self, parameter: Parameter) -> Any:
        try:
            return type_of(parameter)
        except Exception as error:
            raise self._unusable(parameter, error) from None

    def _unusable(self, parameter: Parameter, error: Exception) -> DeclarationError:
        reason = why(error)
        if isinstance(error, NameError):
            reason += " (import it outside `if TYPE_CHECKING:`)"
        elif (union := _UNION.search(str(error))) is not None:
            reason = (
                f"JSON cannot tell the types of {union[1]} apart; declare one of them, tagged msgspec structs, or pydantic "
                "models with a discriminator"
            )
        return DeclarationError(
            f"the type of the parameter '{parameter.name}' of {self.title} cannot be used: {reason}"
        )


def usable(hint: Any) -> Any:
    """The hint as msgspec takes it. Raises TypeError for types that JSON cannot tell apart, NameError, and others."""
    hint = known_to_msgspec(hint)
    msgspec.json.Decoder(hint)
    return hint


def _listed(word: str, names: Iterable[str]) -> str:
    shown = [_short(name) for name in names]
    return f"{word}{'s' if len(shown) > 1 else ''} {', '.join(shown[:5])}{', ...' if len(shown) > 5 else ''}"


def _short(name: str) -> str:
    """A name that somebody sent, as it may stand in a line."""
    return repr(name[:80])


def signature_of(function: Callable[..., object], known: Known | None = None) -> Signature:
    """The signature of a function job. Raises DeclarationError for parameters that cannot be given by name."""
    return Signature(title_of(function), *parameters_of(function), known)


def signature_of_fields(cls: type, known: Known | None = None) -> Signature:
    """The signature of a class job, which is a dataclass."""
    return Signature(title_of(cls), fields_of(cls), None, known)


class Pattern:
    """option: where it was said, for messages. Raises DeclarationError for a name that is no parameter."""

    __slots__ = ("_known", "_pieces", "_signature", "names")

    def __init__(self, option: str, text: str, signature: Signature) -> None:
        self._pieces = pieces_of(option, text, signature.title)
        self.names = tuple([name for _, name in self._pieces if name is not None])
        known = {parameter.name: parameter for parameter in signature.parameters}
        for name in self.names:
            if name not in known and signature.rest is None:
                near = did_you_mean(name, known)
                raise DeclarationError(f"option {option} of {signature.title}: it has no parameter '{name}'{near}")
        self._signature = signature
        self._known = {name: known[name] for name in self.names if name in known}

    def filled(self, data: bytes) -> str:
        """For people, with the arguments in `data` as they were written: a text as it is, all else as its JSON. A parameter
        that was not given has its default."""
        return self._filled(data, lambda name, value: plain_text(value))

    def key(self, data: bytes) -> str:
        """For keys: equal values give the same text, whoever sent them and however they were written."""
        return self._filled(data, self._value_text)

    def _filled(self, data: bytes, text: Callable[[str, Any], str]) -> str:
        found = decode_value(data) if self.names else None
        given = found if isinstance(found, dict) else {}
        return "".join(
            [
                piece + ("" if name is None else text(name, given[name] if name in given else self._default(name)))
                for piece, name in self._pieces
            ]
        )

    def _default(self, name: str) -> Any:
        """As it would travel."""
        default = self._known[name].left_out() if name in self._known else None
        if default is None or isinstance(default, str):
            return default
        return None if default is ABSENT else decode_value(encode_value(default))

    def _value_text(self, name: str, value: Any) -> str:
        """value: as JSON holds it. One that does not convert, which fails the job elsewhere, is taken as it is."""
        with suppress(WrongType):
            value = self._signature.converted(name, value)
        return plain_text(canonical(value))


def pieces_of(option: str, text: str, title: str) -> list[tuple[str, str | None]]:
    """Each text with the name behind it. Raises DeclarationError: braces that do not fit, more than a name in them."""
    try:
        found = [(piece, name, spec, conversion) for piece, name, spec, conversion in Formatter().parse(text)]
    except ValueError as error:
        raise DeclarationError(f"option {option} of {title}: {text!r}: {error}") from None
    for _, name, spec, conversion in found:
        if name is not None and (spec or conversion or not name.isidentifier()):
            raise DeclarationError(
                f"option {option} of {title}: {text!r} has more than a name in braces (written 'order:{{order_id}}')"
            )
    return [(piece, name) for piece, name, _, _ in found]
