"""Kinds of option values: converts what a file, an environment variable, a flag or code contains to the value that qd uses.

    "5m" -> 300.0 seconds    "128M" -> bytes    "mail, default" -> ("mail", "default")

Each parser also accepts its own results, and raises ValueError with a hint. Options name their kind (KINDS).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qd.errors import DeclarationError, QdError
from qd.options.drivers import DRIVERS, SCHEMES, scheme_of

if TYPE_CHECKING:
    from datetime import timedelta

SPAN = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(ms|s|m|h|d)?")
_SECONDS = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SIZE = re.compile(r"([0-9]+(?:\.[0-9]*)?)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)
_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
LONGEST = 100 * 365 * 86400.0  # seconds, a century: more is a mistake, and would overflow a timer


def span(value: object) -> float:
    """A duration in seconds: a number, a timedelta, or text like "90", "100ms", "90s", "5m", "30d". Raises ValueError; the
    result is never negative."""
    if hasattr(value, "total_seconds"):  # a timedelta; importing datetime would cost 2 ms at every start
        seconds = float(value.total_seconds())
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value) if abs(value) <= LONGEST else -1.0  # an integer may be too large for a float
    elif isinstance(value, str) and (match := SPAN.fullmatch(value.strip())):
        seconds = float(match[1]) * _SECONDS[match[2]]
    else:
        raise ValueError(f"{value!r} is not a duration (seconds, or text like '100ms', '90s', '5m', '2h', '30d')")
    if not 0 <= seconds <= LONGEST:
        raise ValueError(f"{value!r} is not a duration (0 up to 100 years)")
    return seconds


def span_in_code(value: object) -> float:
    """A duration in code, where text is refused: it is for files, variables and flags."""
    if not isinstance(value, str):
        return span(value)
    if not SPAN.fullmatch(value.strip()):
        raise ValueError(f"{value!r} is text: write seconds, or a timedelta")
    raise ValueError(f"{value!r} is text: write {span(value):g}, in seconds, or timedelta(seconds={span(value):g})")


def seconds_of(what: str, value: object, error: type[QdError] = DeclarationError) -> float:
    """As span_in_code. Raises `error`, which names `what`."""
    try:
        return span_in_code(value)
    except ValueError as reason:
        raise error(f"{what}: {reason}") from None


def size(value: object) -> int:
    """A number of bytes: an integer, or text like "512K", "128M", "2G" in steps of 1024. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and (match := SIZE.fullmatch(value.strip())):
        return int(float(match[1]) * _BYTES[match[2].upper()])
    raise ValueError(f"{value!r} is not a size (bytes, or text like '512K', '128M', '2G')")


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


def count(number: int, thing: str) -> str:
    """`1 master`, `2 masters`, `0 entries`."""
    plural = f"{thing[:-1]}ies" if thing.endswith("y") else f"{thing}s"
    return f"{number} {thing if number == 1 else plural}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message, " (did you mean 'timeout'?)", or "" if no known word is similar."""
    import difflib  # only for errors: the import costs 2 ms

    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean '{near[0]}'?)" if near else ""


def number(value: Any, least: float, most: float) -> float:
    """A number in this range, also as text. Raises ValueError."""
    with suppress(TypeError, ValueError):
        if not isinstance(value, bool) and least <= float(value) <= most:
            return float(value)
    raise ValueError(f"{value!r} is not a number from {least:g} to {most:g}")


def share(value: object) -> float:
    return number(value, 0, 1)


WORD = re.compile(r"[a-z][a-z0-9_-]*")


def _count(value: object) -> int:
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        value = int(value) if len(value.strip()) < 16 else -1
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**53:
        return value
    raise ValueError(f"{value!r} is not a whole number, 0 or more")


WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word not in WORDS:
        raise ValueError(f"{value!r} is neither true nor false")
    return WORDS[word]


def _text(value: object) -> str:
    if isinstance(value, str) and value.isprintable():
        return value
    raise ValueError(f"{value!r} is not text")


