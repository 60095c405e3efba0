"""Which ticks an entry takes: times of the day in its own zone, and what the user's functions say."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from tests.support.fakes import FakeQd


def tick() -> None: ...


def takes(entry, moment: str, zone: str = "UTC") -> bool:
    at = datetime.fromisoformat(moment).replace(tzinfo=ZoneInfo(zone)).timestamp()
    return all(each.passes(at) for each in entry.filters)


def declared(say, zone="UTC"):
    app = FakeQd()
    say(app.schedule(tick).every_minute().timezone(zone))
    (entry,) = app.schedule.entries()
    return entry


@pytest.mark.parametrize(
    ("time", "within"),
    [("07:59:59", False), ("08:00", True), ("12:00", True), ("17:00", True), ("17:00:01", False), ("23:00", False)],
)
def test_between_counts_both_ends(time, within):
    assert takes(declared(lambda entry: entry.between("8:00", "17:00")), f"2026-11-21T{time}") is within
    assert takes(declared(lambda entry: entry.unless_between("8:00", "17:00")), f"2026-11-21T{time}") is not within


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
def test_between_goes_over_midnight(time, within):
    assert takes(declared(lambda entry: entry.between("22:00", "6:00")), f"2026-11-21T{time}") is within
    assert takes(declared(lambda entry: entry.unless_between("22:00", "6:00")), f"2026-11-21T{time}") is not within


def test_times_of_the_day_are_those_of_the_entrys_zone_whatever_was_said_first():
    for say in (
        lambda entry: entry.between("8:00", "9:00").timezone("Asia/Tokyo"),
        lambda entry: entry.timezone("Asia/Tokyo").between("8:00", "9:00"),
    ):
        entry = declared(say)
        assert takes(entry, "2026-11-21T08:30", "Asia/Tokyo")
        assert not takes(entry, "2026-11-21T08:30", "UTC")


def test_the_zone_of_an_entry_that_counts_seconds_is_that_of_its_times():
    app = FakeQd()
    app.schedule(tick).every(30).timezone("Asia/Tokyo").between("8:00", "9:00")
    (entry,) = app.schedule.entries()
    assert takes(entry, "2026-11-21T08:30", "Asia/Tokyo")


def test_in_summer_the_clock_on_the_wall_counts():
    entry = declared(lambda entry: entry.between("8:00", "9:00"), "Europe/Berlin")
    assert takes(entry, "2026-07-01T06:30")
    assert takes(entry, "2026-12-01T07:30")
    assert not takes(entry, "2026-12-01T06:30")


def test_all_filters_must_pass_and_each_says_why():
    open_, entry = [True], declared(lambda entry: entry.when(lambda: open_[0]).skip(tick).between("8:00", "17:00"))
    assert takes(entry, "2026-11-21T12:00")
    open_[0] = False
    assert not takes(entry, "2026-11-21T12:00")
    assert [each.why for each in entry.filters] == [
        "when(a lambda) said no",
        "skip(tick) said yes",
        "outside of 08:00-17:00",
    ]
    assert [each.foreign for each in entry.filters] == [True, True, False]


@pytest.mark.parametrize(("say", "taken"), [("when", True), ("skip", False)])
def test_true_and_false_will_do(say, taken):
    assert takes(declared(lambda entry: getattr(entry, say)(True)), "2026-11-21T12:00") is taken
    assert takes(declared(lambda entry: getattr(entry, say)(False)), "2026-11-21T12:00") is not taken
