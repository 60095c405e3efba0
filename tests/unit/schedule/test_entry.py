"""Which ticks an entry takes: hours of the day in its own time zone, and the user's filters."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from qd.schedule.entry import closed, next_of
from tests.support.fakes import FakeQd


def tick() -> None: ...


def at(moment: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(moment).replace(tzinfo=ZoneInfo(zone)).timestamp()


def declared(configure):
    app = FakeQd()
    configure(app.schedule(tick))
    (entry,) = app.schedule.entries()
    return entry


NOON = at("2026-11-21T12:00")


@pytest.mark.parametrize(
    ("configure", "moment"),
    [
        (lambda one: one.every_two_seconds().between("0:00", "0:01"), "2026-11-22T00:00"),
        (lambda one: one.every_second().between("0:00", "0:01").unless_between("23:00", "0:00"), "2026-11-22T00:00:01"),
        (lambda one: one.every_minute().unless_between("8:00", "17:00"), "2026-11-21T17:01"),
        (lambda one: one.every_minute().between("22:00", "6:00"), "2026-11-21T22:00"),
        (lambda one: one.every(seconds=0.05).unless_between("11:00", "13:00"), "2026-11-21T13:00:00.050"),
        (lambda one: one.monthly().between("0:00", "1:00"), "2026-12-01T00:00"),
        (lambda one: one.cron("0 0 29 2 *").between("0:00", "1:00"), "2028-02-29T00:00"),
        (lambda one: one.cron("0 0 29 2 *"), "2028-02-29T00:00"),
        (lambda one: one.hourly().when(lambda: False), "2026-11-21T13:00"),  # the user's filter is not called
    ],
)
def test_the_next_tick_is_found_however_far_away(configure, moment):
    assert next_of(declared(configure), NOON) == at(moment)


@pytest.mark.parametrize(
    ("configure", "why"),
    [
        (lambda one: one.daily().between("23:00", "23:30"), "outside of 23:00-23:30"),
        (lambda one: one.daily().unless_between("23:00", "1:00"), "within 23:00-01:00"),
        (
            lambda one: one.every_second().between("8:00", "9:00").unless_between("7:00", "9:00"),
            "outside of 08:00-09:00",
        ),
        (lambda one: one.cron("0 0 29 2 *").between("8:00", "9:00"), "outside of 08:00-09:00"),
        (lambda one: one.daily().when(False), ""),  # disabled on purpose
    ],
)
def test_hours_that_exclude_all_ticks_are_reported(configure, why):
    entry = declared(configure)
    assert (next_of(entry, NOON), closed(entry, NOON)) == (None, why)


@pytest.mark.parametrize("opens", ["2:10", "2:30", "1:50", "3:00", "2:00"])
@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25", "2026-06-01"])
@pytest.mark.parametrize("word", ["between", "unless_between"])
def test_a_clock_change_hides_no_tick(opens, day, word):
    entry = declared(lambda one: getattr(one.every(60), word)("1:05", opens).timezone("Europe/Berlin"))
    (asks,) = entry.filters
    start = int(at(day, "Europe/Berlin")) - 3600
    ticks = range(start, start + 30 * 3600, 60)
    open_ = [moment for moment in ticks if asks.passes(moment)]
    found, now = [], float(start - 1)
    while (now := next_of(entry, now) or 0) and now < ticks[-1] + 60:
        found.append(now)
    assert found == open_


def takes(entry, moment: str, zone: str = "UTC") -> bool:
    at = datetime.fromisoformat(moment).replace(tzinfo=ZoneInfo(zone)).timestamp()
    return all(each.passes(at) for each in entry.filters)


def every_minute(configure, zone="UTC"):
    return declared(lambda entry: configure(entry.every_minute().timezone(zone)))


@pytest.mark.parametrize(
    ("time", "within"),
    [("07:59:59", False), ("08:00", True), ("12:00", True), ("17:00", True), ("17:00:01", False), ("23:00", False)],
)
def test_between_includes_both_ends(time, within):
    assert takes(every_minute(lambda entry: entry.between("8:00", "17:00")), f"2026-11-21T{time}") is within
    assert takes(every_minute(lambda entry: entry.unless_between("8:00", "17:00")), f"2026-11-21T{time}") is not within


@pytest.mark.parametrize(
    ("time", "within"),
    [
        ("21:59", False),
        ("22:00", True),
        ("23:59", True),
        ("00:00", True),
        ("06:00", True),
        ("06:01", False),
        ("12:00", False),
    ],
)
def test_between_can_span_midnight(time, within):
    assert takes(every_minute(lambda entry: entry.between("22:00", "6:00")), f"2026-11-21T{time}") is within
    assert takes(every_minute(lambda entry: entry.unless_between("22:00", "6:00")), f"2026-11-21T{time}") is not within


def test_hours_use_the_zone_of_the_entry_in_any_order_of_calls():
    for configure in (
        lambda entry: entry.between("8:00", "9:00").timezone("Asia/Tokyo"),
        lambda entry: entry.timezone("Asia/Tokyo").between("8:00", "9:00"),
    ):
        entry = every_minute(configure)
        assert takes(entry, "2026-11-21T08:30", "Asia/Tokyo")
        assert not takes(entry, "2026-11-21T08:30", "UTC")


def test_the_zone_of_an_interval_entry_applies_to_its_hours():
    app = FakeQd()
    app.schedule(tick).every(30).timezone("Asia/Tokyo").between("8:00", "9:00")
    (entry,) = app.schedule.entries()
    assert takes(entry, "2026-11-21T08:30", "Asia/Tokyo")


def test_hours_use_local_time_in_summer():
    entry = every_minute(lambda entry: entry.between("8:00", "9:00"), "Europe/Berlin")
    assert takes(entry, "2026-07-01T06:30")
    assert takes(entry, "2026-12-01T07:30")
    assert not takes(entry, "2026-12-01T06:30")


def test_all_filters_must_pass_and_each_has_a_reason():
    open_, entry = [True], every_minute(lambda entry: entry.when(lambda: open_[0]).skip(tick).between("8:00", "17:00"))
    assert takes(entry, "2026-11-21T12:00")
    open_[0] = False
    assert not takes(entry, "2026-11-21T12:00")
    assert [each.why for each in entry.filters] == [
        "when(a lambda) returned false",
        "skip(tick) returned true",
        "outside of 08:00-17:00",
    ]
    assert [each.foreign for each in entry.filters] == [True, True, False]


@pytest.mark.parametrize(("say", "taken"), [("when", True), ("skip", False)])
def test_when_and_skip_accept_booleans(say, taken):
    assert takes(every_minute(lambda entry: getattr(entry, say)(True)), "2026-11-21T12:00") is taken
    assert takes(every_minute(lambda entry: getattr(entry, say)(False)), "2026-11-21T12:00") is not taken
