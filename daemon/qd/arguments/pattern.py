"""A text with arguments in it, "order:{order_id}": checked where the job is declared, filled where it is sent."""

from __future__ import annotations

import json
from string import Formatter
from typing import Any

import msgspec

from qd.arguments.signature import Signature
from qd.arguments.values import decode_value, encode_value
from qd.errors import DeclarationError
from qd.units import did_you_mean


class Pattern:
    """option: where it was said, for messages. Raises DeclarationError for a name that is no parameter."""

    __slots__ = ("_defaults", "_pieces", "names")

    def __init__(self, option: str, text: str, signature: Signature) -> None:
        self._pieces = pieces_of(option, text, signature.title)
        self.names = tuple([name for _, name in self._pieces if name is not None])
        known = {parameter.name: parameter for parameter in signature.parameters}
        for name in self.names:
            if name not in known and signature.rest is None:
                near = did_you_mean(name, known)
                raise DeclarationError(f"option {option} of {signature.title}: it has no parameter '{name}'{near}")
        self._defaults = {
            name: known[name].default for name in self.names if name in known and not known[name].required
        }

    def filled(self, data: bytes) -> str:
        """With the arguments in `data`, a parameter's default where it was not given. A text stands as it is, all else as
        its JSON."""
        given = decode_value(data) if self.names else {}
        return "".join([piece + ("" if name is None else self._word(name, given)) for piece, name in self._pieces])

    def _word(self, name: str, given: dict[str, Any]) -> str:
        value = given[name] if name in given else plain(self._defaults.get(name))
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def plain(default: object) -> Any:
    """A default as it would travel."""
    return default if default is None or isinstance(default, str) else msgspec.json.decode(encode_value(default))


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
