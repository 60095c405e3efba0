"""The name that an entry has by itself: the same on every host, and short."""

from __future__ import annotations

import hashlib
import re
from functools import partial

import msgspec

from qd.jobs import Declared
from qd.masks import mask_urls

LONGEST = 64  # letters
PLAIN = re.compile(r"[\w@.:/+-]+")


def of_call(declared: Declared, data: bytes) -> str:
    """`report(7)`: the job, and what it is given. Arguments stand by place, or by name where those before are left out."""
    given = msgspec.json.decode(data) if data else {}
    if not isinstance(given, dict):
        return short(f"{declared.name}({plain(given)})")
    said, by_place = [], True
    for parameter in declared.signature.parameters:
        by_place = by_place and parameter.positional and parameter.name in given
        if by_place:
            said.append(plain(given.pop(parameter.name)))
    said += [f"{name}={plain(value)}" for name, value in given.items()]
    return short(f"{declared.name}({', '.join(said)})" if said else declared.name)


def of_command(line: str) -> str:
    return short(" ".join(line.split()))


def plain(value: object) -> str:
    """JSON, and a text that cannot be mistaken for anything else as it is."""
    if isinstance(value, str) and PLAIN.fullmatch(value):
        return value
    return msgspec.json.encode(value).decode()


def short(name: str) -> str:
    """Without passwords of urls; one that is too long is cut, with a few letters that tell it from others like it."""
    clean = "".join(letter if letter.isprintable() else " " for letter in mask_urls(name))
    if len(clean) <= LONGEST:
        return clean
    return f"{clean[: LONGEST - 9]}~{hashlib.sha1(clean.encode()).hexdigest()[:8]}"


def called(function: object) -> str:
    """What a function is called in a message."""
    if isinstance(function, partial):
        return f"a partial of {called(function.func)}"
    name: str = getattr(function, "__qualname__", "") or (
        type(function).__qualname__ if callable(function) else repr(function)
    )
    return name.rpartition("<locals>.")[2].replace("<lambda>", "a lambda")
