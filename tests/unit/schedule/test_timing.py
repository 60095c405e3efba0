"""Cron expressions: which are valid, and their ticks around clock changes, compared with a model of Debian's cron."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qd.options.kinds import KINDS
from qd.schedule.timing import ALIASES, Cron, Every, Ticks, read
from tests.support import cron
from tests.support.cron import YEARS, changes, changes_in, wall
from tests.support.pages import NIGHTS, ROOT, clock_table
from tests.support.project import SOURCE

SAME = [
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@Daily", "0 0 * * *"),
    ("  0   0 * *\t* ", "0 0 * * *"),
    ("0 0 7 * * *", "0 7 * * *"),
    ("0 0 * jan mon-fri", "0 0 * JAN MON-FRI"),
    ("0 0 * * sat-sun", "0 0 * * SAT-7"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_equal_expressions_have_equal_marks(one: str, other: str) -> None:
    assert Cron(one).mark == Cron(other).mark
    assert Cron(one).next_after(1e9) == Cron(other).next_after(1e9)
    assert Cron(one).text == one


def test_a_range_may_end_on_a_sunday() -> None:
    for expression, days in (
        ("0 0 * * SAT-SUN", 2),
        ("0 0 * * MON-SUN", 7),
        ("0 0 * * SUN-SUN", 1),
        ("0 0 * * 0-SUN", 1),
    ):
        at, found = 0.0, 0
        while (at := Cron(expression).next_after(at) or 0.0) <= 7 * 86400:
            found += 1
        assert found == days, expression


def test_different_zones_or_expressions_have_different_marks() -> None:
    marks = {Cron("0 7 * * *").mark, Cron("0 8 * * *").mark, Cron("0 7 * * *", "Europe/Berlin").mark}
    assert len(marks) == 3


WRONG = [
    ("60 * * * *", "'60' is not valid for the minute (0-59"),
    ("60 0 * * * *", "'60' is not valid for the second (0-59"),
    ("0 25 * * *", "'25' is not valid for the hour (0-23"),
    ("0 1,2,24 * * *", "'24' is not valid for the hour"),
    ("0 0 0 * *", "'0' is not valid for the day of the month (1-31"),
    ("0 0 * FOO *", "'FOO' is not valid for the month (1-12 or JAN-DEC"),
    ("0 0 * * 8", "'8' is not valid for the day of the week (0-7 or SUN-SAT"),
    ("0 0 * * FRI-MON", "'FRI-MON' is not valid for the day of the week"),
    ("0 0 * * 1#6", "'1#6' is not valid for the day of the week"),
    ("*/0 * * * *", "'*/0' is not valid for the minute"),
    ("1,,2 * * * *", "'1,,2' is not valid for the minute"),
    ("0 0 ? * 1", "'?' is not valid for the day of the month"),
    ("0 0 15W * *", "'15W' is not valid for the day of the month"),
    ("-1 * * * *", "'-1' is not valid for the minute"),
    ("٣ * * * *", "'٣' is not valid for the minute"),
    ("", "has 0 fields, not 5"),
    ("* * * *", "has 4 fields, not 5"),
    ("0 0 0 1 1 * 2026", "has 7 fields, not 5"),
    ("@dayly", "unknown cron expression '@dayly' (did you mean '@daily'?)"),
    ("@reboot", "do it when the program starts"),
    ("0 0 31 2 *", "never comes: no day fits day of the month '31', month '2'"),
    ("0 0 30 FEB *", "never comes"),
    ("0 0 31 4,6,9,11 *", "never comes"),
    ("0 0 30-31 2 */2", "never comes"),
    (
        "0 0 */30 2 1#2",
        "never comes",
    ),  # both must match, because one begins with a star: the 1st is never a second Monday
]


@pytest.mark.parametrize(("expression", "message"), WRONG, ids=[expression for expression, _ in WRONG])
def test_a_wrong_expression_is_refused_with_the_reason(expression: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Cron(expression)
    text = str(caught.value)
    assert message in text
    assert "\n" not in text
    if "cannot stand" in text or "fields" in text:
        assert "'0 7 * * *'" in text, "no example"


RARE = [
    ("0 0 29 2 *", (2028, 2, 29)),
    ("0 0 * 2 MON#5", (2044, 2, 29)),
    ("0 0 30 2 1", (2026, 2, 2)),  # one of them must match, because no field begins with a star: Mondays of February
    ("0 0 31 2,3 *", (2026, 3, 31)),
]


@pytest.mark.parametrize(("expression", "day"), RARE)
def test_rare_expressions_are_accepted(expression: str, day: tuple[int, int, int]) -> None:
    assert (
        Cron(expression).next_after(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
        == datetime(*day, tzinfo=UTC).timestamp()
    )


@pytest.mark.parametrize("at", [2e11, 253402300799.0, 1e17, float("inf")])
def test_there_are_no_ticks_after_the_end_of_the_calendar(at: float) -> None:
    """A store edited by hand may contain such a time."""
    assert Cron("@daily", "Europe/Berlin").next_after(at) is None
    assert Cron("@daily").next_after(at) is None
    assert Cron("@daily").next_after(86399.5) == 86400


def test_a_value_that_is_not_a_string_is_refused() -> None:
    for value in (None, 5, ["0 7 * * *"]):
        with pytest.raises(ValueError, match="is not a cron expression: write a string"):
            Cron(value)  # type: ignore[arg-type]


ZONES = [
    ("Europe/Berln", "unknown time zone 'Europe/Berln' (did you mean 'Europe/Berlin'?)"),
    ("Mars/Phobos", "unknown time zone 'Mars/Phobos'"),
    ("Europe", "unknown time zone 'Europe'"),
    ("../etc/passwd", "unknown time zone '../etc/passwd'"),
    ("", "is not a name"),
]


@pytest.mark.parametrize(("zone", "message"), ZONES)
def test_an_unknown_zone_is_refused(zone: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Cron("@daily", zone)
    assert message in str(caught.value)
    with pytest.raises(ValueError):
        KINDS["zone"](zone)


BARE = """
import sys, zoneinfo
zoneinfo.reset_tzpath(to=[])
sys.modules["tzdata"] = None
from datetime import time
from qd.cli.schedule.entries import moment
from qd.schedule.builder import hours
from qd.schedule.timing import Cron
print(Cron("0 7 * * *").next_after(0))
print(hours(time(6), time(8), "UTC", True).passes(7 * 3600), moment(0, "UTC"))
try:
    Cron("0 7 * * *", "Europe/Berlin")
