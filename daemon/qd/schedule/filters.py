"""What an entry asks of a tick before it is taken: the user's own questions, and times of the day."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime, time, timedelta

from qd.schedule.entry import Filter
from qd.schedule.names import called
from qd.schedule.zones import zone_of

DAY = timedelta(days=1)


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
    return Filter(
        lambda at: within(at, start, end, zone),
        f"outside of {start:%H:%M}-{end:%H:%M}",
        shut_until=lambda at: comes(start, at, zone) - 0.001,
    )


def unless_between(start: time, end: time, zone: str) -> Filter:
    return Filter(
        lambda at: not within(at, start, end, zone),
        f"within {start:%H:%M}-{end:%H:%M}",
        shut_until=lambda at: comes(end, at, zone),
    )


def within(at: float, start: time, end: time, zone: str) -> bool:
    now = datetime.fromtimestamp(at, zone_of(zone)).time()
    return start <= now <= end if start <= end else now >= start or now <= end


def comes(hour: time, at: float, zone: str) -> float:
    """When clocks show this time of the day next, not earlier than `at`. Where a change of the clock comes first: the moment
    before it, as behind it the hours are others."""
    wall = datetime.fromtimestamp(at, zone_of(zone))
    found = at + ((datetime.combine(wall, hour) - wall.replace(tzinfo=None)) % DAY).total_seconds()
    if ahead(found, zone) == ahead(at, zone):
        return found
    before, behind = at, found
    while behind - before > 0.001:
        middle = (before + behind) / 2
        before, behind = (middle, behind) if ahead(middle, zone) == ahead(at, zone) else (before, middle)
    return before


def ahead(at: float, zone: str) -> timedelta | None:
    """Of UTC, at that moment."""
    return datetime.fromtimestamp(at, zone_of(zone)).utcoffset()
