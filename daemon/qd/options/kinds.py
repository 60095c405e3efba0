"""Kinds of values: what a file, a variable, a flag or a programmer wrote -> the value held. Options name their kind.

Each reader takes its own answers again unchanged, and raises ValueError with the way out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from qd import units
from qd.options.drivers import DRIVERS, SCHEMES, scheme_of

_WORD = re.compile(r"[a-z][a-z0-9_-]*")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):")


def _count(value: object) -> int:
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        value = int(value) if len(value.strip()) < 16 else -1
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**53:
        return value
    raise ValueError(f"{value!r} is not a whole number, 0 or more")


_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word not in _WORDS:
        raise ValueError(f"{value!r} is neither true nor false")
    return _WORDS[word]


def _text(value: object) -> str:
    if isinstance(value, str) and value.isprintable():
        return value
    raise ValueError(f"{value!r} is not a text")


def _name(value: object) -> str:
    if isinstance(value, str) and value.strip():
        return _text(value.strip())
    raise ValueError(f"{value!r} is not a name")


BESIDE = (
    ":delayed",
    ":reserved",
    ":notify",
    ":owners",
    ":paused",
    ":failed",
    ":failed_at",
    ":deaths",
    ":keyed",
    ":qd-taken",
    ":qd-holding",
    ":qd-ended",
    ":qd-sending",
    ":qd-sender",
    ":qd-elsewhere",
    ":qd-resent",
)


def queue_name(value: object) -> str:
    """The name of a queue whose keys are no other queue's. Raises ValueError."""
    name = _name(value)
    if name.endswith(BESIDE):
        queue, _, word = name.rpartition(":")
        raise ValueError(
            f"'{name}' is no queue: ':{word}' is the ending of a key of queue '{queue}', choose another name"
        )
    return name


def _queues(value: object) -> tuple[str, ...]:
    """In order, each once: a queue asked for twice is asked first where it stood first."""
    found = tuple(dict.fromkeys(queue_name(part) for part in _several(value)))
    if not found:
        raise ValueError("an empty list of queues (name one, or leave the line out)")
    return found


def _several(value: object) -> list[object]:
    """One value, a list of them, or text with commas between them."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return list(value) if isinstance(value, Sequence) else [value]


DATABASES = tuple(DRIVERS["database"].schemes)


def _names(value: object) -> tuple[str, ...]:
    """Names in order, each once."""
    return tuple(dict.fromkeys(_name(part) for part in _several(value)))


def _texts(value: object) -> tuple[str, ...]:
    return tuple(_text(part) for part in _several(value))


def _spans(value: object) -> tuple[float, ...]:
    found = tuple(units.span(part) for part in _several(value))
    if not found:
        raise ValueError("an empty list of waits (0 retries at once)")
    return found


_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def _reference(value: object) -> str:
    """Something in a module, by both names."""
    if isinstance(value, str) and (value == "" or _REFERENCE.fullmatch(value.strip())):
        return value.strip()
    raise ValueError(f"{value!r} is not written MODULE:ATTRIBUTE (shop.aws:provider)")


def _driver(value: object) -> str:
    """The word of a driver: one of ours, or what the app calls its own (app.extend). "" where the url says it."""
    if value == "" or (isinstance(value, str) and _WORD.fullmatch(value)):
        return value
    near = units.did_you_mean(str(value), DRIVERS)
    raise ValueError(f"unknown driver {value!r}{near} (known: {', '.join(DRIVERS)})")


def _url(value: object) -> str:
    """A url whose kind is known. Only the kind is ever shown: the rest may be a password."""
    text = value.strip() if isinstance(value, str) else ""
    match = _SCHEME.match(text)
    if match is None or not text.isprintable():
        raise ValueError("not a url (written redis://host:6379/0)")
    scheme = scheme_of(text)
    if scheme in SCHEMES and (scheme == "embedded" or text.startswith("//", match.end())):
        return text
    near = units.did_you_mean(match[1], SCHEMES)
    raise ValueError(
        f"unknown kind of url '{match[1]}:'{near} (written redis://host:6379/0; known: {', '.join(SCHEMES)})"
    )


_SIGNING_KEY = re.compile(r"[A-Za-z0-9_-]{1,32}:[^\s,]+")


def _keys(value: object) -> tuple[str, ...]:
    """Signing keys. What is wrong in one is told without showing it."""
    found = _several(value)
    for number, key in enumerate(found, 1):
        if not isinstance(key, str) or not _SIGNING_KEY.fullmatch(key):
            raise ValueError(
                f"signing key {number} is not written ID:SECRET or ID:file:PATH (ID: up to 32 letters, digits, - and _)"
            )
    return tuple(str(key) for key in found)


def _until(value: object) -> str:
    if value in ("start", "done"):
        return str(value)
    raise ValueError(f"{value!r} is neither 'start' nor 'done'")


def _database(value: object) -> str:
    """A url as SQLAlchemy reads it. Only its kind is ever shown."""
    text = value.strip() if isinstance(value, str) else ""
    kind = text.partition(":")[0].partition("+")[0]
    if kind not in DATABASES or "://" not in text or not text.isprintable():
        raise ValueError(f"not the url of a database (known: {', '.join(f'{name}://' for name in DATABASES)})")
    return text


def _zone(value: object) -> str:
    """The name of a time zone that is installed here. UTC always is."""
    name = _name(value)
    if name == "UTC":
        return name
    from zoneinfo import ZoneInfo, available_timezones  # read where one is named

    try:
        ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        known = available_timezones()
        if not known:
            raise ValueError(f"time zone '{name}' is not here, nor any other: pip install tzdata") from None
        near = "" if name.isupper() else units.did_you_mean(name, known)  # who writes CEST does not mean EST
        raise ValueError(f"unknown time zone '{name}'{near} (written Europe/Berlin)") from None
    return name


def _middleware(value: object) -> tuple[Any, ...]:
    """What each of them must be like is looked at where the job's name is known: jobs/stages.py."""
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)


def _arguments(value: object) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise ValueError(f"{value!r} is not a table of arguments (written {{days = 7}})")


KINDS: dict[str, Callable[[object], Any]] = {
    "count": _count,
    "span": units.span,
    "spans": _spans,
    "size": units.size,
    "switch": _switch,
    "text": _text,
    "name": _name,
    "url": _url,
    "driver": _driver,
    "reference": _reference,
    "database": _database,
    "keys": _keys,
    "names": _names,
    "queue": queue_name,
    "queues": _queues,
    "texts": _texts,
    "until": _until,
    "zone": _zone,
    "arguments": _arguments,
    "middleware": _middleware,
}