except ValueError as error:
    print(error)
"""


def test_a_host_without_zone_data_has_utc_and_gets_a_hint() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", BARE], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(SOURCE)}
    )
    tick, utc, message = ran.stdout.splitlines()
    assert (float(tick), utc) == (7 * 3600, "True 1970-01-01 00:00")
    assert message == "time zone 'Europe/Berlin' is not installed, nor any other: pip install tzdata"


@pytest.mark.parametrize("seconds", [0, -1, 0.001, 0.0105, float("nan"), float("inf")])
def test_an_invalid_interval_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="whole milliseconds"):
        Every(seconds)


def test_ticks_of_an_interval_are_its_multiples() -> None:
    assert Every(10).next_after(1005) == 1010
    assert Every(10).next_after(1010) == 1020
    assert Every(0.1).next_after(1700000000.3) == 1700000000.4
    assert Every(0.25).next_after(0.999) == 1.0
    assert Every(90).next_after(0) == 90


HOUR = 3600
EXPRESSIONS = [
    "* * * * *",
    "*/20 * * * *",
    "0 * * * *",
    "30 2 * * *",
    "0 0 * * *",
    "5 0,1,2,3 * * *",
    "*/20 2 * * *",
    "*/10 1-3 * * SUN",
    "0-59 2 * * *",
    "45 1-2 L * *",
    "*/30 0 * * *",
    "15 23 * * *",
]


def ticks(expression: str, zone: str, start: float, end: float) -> list[float]:
    """All ticks in (start, end], computed without shared caches."""
    found, reckoner = [], Ticks(read(expression), zone)
    while (start := reckoner.after(start)) <= end:
        found.append(start)
    return found


@pytest.mark.parametrize("zone", YEARS)
def test_each_clock_change_is_handled_as_in_debians_cron(zone: str) -> None:
    for change in changes(zone):
        for expression in EXPRESSIONS:
            span = change - 3 * HOUR, change + 4 * HOUR
            assert ticks(expression, zone, *span) == list(cron.runs(expression, zone, *span)), (expression, change)


@pytest.mark.slow
def test_each_clock_change_in_each_zone_is_handled_as_in_debians_cron() -> None:
    asked = set()
    for zone in sorted(available_timezones()):
        for change in changes_in(zone, 2024) + changes_in(zone, 2026):
            kind = change, wall(change - 1, zone), wall(change, zone)
            span = change - 3 * HOUR, change + 4 * HOUR
            for expression in () if kind in asked else EXPRESSIONS:
                assert ticks(expression, zone, *span) == list(cron.runs(expression, zone, *span)), (expression, zone)
            asked.add(kind)
    assert len(asked) > 100


minutes = st.sampled_from(["*", "*/7", "*/20", "0", "30", "5,35", "0-59", "40-59/5"])
hours = st.sampled_from(["*", "*/2", "0", "1", "2", "1-3", "0,23", "2,3"])
days = st.sampled_from(["*", "*/2", "L", "LW", "1-15", "26-31"])
weekdays = st.sampled_from(["*", "SUN", "SAT-SUN", "1-5", "7", "0#1", "5L", "*/2"])
expressions = st.tuples(minutes, hours, days, st.just("*"), weekdays).map(" ".join)


@st.composite
def moments(draw: st.DrawFn) -> tuple[str, float]:
    """A zone, and a time near one of its clock changes."""
    zone = draw(st.sampled_from(sorted(YEARS)))
    near = draw(st.sampled_from(changes(zone) or (1750000000,)))
    return zone, near + draw(st.integers(-5 * HOUR, 3 * HOUR)) + draw(st.sampled_from([0, 0.25, 0.999999, 0.9999999]))


@given(expressions, moments())
@settings(max_examples=60, deadline=None)
def test_no_tick_is_lost_or_added(expression: str, moment: tuple[str, float]) -> None:
    zone, at = moment
    span = int(at), int(at) + 4 * HOUR
    found = ticks(expression, zone, at, span[1])
    assert found == list(cron.runs(expression, zone, *span))
    assert all(one < other for one, other in pairwise([at, *found]))


@given(expressions, moments(), st.lists(st.integers(-8 * HOUR, 8 * HOUR), max_size=8))
@settings(max_examples=150, deadline=None)
def test_the_next_tick_does_not_depend_on_earlier_queries(
    expression: str, moment: tuple[str, float], asked: list[int]
) -> None:
    zone, at = moment
    used = Cron(expression, zone)
    for away in asked:
        later = used.next_after(at + away)
        assert later is not None
        assert later > at + away
    found = used.next_after(at)
    assert found == Ticks(read(expression), zone).after(at)
    assert found is not None
    between = (at + found) / 2
    assert used.next_after(between) == found or between == found
    assert used.next_after(found - 0.001) == found or found - 0.001 <= at


@given(st.integers(10, 10_000_000), st.floats(0, 2e9))
@settings(max_examples=200)
def test_the_next_tick_of_an_interval_is_strictly_later(ms: int, at: float) -> None:
    beat = Every(ms / 1000)
    found = beat.next_after(at)
    assert found is not None
    assert at < found <= at + ms / 1000 + 0.001
    assert round(found * 1000) % ms == 0
    assert beat.next_after(found) == (round(found * 1000) + ms) / 1000


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
@pytest.mark.parametrize(("expression", "seconds"), [("*/20 * * * * *", 20), ("* * * * *", 60), ("*/15 * * * *", 900)])
def test_an_interval_uses_elapsed_time_across_clock_changes(expression: str, seconds: int, zone: str) -> None:
    for change in changes(zone):
        found = ticks(expression, zone, change - 2 * HOUR, change + 2 * HOUR)
        assert {after - before for before, after in pairwise(found)} == {seconds}


def test_expressions_with_seconds_follow_the_same_rule() -> None:
    """cronsim treats every expression of six fields as an interval: 2:30 would be skipped in spring and doubled in fall."""
    berlin = "Europe/Berlin"
    for change in changes(berlin):
        span = change - 26 * HOUR, change + 26 * HOUR
        assert ticks("0 30 2 * * *", berlin, *span) == ticks("30 2 * * *", berlin, *span)
    spring, autumn = changes(berlin)
    assert [wall(tick, berlin) for tick in ticks("*/30 30 2 * * *", berlin, spring - HOUR, spring + HOUR)] == [
        "2025-03-30 03:00:00+0200"
    ]
    assert [wall(tick, berlin) for tick in ticks("*/30 30 2 * * *", berlin, autumn - HOUR, autumn + HOUR)] == [
        "2025-10-26 02:30:00+0200",
        "2025-10-26 02:30:30+0200",
    ]


def test_minute_steps_within_hours_are_complete_on_the_day_of_a_clock_change() -> None:
    """Adding whole hours would lose 2:00 to 2:20 when the clock changes by half an hour."""
    zone = "Australia/Lord_Howe"
    start = int(datetime(2025, 4, 6, tzinfo=ZoneInfo(zone)).timestamp())
    assert [wall(tick, zone)[11:16] for tick in ticks("*/10 2 * * *", zone, start, start + 4 * HOUR)] == [
        "02:00",
        "02:10",
        "02:20",
        "02:30",
        "02:40",
        "02:50",
    ]


def test_a_skipped_day_has_no_ticks() -> None:
    zone = "Pacific/Apia"
    start = datetime(2011, 12, 29, 13, tzinfo=ZoneInfo(zone)).timestamp()
    assert [wall(tick, zone)[:10] for tick in ticks("0 12 * * *", zone, start, start + 48 * HOUR)] == [
        "2011-12-31",
        "2012-01-01",
    ]


def test_equal_expressions_in_one_zone_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Cron("7 7 * * *", "Europe/Berlin"), Cron("0 7 7 * * *", "Europe/Berlin")
    found = one.next_after(1.75e9)

    def reckoned(self: Ticks, second: int) -> float:
        raise AssertionError("reckoned again")

    monkeypatch.setattr(Ticks, "_fixed", reckoned)
    monkeypatch.setattr(one._ticks, "_find", None)
    assert other.next_after(1.75e9) == found
    assert other.next_after(found - 1 if found else 0) == found


@pytest.mark.parametrize("zone", NIGHTS)
def test_the_tables_of_the_page_are_correct(zone: str) -> None:
    page = (ROOT / "docs" / "explanation" / "schedule-clock.md").read_text()
    _, _, section = page.partition(f"\n### {zone}\n")
    assert clock_table(zone) in section.partition("\n### ")[0], (
        f"python -m tests.support.pages prints:\n{clock_table(zone)}"
    )


def test_the_page_names_every_alias() -> None:
    page = (ROOT / "docs" / "explanation" / "schedule-clock.md").read_text()
    for alias, expression in ALIASES.items():
        assert any(f"`{alias}`" in line and f"`{expression}`" in line for line in page.splitlines()), alias


def test_the_advice_of_the_page_works() -> None:
    berlin = "Europe/Berlin"
    spring, autumn = changes(berlin)
    assert not ticks("*/60 2 * * *", berlin, spring - HOUR, spring + HOUR)
    assert len(ticks("0 1,2,3 * * *", berlin, autumn - 3 * HOUR, autumn + 3 * HOUR)) == 3
    together = ticks("0 2,3 * * *", berlin, spring - HOUR, spring + HOUR)
    assert [wall(tick, berlin)[11:16] for tick in together] == ["03:00"]
    for zone in ("Africa/Cairo", "America/Havana", "America/Santiago"):
        forward = next(moment for moment in changes(zone) if wall(moment, zone)[11:16] == "01:00")
        assert ticks("@daily", zone, forward - HOUR, forward + HOUR) == [forward]
