"""The next tick that the hours of an entry let through."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from qd.schedule.entry import closed, next_of
from tests.support.fakes import FakeQd


def tick() -> None: ...


def at(moment: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(moment).replace(tzinfo=ZoneInfo(zone)).timestamp()


def declared(say):
    app = FakeQd()
    say(app.schedule(tick).name("one"))
    (entry,) = app.schedule.entries()
    return entry


NOON = at("2026-11-21T12:00")


@pytest.mark.parametrize(
    ("say", "moment"),
    [
        (lambda one: one.every_two_seconds().between("0:00", "0:01"), "2026-11-22T00:00"),
        (lambda one: one.every_second().between("0:00", "0:01").unless_between("23:00", "0:00"), "2026-11-22T00:00:01"),
        (lambda one: one.every_minute().unless_between("8:00", "17:00"), "2026-11-21T17:01"),
        (lambda one: one.every_minute().between("22:00", "6:00"), "2026-11-21T22:00"),
        (lambda one: one.every(seconds=0.05).unless_between("11:00", "13:00"), "2026-11-21T13:00:00.050"),
        (lambda one: one.monthly().between("0:00", "1:00"), "2026-12-01T00:00"),
        (lambda one: one.cron("0 0 29 2 *").between("0:00", "1:00"), "2028-02-29T00:00"),
        (lambda one: one.cron("0 0 29 2 *"), "2028-02-29T00:00"),
        (lambda one: one.hourly().when(lambda: False), "2026-11-21T13:00"),  # the user's, not asked
    ],
)
def test_it_is_found_however_far_it_is(say, moment):
    assert next_of(declared(say), NOON) == at(moment)


@pytest.mark.parametrize(
    ("say", "why"),
    [
        (lambda one: one.daily().between("23:00", "23:30"), "outside of 23:00-23:30"),
        (lambda one: one.daily().unless_between("23:00", "1:00"), "within 23:00-01:00"),
        (
            lambda one: one.every_second().between("8:00", "9:00").unless_between("7:00", "9:00"),
            "outside of 08:00-09:00",
        ),
        (lambda one: one.cron("0 0 29 2 *").between("8:00", "9:00"), "outside of 08:00-09:00"),
        (lambda one: one.daily().when(False), ""),  # switched off: meant
    ],
)
def test_hours_that_are_never_met(say, why):
    entry = declared(say)
    assert (next_of(entry, NOON), closed(entry, NOON)) == (None, why)


@pytest.mark.parametrize("opens", ["2:10", "2:30", "1:50", "3:00", "2:00"])
@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25", "2026-06-01"])
@pytest.mark.parametrize("word", ["between", "unless_between"])
def test_a_change_of_the_clock_hides_no_tick(opens, day, word):
    entry = declared(lambda one: getattr(one.every(60), word)("1:05", opens).timezone("Europe/Berlin"))
    (asks,) = entry.filters
    start = int(at(day, "Europe/Berlin")) - 3600
    ticks = range(start, start + 30 * 3600, 60)
    open_ = [moment for moment in ticks if asks.passes(moment)]
    found, now = [], float(start - 1)
    while (now := next_of(entry, now) or 0) and now < ticks[-1] + 60:
        found.append(now)
    assert found == open_
