"""Zones whose clocks are changed, each in its own way, and when: years whose changes are known for good."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from functools import cache
from zoneinfo import ZoneInfo

YEARS = {
    "Europe/Berlin": 2025,  # at 2:00
    "America/New_York": 2025,
    "Australia/Lord_Howe": 2025,  # by half an hour
    "America/St_Johns": 2025,  # an offset of 3:30
    "America/Havana": 2025,  # at midnight, so that the day begins at 1:00, and has midnight twice
    "America/Santiago": 2025,  # back from midnight to the day before
    "Africa/Cairo": 2025,
    "Africa/Casablanca": 2025,  # back for Ramadan
    "Pacific/Apia": 2011,  # no 30 December
    "Asia/Kolkata": 2025,  # never
    "UTC": 2025,
}
QUARTER = 900


@cache
def changes(zone: str) -> tuple[int, ...]:
    """The unix seconds at which the clock is changed in this zone's year."""
    return changes_in(zone, YEARS[zone])


def changes_in(zone: str, year: int) -> tuple[int, ...]:
    where = ZoneInfo(zone)
    start = int(datetime(year, 1, 1, tzinfo=UTC).timestamp())
    offsets = [
        (moment, datetime.fromtimestamp(moment, where).utcoffset())
        for moment in range(start, start + 366 * 86400, QUARTER)
    ]
    return tuple(moment for (_, old), (moment, new) in itertools.pairwise(offsets) if old != new)


def wall(moment: float, zone: str) -> str:
    """As the clock on the wall there shows it: "2025-03-30 03:00:00+0200"."""
    return datetime.fromtimestamp(moment, ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M:%S%z")
