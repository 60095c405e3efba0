"""What an entry asks of a tick before it is taken: the user's own questions, and times of the day."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime, time

from qd.schedule.entry import Filter
from qd.schedule.names import called
from qd.schedule.zones import zone_of


def when(answer: Callable[[], object] | bool) -> Filter:
    """Ticks are taken while it says yes. Raises ValueError: it cannot be asked."""
    return Filter(*_asked(answer, "when"), foreign=callable(answer))


def skip(answer: Callable[[], object] | bool) -> Filter:
    """Ticks are taken while it says no. Raises ValueError: it cannot be asked."""
    asks, why = _asked(answer, "skip")
    return Filter(lambda at: not asks(at), why, foreign=callable(answer))


def _asked(answer: Callable[[], object] | bool, word: str) -> tuple[Callable[[float], object], str]:
    why = f"{word}({called(answer)}) said {'no' if word == 'when' else 'yes'}"
    if isinstance(answer, bool):
        return lambda at: answer, why
    asks = answer  # a bool no more, which mypy forgets in a lambda
    if not callable(asks):
        raise ValueError(f"{word}({answer!r}) cannot be asked: give a function without arguments, or True or False")
    if inspect.iscoroutinefunction(asks):
        raise ValueError(f"{word}({called(answer)}) is async, and would always be true: give a def")
    return lambda at: asks(), why


def between(start: time, end: time, zone: str) -> Filter:
    """Both ends count; an end before its start is one of the next day. zone: whose clocks are meant."""
    text = f"{start:%H:%M}-{end:%H:%M}"
    return Filter(lambda at: within(at, start, end, zone), f"outside of {text}")


def unless_between(start: time, end: time, zone: str) -> Filter:
    text = f"{start:%H:%M}-{end:%H:%M}"
    return Filter(lambda at: not within(at, start, end, zone), f"within {text}")


def within(at: float, start: time, end: time, zone: str) -> bool:
    now = datetime.fromtimestamp(at, zone_of(zone)).time()
    return start <= now <= end if start <= end else now >= start or now <= end