def _name(value: object) -> str:
    if isinstance(value, str) and value.strip():
        return _text(value.strip())
    raise ValueError(f"{value!r} is not a name" + ("" if isinstance(value, str) else ": write text, in quotes"))


QUEUE_SUFFIXES = (
    ":delayed", ":reserved", ":notify", ":owners", ":paused", ":failed", ":failed_at", ":deaths", ":keyed", ":qd-taken",
    ":qd-holding", ":qd-ended", ":qd-sending", ":qd-sender", ":qd-elsewhere", ":qd-resent", ":suspects",
)  # fmt: skip
"""Suffixes of the keys of a queue, in the order of their functions in drivers/keyspace/keys.py."""


_WEIGHTED = re.compile(r"(.+)=([0-9]{1,9})")  # a name may contain "=": only digits at the end are a weight
HEAVIEST = 1000


def queue_name(value: object) -> str:
    """The name of a queue whose keys belong to no other queue. Raises ValueError."""
    name = _name(value)
    if name.endswith(QUEUE_SUFFIXES):
        queue, _, word = name.rpartition(":")
        raise ValueError(f"'{name}' cannot be a queue: it is a key of queue '{queue}' (':{word}'), choose another name")
    return name


def _queues(value: object) -> tuple[str, ...]:
    """Each a name, or NAME=WEIGHT."""
    found = tuple(dict.fromkeys([_name(part) for part in _several(value)]))
    if not found:
        raise ValueError("an empty list of queues (name one, or omit the line)")
    names_and_weights(found)
    return found


def names_and_weights(queues: Sequence[str]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The names and weights of queues as they are written; () without weights. Raises ValueError: some have none."""
    pairs = [_WEIGHTED.fullmatch(each) for each in queues]
    names = tuple([queue_name(pair[1] if pair else each) for pair, each in zip(pairs, queues, strict=True)])
    bare = [name for name, pair in zip(names, pairs, strict=True) if pair is None]
    if len(bare) == len(names):
        return names, ()
    if bare:
        weighted = next(pair[0] for pair in pairs if pair)
        raise ValueError(f"'{bare[0]}' has no weight, and '{weighted}' has: write {bare[0]}=1, or no weights")
    if double := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"queue '{double[0]}' has two weights: name it once")
    weights = tuple([int(pair[2]) for pair in pairs if pair])
    if not all(0 < weight <= HEAVIEST for weight in weights):
        place = next(place for place, weight in enumerate(weights) if not 0 < weight <= HEAVIEST)
        raise ValueError(f"the weight of '{queues[place]}' is not 1 to {HEAVIEST} (omit a queue that is not served)")
    return names, weights


def _several(value: object) -> list[object]:
    """One value, a list of values, or text separated by commas."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return list(value) if isinstance(value, Sequence) else [value]


def _names(value: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_name(part) for part in _several(value)))


@dataclass(frozen=True, init=False, slots=True)
class Backoff:
    """Waits between attempts that grow by `factor` up to `max`: 1 s, 2 s, 4 s, ... at most 10 minutes by default.

    Args:
        first: Wait after the first attempt: seconds, a timedelta, or text like "5s".
        factor: Each wait is this many times the one before, 1 to 1000.
        max: Longest wait: seconds, a timedelta, or text like "10m".
        jitter: Up to this share of a wait, 0 to 1, is added at random. None: what the option `jitter` says, 0.1.

    Raises:
        DeclarationError: A value is invalid.

    Example:
        `@app.job(tries=8, backoff=Backoff(first=5, factor=3, max="1h"))` waits 5 s, 15 s, 45 s, ...
    """

    first: float
    factor: float
    max: float
    jitter: float | None

    def __init__(
        self,
        first: float | timedelta | str = 1,
        factor: float = 2,
        max: float | timedelta | str = "10m",
        jitter: float | None = None,
    ) -> None:
        for name, kind, value in (
            ("first", span, first), ("factor", lambda value: number(value, 1, 1000), factor), ("max", span, max),
            ("jitter", lambda value: None if value is None else share(value), jitter),
        ):  # fmt: skip
            try:
                object.__setattr__(self, name, kind(value))
            except ValueError as error:
                raise DeclarationError(f"{name} of Backoff: {error}") from None
        if not 0 < self.first <= self.max:
            way = f"{self.first:g} s is not more than 0, at most max ({self.max:g} s)"
            raise DeclarationError(f"first of Backoff: {way}")


