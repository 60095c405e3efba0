"""The next tick that an entry's own hours let through. What the user's filters will say is not asked. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from qd.schedule.entry import Entry, Filter

YEAR = 366 * 86400.0


def next_of(entry: Entry, now: float) -> float | None:
    """Unix seconds. None: it never comes again, or no tick of a year passes qd's own filters."""
    return passing(entry, now, [each for each in entry.filters if not each.foreign])


def closed(entry: Entry, now: float) -> str:
    """What its ticks of a year are told by its hours, where none of them comes: "outside of 23:00-23:30". Else ""."""
    hours = [each for each in entry.filters if each.shut_until is not None]
    due = entry.timing.next_after(now)
    if not hours or due is None or passing(entry, now, hours) is not None:
        return ""
    return next(each.why for each in hours if not each.passes(due))


def passing(entry: Entry, now: float, filters: Iterable[Filter]) -> float | None:
    """Goes from tick to tick, and over those hours of which a filter knows that it says no."""
    at = entry.timing.next_after(now)
    end = (at or now) + YEAR
    while at is not None and at <= end:
        refuses = next((each for each in filters if not each.passes(at)), None)
        if refuses is None:
            return at
        if refuses.shut_until is None:  # when(False)
            return None
        at = entry.timing.next_after(max(at, refuses.shut_until(at)))
    return None
