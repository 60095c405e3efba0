"""Human units to numbers: "5m" -> 300.0 seconds, "128M" -> bytes; near misses of a word.

Options, configuration, jobs and the command line ask here. Errors are ValueErrors that say the way out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

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
