"""What a job can be called with: names, which of them are needed, and their types. See Signature."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from qd.arguments.arrival import compare
from qd.arguments.carriers import bare
from qd.arguments.fields import fields_of
from qd.arguments.foreign import known_to_msgspec, made, may_be_carried
from qd.arguments.known import Extras, Known
from qd.arguments.parameters import ABSENT, Parameter, parameters_of, title_of, type_of
from qd.arguments.providers import PROVIDED
from qd.arguments.untyped import Look, look_of
from qd.arguments.values import FAILURES, NO_DATA, decode_value, encode, look, why
from qd.errors import ArgumentError, DeclarationError, UnknownParameters, WrongType
from qd.units import did_you_mean

_UNION = re.compile("^Type unions .* type `(.+)` is not supported", re.DOTALL)
# A value of exactly this type arrives as it is. Not so for float | None: JSON makes null of NaN.
_EXACT = (
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
        from qd.arguments.mend import mend  # seldom needed

        try:
            return msgspec.convert(mend(value, hint), hint, str_keys=True, dec_hook=made)
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
            self._exact = {name: kind for name, hint in hints.items() for form, kind in _EXACT if form == hint}
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
