"""Cron expressions: what is read, and what is said of those that are none."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime

import pytest

from qd.options.kinds import KINDS
from qd.schedule.timing import Cron, Every
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
def test_two_ways_of_writing_one_expression_have_one_mark(one: str, other: str) -> None:
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


def test_another_zone_or_expression_has_another_mark() -> None:
    marks = {Cron("0 7 * * *").mark, Cron("0 8 * * *").mark, Cron("0 7 * * *", "Europe/Berlin").mark}
    assert len(marks) == 3


WRONG = [
    ("60 * * * *", "'60' cannot stand for the minute (0-59"),
    ("60 0 * * * *", "'60' cannot stand for the second (0-59"),
    ("0 25 * * *", "'25' cannot stand for the hour (0-23"),
    ("0 1,2,24 * * *", "'24' cannot stand for the hour"),
    ("0 0 0 * *", "'0' cannot stand for the day of the month (1-31"),
    ("0 0 * FOO *", "'FOO' cannot stand for the month (1-12 or JAN-DEC"),
    ("0 0 * * 8", "'8' cannot stand for the day of the week (0-7 or SUN-SAT"),
    ("0 0 * * FRI-MON", "'FRI-MON' cannot stand for the day of the week"),
    ("0 0 * * 1#6", "'1#6' cannot stand for the day of the week"),
    ("*/0 * * * *", "'*/0' cannot stand for the minute"),
    ("1,,2 * * * *", "'1,,2' cannot stand for the minute"),
    ("0 0 ? * 1", "'?' cannot stand for the day of the month"),
    ("0 0 15W * *", "'15W' cannot stand for the day of the month"),
    ("-1 * * * *", "'-1' cannot stand for the minute"),
    ("٣ * * * *", "'٣' cannot stand for the minute"),
    ("", "has 0 fields, not 5"),
    ("* * * *", "has 4 fields, not 5"),
    ("0 0 0 1 1 * 2026", "has 7 fields, not 5"),
    ("@dayly", "unknown cron expression '@dayly' (did you mean '@daily'?)"),
    ("@reboot", "do it when the program starts"),
    ("0 0 31 2 *", "never comes: no day fits day of the month '31', month '2'"),
    ("0 0 30 FEB *", "never comes"),
    ("0 0 31 4,6,9,11 *", "never comes"),
    ("0 0 30-31 2 */2", "never comes"),
    ("0 0 */30 2 1#2", "never comes"),  # both must fit, for one begins with a star: the 1st is no second Monday
]


@pytest.mark.parametrize(("expression", "said"), WRONG, ids=[expression for expression, _ in WRONG])
def test_a_wrong_expression_is_refused_with_what_is_wrong(expression: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        Cron(expression)
    text = str(caught.value)
    assert said in text
    assert "\n" not in text
    if "cannot stand" in text or "fields" in text:
        assert "'0 7 * * *'" in text, "no example"


RARE = [
    ("0 0 29 2 *", (2028, 2, 29)),
    ("0 0 * 2 MON#5", (2044, 2, 29)),
    ("0 0 30 2 1", (2026, 2, 2)),  # either fits, as no field begins with a star: the Mondays of February
    ("0 0 31 2,3 *", (2026, 3, 31)),
]


@pytest.mark.parametrize(("expression", "day"), RARE)
def test_what_comes_rarely_is_taken(expression: str, day: tuple[int, int, int]) -> None:
    assert (
        Cron(expression).next_after(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
        == datetime(*day, tzinfo=UTC).timestamp()
    )


@pytest.mark.parametrize("at", [2e11, 253402300799.0, 1e17, float("inf")])
def test_after_the_end_of_the_calendar_nothing_comes(at: float) -> None:
    """Such a moment may stand in a store that somebody has written into."""
    assert Cron("@daily", "Europe/Berlin").next_after(at) is None
    assert Cron("@daily").next_after(at) is None
    assert Cron("@daily").next_after(86399.5) == 86400


def test_what_is_no_text_is_refused() -> None:
    for value in (None, 5, ["0 7 * * *"]):
        with pytest.raises(ValueError, match="is not a cron expression: write a text"):
            Cron(value)  # type: ignore[arg-type]


ZONES = [
    ("Europe/Berln", "unknown time zone 'Europe/Berln' (did you mean 'Europe/Berlin'?)"),
    ("Mars/Phobos", "unknown time zone 'Mars/Phobos'"),
    ("Europe", "unknown time zone 'Europe'"),
    ("../etc/passwd", "unknown time zone '../etc/passwd'"),
    ("", "is not a name"),
]


@pytest.mark.parametrize(("zone", "said"), ZONES)
def test_an_unknown_zone_is_refused(zone: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        Cron("@daily", zone)
    assert said in str(caught.value)
    with pytest.raises(ValueError):
        KINDS["zone"](zone)


BARE = """
import sys, zoneinfo
zoneinfo.reset_tzpath(to=[])
sys.modules["tzdata"] = None
from datetime import time
from qd.cli.schedule.state import moment
from qd.schedule.builder import hours
from qd.schedule.timing import Cron
print(Cron("0 7 * * *").next_after(0))
print(hours(time(6), time(8), "UTC", True).passes(7 * 3600), moment(0, "UTC"))
try:
    Cron("0 7 * * *", "Europe/Berlin")
except ValueError as error:
    print(error)
"""


def test_a_host_without_zone_data_is_told_what_to_install_and_has_utc() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", BARE], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(SOURCE)}
    )
    tick, utc, said = ran.stdout.splitlines()
    assert (float(tick), utc) == (7 * 3600, "True 1970-01-01 00:00")
    assert said == "time zone 'Europe/Berlin' is not installed, nor any other: pip install tzdata"


@pytest.mark.parametrize("seconds", [0, -1, 0.001, 0.0105, float("nan"), float("inf")])
def test_a_beat_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="whole milliseconds"):
        Every(seconds)


def test_a_beat_is_the_multiples_of_its_length() -> None:
    assert Every(10).next_after(1005) == 1010
    assert Every(10).next_after(1010) == 1020
    assert Every(0.1).next_after(1700000000.3) == 1700000000.4
    assert Every(0.25).next_after(0.999) == 1.0
    assert Every(90).next_after(0) == 90
