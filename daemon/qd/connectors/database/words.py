"""Words of commands as Redis reads them, and replies as it writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from qd.connectors.database.items import Bound
from qd.connectors.database.step import Step
from qd.connectors.keyspace.base import Arg
from qd.errors import ServerRefused

NUMBER, FLOAT = "ERR value is not an integer or out of range", "ERR value is not a valid float"
SYNTAX = "ERR syntax error"


class Status(bytes):
    """A reply that is no value: OK, the word of TYPE. In a step it is a table with the field ok."""


OK = Status(b"OK")
Words = Sequence[bytes]
Run = Callable[[Step, Words], Any]


class Command(NamedTuple):
    """names: which words are names, from the first on: how many, -1: all. least: words that it has at least."""

    run: Run
    writes: bool
    names: int = 1
    least: int = 1


Commands = Mapping[str, Command]


def word(arg: Arg) -> bytes:
    """An argument as it is sent to a server."""
    return arg if isinstance(arg, bytes) else str(arg).encode()


def whole(text: bytes) -> int:
    """Raises ServerRefused for what is no integer."""
    try:
        number = int(text)
    except ValueError:
        raise ServerRefused(NUMBER) from None
    if not text.strip() == text or not -(2**63) <= number < 2**63:
        raise ServerRefused(NUMBER)
    return number


def real(text: bytes) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ServerRefused(FLOAT) from None
    if number != number or text.strip() != text or b"_" in text:
        raise ServerRefused(FLOAT)
    return number


def bound(text: bytes) -> Bound:
    """An end of a range of scores: a number, (number, -inf or +inf."""
    try:
        return Bound(real(text[1:]), True) if text[:1] == b"(" else Bound(real(text))
    except ServerRefused:
        raise ServerRefused("ERR min or max is not a float") from None


def score_text(score: float) -> bytes:
    return b"%.17g" % score


def pairs(words: Words) -> list[tuple[bytes, bytes]]:
    """Raises ServerRefused when one is left over."""
    if len(words) % 2 or not words:
        raise ServerRefused("ERR wrong number of arguments")
    return list(zip(words[::2], words[1::2], strict=True))


def cursor_of(text: bytes) -> bytes | None:
    """The key behind which a scan goes on, None: it begins. Cursors are numbers, and any key is one."""
    if not text.isdigit():
        raise ServerRefused("ERR invalid cursor")
    number = int(text)
    return number.to_bytes((number.bit_length() + 7) // 8)[1:] if number else None


def cursor_text(key: bytes) -> bytes:
    return b"%d" % int.from_bytes(b"\x01" + key)


def options(words: Words) -> dict[bytes, bytes]:
    """Of a scan: MATCH and COUNT."""
    found = {name.upper(): value for name, value in zip(words[::2], words[1::2], strict=False)}
    if len(words) % 2 or found.keys() - {b"MATCH", b"COUNT"}:
        raise ServerRefused(SYNTAX)
    return found
