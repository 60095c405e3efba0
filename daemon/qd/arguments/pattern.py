"""A text with arguments in it, "order:{order_id}": checked where the job is declared, filled where it is sent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from string import Formatter
from typing import Any

from qd.arguments.canonical import canonical, plain_text
from qd.arguments.parameters import ABSENT
from qd.arguments.signature import Signature
from qd.arguments.values import decode_value, encode_value
from qd.errors import DeclarationError, WrongType
from qd.units import did_you_mean


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
