"""One value as JSON text and back, for signature.py and for jobs that take their `data` whole.

What would arrive as something else than it was sent is refused: NaN and infinity, naive datetimes.
"""

from __future__ import annotations

from collections import deque
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Any
from uuid import UUID

import msgspec

from qd.arguments.arrival import field_names
from qd.arguments.foreign import json_form
from qd.arguments.untyped import plain
from qd.errors import ArgumentError, WrongType

_OF_MSGSPEC = (
    "Expected ",
    "Invalid ",
    "Object ",
    "Integer ",
    "Number ",
    "Out of range",
    "Type ",
    "Only ",
    "Input ",
    "Can ",
)
NO_DATA = frozenset((b"", b'""', b"[]", b"{}", b"null"))  # each of them is "no arguments"
FAILURES = (TypeError, ValueError, ArithmeticError, RecursionError)  # what msgspec raises; its own are ValueErrors

_SAFE = frozenset((str, int, bool, type(None), bytes, bytearray, UUID, date))
_SERIES = (list, tuple, set, frozenset, deque)


def encode_value(value: object, what: str = "the data of a job", *, as_it_is: bool = False) -> bytes:
    """`value` as JSON text. what: whose it is, for the error. as_it_is: only what JSON itself holds. Raises
    ArgumentError."""
    try:
        look(value)
        data = encode(value)
        if as_it_is:
            plain(value)
        return data
    except FAILURES as error:
        raise ArgumentError(f"{what} cannot be sent: {why(error)}") from None


def decode_value(data: bytes) -> Any:
    """The JSON value in `data`, unconverted; None when there is none. Raises WrongType."""
    try:
        return msgspec.json.decode(data) if data else None
    except FAILURES as error:
        raise WrongType(f"the data of the job cannot be read: {why(error)}") from None


def unknown(value: object) -> object:
    """Encode what msgspec does not: subclasses of str (Django's SafeString), int and float, deques, foreign types."""
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
    """A part of a value would change its meaning on the way. place: where in the value it is, such as ".lines[0].at"."""

    def __init__(self, what: str, place: str = "") -> None:
        super().__init__(f"{what} (at {place})" if place else what)
        self.what, self.place = what, place

    def inside(self, step: str) -> Unfit:
        return Unfit(self.what, step + self.place)


def look(value: Any) -> None:
    """Raise Unfit when a part of `value` would change its meaning on the way."""
    if type(value) in _SAFE:
        return
    if isinstance(value, float | Decimal):
        if not (value.is_finite() if isinstance(value, Decimal) else isfinite(value)):
            raise Unfit(f"{value} is no JSON number")
    elif isinstance(value, datetime):
        if value.utcoffset() is None:
            raise Unfit("a datetime without a time zone (give it one: tzinfo=UTC)")
    elif isinstance(value, Enum):
        look(value.value)
    else:
        step: object = None
        try:  # here and not in a function of its own: max_depth (512) levels must fit into Python's recursion limit
            if isinstance(value, dict):
                for step, part in value.items():
                    look(step)
                    if type(part) not in _SAFE:
                        look(part)
            elif isinstance(value, _SERIES):
                for part in value:
                    if type(part) not in _SAFE:
                        look(part)
            else:
                for step in field_names(type(value)) or ():
                    look(getattr(value, step, None))
        except Unfit as error:
            if isinstance(value, _SERIES):
                step = next(i for i, each in enumerate(value) if each is part)
            raise error.inside(f"[{step!r:.40}]" if isinstance(value, (dict, *_SERIES)) else f".{step}") from None


def why(error: Exception) -> str:
    """The error as the end of a line: what was wanted, what was there, where in the value."""
    if isinstance(error, RecursionError):
        return "it is nested too deep, or holds itself"
    if isinstance(error, UnicodeError):
        return "a text in it is no Unicode"
    text = str(error).replace("`", "")[:300]
    return text[:1].lower() + text[1:] if text.startswith(_OF_MSGSPEC) else text
