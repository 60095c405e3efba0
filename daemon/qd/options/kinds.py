"""Human units to numbers: "5m" -> 300.0 seconds, "128M" -> bytes; near misses of a word.

Options, configuration, jobs and the command line ask here. Errors are ValueErrors that say the way out.

Kinds of values: what a file, a variable, a flag or a programmer wrote -> the value held. Options name their kind.

Each reader takes its own answers again unchanged, and raises ValueError with the way out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from qd.options.drivers import DRIVERS, SCHEMES, scheme_of

_SPAN = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(ms|s|m|h|d)?")
_SECONDS = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]*)?)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)
_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_LONGEST = 100 * 365 * 86400.0  # a century: what is longer is a mistake, and would overflow a timer somewhere


def span(value: object) -> float:
    """A length of time in seconds: a number, a timedelta, or text like "90", "100ms", "90s", "5m", "30d".

    Raises ValueError; a length is never negative.
    """
    seconds = _seconds(value)
    if not 0 <= seconds <= _LONGEST:
        raise ValueError(f"{value!r} is not a length of time (0 up to 100 years)")
    return seconds


def span_in_code(value: object) -> float:
    """The same in a program, where texts are not taken: those are for files, variables and flags."""
    if not isinstance(value, str):
        return span(value)
    seconds = f"{span(value):g}" if _SPAN.fullmatch(value.strip()) else "300"
    raise ValueError(f"{value!r} is a text: write {seconds}, in seconds, or timedelta(seconds={seconds})")


def _seconds(value: object) -> float:
    if hasattr(value, "total_seconds"):  # a timedelta; importing datetime for it would cost every start 2 ms
        return float(value.total_seconds())
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if abs(value) <= _LONGEST else -1.0  # too long; an integer may even be too long for a float
    if isinstance(value, str) and (match := _SPAN.fullmatch(value.strip())):
        return float(match[1]) * _SECONDS[match[2]]
    raise ValueError(f"{value!r} is not a length of time (seconds, or a text like '100ms', '90s', '5m', '2h', '30d')")


def size(value: object) -> int:
    """A number of bytes: an integer, or text like "512K", "128M", "2G", each step 1024. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        return int(float(match[1]) * _BYTES[match[2].upper()])
    raise ValueError(f"{value!r} is not a size (bytes, or a text like '512K', '128M', '2G')")


def span_text(seconds: float) -> str:
    """A short text that `span` reads as these seconds: 300.0 -> "5m", 60.0 -> "60s", 0.1 -> "100ms", 0 -> "0"."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length and seconds % length == 0 and seconds != 60:
            return f"{int(seconds // length)}{unit}"
    if 0 < seconds < 1 and round(seconds * 1000, 6) % 1 == 0:
        return f"{round(seconds * 1000)}ms"
    text = f"{seconds:.6f}".rstrip("0").rstrip(".")
    return f"{text}s" if seconds else "0"


def size_text(count: int) -> str:
    """The shortest text that `size` reads as these bytes: 134217728 -> "128M", 0 -> "0"."""
    for unit, length in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if count >= length and count % length == 0:
            return f"{count // length}{unit}"
    return str(count)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message: " (did you mean 'timeout'?)" with the known word next to `word`, "" when none is near."""
    import difflib  # only when something is wrong: importing it costs 2 ms

    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean '{near[0]}'?)" if near else ""


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
    found = tuple(span(part) for part in _several(value))
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
    near = did_you_mean(str(value), DRIVERS)
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
    near = did_you_mean(match[1], SCHEMES)
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
        near = "" if name.isupper() else did_you_mean(name, known)  # who writes CEST does not mean EST
        raise ValueError(f"unknown time zone '{name}'{near} (written Europe/Berlin)") from None
    return name


def _middleware(value: object) -> tuple[Any, ...]:
    """What each of them must be like is looked at where the job's name is known: jobs/pipeline.py."""
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)


def _arguments(value: object) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise ValueError(f"{value!r} is not a table of arguments (written {{days = 7}})")


KINDS: dict[str, Callable[[object], Any]] = {
    "count": _count,
    "span": span,
    "spans": _spans,
    "size": size,
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