EXPONENTIAL = Backoff()


def _spans(value: object) -> tuple[float, ...] | Backoff:
    if isinstance(value, Backoff):
        return value
    if isinstance(value, str) and value.strip() == "exponential":
        return EXPONENTIAL
    if isinstance(value, str) and value.strip()[:1].isalpha():
        raise ValueError(f"{value!r} is neither 'exponential' nor durations (1, 5, 10)")
    found = tuple(span(part) for part in _several(value))
    if not found:
        raise ValueError("an empty list of waits (0 retries at once)")
    return found


def _errors(value: object) -> tuple[type[Exception], ...]:
    found = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    for each in found or (found,):  # an empty list is a mistake, too
        if not (isinstance(each, type) and issubclass(each, Exception)):
            named = getattr(each, "__name__", repr(each))
            raise ValueError(f"{named} is not a type of errors that a job raises (write (ValueError,))")
    return found


REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def _reference(value: object) -> str:
    if isinstance(value, str) and (value == "" or REFERENCE.fullmatch(value.strip())):
        return value.strip()
    raise ValueError(f"{value!r} is not of the form MODULE:ATTRIBUTE (shop.aws:provider)")


def _driver(value: object) -> str:
    """The name of a driver: qd's, or the app's own (app.extend). "" if the url determines it."""
    if value == "" or (isinstance(value, str) and WORD.fullmatch(value)):
        return value
    near = did_you_mean(str(value), DRIVERS)
    raise ValueError(f"unknown driver {value!r}{near} (known: {', '.join(DRIVERS)})")


DJANGO = "DJANGO_SETTINGS_MODULE"  # the variable of a Django project
IN_DJANGO = 'QD = {"url": "django://default"}'  # in its settings, see contrib/django/database.py


def _url(value: object) -> str:
    """A url of a known kind. Messages show the kind only: the rest may contain a password."""
    text = value.strip() if isinstance(value, str) else ""
    scheme, (kind, _, rest) = scheme_of(text), text.partition(":")
    if not scheme or not text.isprintable():
        raise ValueError("not a url (write redis://host:6379/0)")
    if scheme in SCHEMES and (scheme == "embedded" or rest.startswith("//")):
        return text
    if scheme in SCHEMES:
        example = "unix:///run/redis.sock" if scheme == "unix" else f"{kind}://..."
        raise ValueError(f"a url of kind '{kind}:' needs two slashes (write {example})")
    if scheme == "django":
        raise ValueError(f"a url of kind 'django:' is for Django's settings only ({IN_DJANGO})")
    known = f"write redis://host:6379/0; known: {', '.join(SCHEMES)}, and django in Django's settings"
    raise ValueError(f"unknown kind of url '{kind}:'{did_you_mean(kind, [*SCHEMES, 'django'])} ({known})")


KEY = re.compile(r"[A-Za-z0-9_-]{1,32}:[^\s,]+")


def _keys(value: object) -> tuple[str, ...]:
    """Keys of [signing] and [encryption]. Messages do not show them."""
    found = _several(value)
    for number, key in enumerate(found, 1):
        if not isinstance(key, str) or not KEY.fullmatch(key):
            form = "ID:SECRET or ID:file:PATH (ID: up to 32 letters, digits, - and _)"
            raise ValueError(f"key {number} is not {form}")
    return tuple(str(key) for key in found)


USER = re.compile(r"([^:,\s][^:,]*):(read|operate|write):(scrypt\$[0-9a-f]{32}\$[0-9a-f]{128})")


def _users(value: object) -> tuple[str, ...]:
    """Users of the dashboard; text has one on each line, or commas between them. Messages do not show their hashes."""
    found, names = re.split(r"[,\n]", value) if isinstance(value, str) else _several(value), set[str]()
    for number, user in enumerate(found, 1):
        if not isinstance(user, str) or not (match := USER.fullmatch(user.strip())):
            form = "NAME:LEVEL:HASH, where LEVEL is read, operate or write, and `qd dashboard --hash` prints the HASH"
            raise ValueError(f"user {number} is not {form}")
        if match[1] in names:
            raise ValueError(f"two users have the name '{match[1]}' (rename one of them)")
        names.add(match[1])
    return tuple(str(user).strip() for user in found)


PREFIX = re.compile(r"(/[\w.~-]+)*")


def _prefix(value: object) -> str:
    if isinstance(value, str) and PREFIX.fullmatch(value):
        return value
    raise ValueError(f"{value!r} is not the beginning of a path (write /qd)")


def _http(value: object) -> str:
    """Messages do not show it: such a url is often a secret."""
    if isinstance(value, str) and value.isprintable() and (not value or value.startswith(("http://", "https://"))):
        return value
    raise ValueError("not an http:// or https:// url")


def _until(value: object) -> str:
    if value in ("start", "done"):
        return str(value)
    raise ValueError(f"{value!r} is neither 'start' nor 'done'")


def _database(value: object) -> str:
    """A url for SQLAlchemy. Messages show its kind only."""
    text = value.strip() if isinstance(value, str) else ""
    kind = text.partition(":")[0].partition("+")[0]
    databases = DRIVERS["database"].schemes
    if kind not in databases or "://" not in text or not text.isprintable():
        raise ValueError(f"not the url of a database (known: {', '.join(f'{name}://' for name in databases)})")
    return text


def _zone(value: object) -> str:
    """The name of an installed time zone, or UTC."""
    name = _name(value)
    if name == "UTC":
        return name
    from zoneinfo import ZoneInfo, available_timezones  # only if a zone is named

    try:
        ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        known = available_timezones()
        if not known:
            raise ValueError(f"time zone '{name}' is not installed, nor any other: pip install tzdata") from None
        near = "" if name.isupper() else did_you_mean(name, known)  # CEST is not a typo of EST
        raise ValueError(f"unknown time zone '{name}'{near} (write Europe/Berlin)") from None
    return name


def _middleware(value: object) -> tuple[Any, ...]:
    """jobs/pipeline.py checks the elements, where the job's name is known."""
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)


def _upgrade(value: object) -> tuple[Any, ...]:
    """Functions by the version that they upgrade from, 1 to the last one without a gap. jobs/versions.py checks them."""
    if isinstance(value, tuple):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is not a dict of functions (write {{1: from_v1}})")
    if gap := [number for number in range(1, len(value) + 1) if number not in value]:
        keys = ", ".join(map(repr, value))
        raise ValueError(f"it has no function for version {gap[0]} (keys: {keys}); give one for each from 1 on")
    return tuple([value[number] for number in range(1, len(value) + 1)])


def _arguments(value: object) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise ValueError(f"{value!r} is not a table of arguments (write {{days = 7}})")


KINDS: dict[str, Callable[[object], Any]] = {
    "count": _count, "span": span, "spans": _spans, "size": size, "switch": _switch, "text": _text, "name": _name,
    "texts": lambda value: tuple(_text(part) for part in _several(value)), "names": _names,
    "queue": queue_name, "queues": _queues, "url": _url, "driver": _driver, "database": _database,
    "reference": _reference, "keys": _keys, "zone": _zone, "until": _until, "arguments": _arguments,
    "middleware": _middleware, "upgrade": _upgrade, "errors": _errors, "share": share, "users": _users, "prefix": _prefix,
    "http": _http,
}  # fmt: skip
