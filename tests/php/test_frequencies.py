"""Schedule frequencies: each method, and each pair of methods, makes the same expression as in Laravel."""

from __future__ import annotations

import json
import re
import subprocess
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from qd.schedule.builder import Scheduled
from qd.schedule.entry import CallTask
from tests.support.programs import missing, program

SCRIPT = Path(__file__).parent / "rig" / "frequencies.php"
PROBE = "exit((int) !stream_resolve_include_path('Illuminate/Console/autoload.php'));"

Call = tuple[str, list[Any]]

# Laravel's names, with arguments if they take any.
WORDS: list[Call] = [
    ("everyMinute", []),
    ("everyTwoMinutes", []),
    ("everyThreeMinutes", []),
    ("everyFourMinutes", []),
    ("everyFiveMinutes", []),
    ("everyTenMinutes", []),
    ("everyFifteenMinutes", []),
    ("everyThirtyMinutes", []),
    ("hourly", []),
    ("hourlyAt", [17]),
    ("hourlyAt", [[0, 30]]),
    ("hourlyAt", ["5"]),
    ("hourlyAt", ["0,30"]),
    ("everyTwoHours", []),
    ("everyThreeHours", []),
    ("everyFourHours", []),
    ("everySixHours", []),
    ("daily", []),
    ("at", ["13:00"]),
    ("dailyAt", ["8:05"]),
    ("dailyAt", ["9"]),
    ("twiceDaily", []),
    ("twiceDaily", [2, 14]),
    ("twiceDailyAt", [1, 13, 15]),
    ("weekdays", []),
    ("weekends", []),
    ("mondays", []),
    ("tuesdays", []),
    ("wednesdays", []),
    ("thursdays", []),
    ("fridays", []),
    ("saturdays", []),
    ("sundays", []),
    ("days", [0, 3]),
    ("days", [[0, 3]]),
    ("days", ["1-5"]),
    ("days", ["1,3"]),
    ("days", [["1-3", "6"]]),
    ("weekly", []),
    ("weeklyOn", [1, "8:00"]),
    ("weeklyOn", [[1, 3]]),
    ("monthly", []),
    ("monthlyOn", [4, "15:00"]),
    ("monthlyOn", ["4", "15"]),
    ("twiceMonthly", [1, 16, "13:00"]),
    ("quarterly", []),
    ("yearly", []),
    ("yearlyOn", [6, 1, "17:00"]),
    ("cron", ["5 4 3 2 1"]),
]
CHAINS: list[list[Call]] = [[word] for word in WORDS] + [list(pair) for pair in product(WORDS, WORDS)]


@cache
def laravels() -> list[str]:
    """Laravel's expressions for CHAINS, from one process."""
    php = program("php")
    if subprocess.run([php, "-r", PROBE], check=False).returncode:
        missing("php-illuminate-console")
    done = subprocess.run(
        [php, SCRIPT], input=json.dumps(CHAINS), capture_output=True, text=True, timeout=60, check=True
    )
    found: list[str] = json.loads(done.stdout)
    return found


def ours(calls: list[Call]) -> str:
    entry = Scheduled(CallTask(print), "print", ("here", 1), {})
    for word, arguments in calls:
        getattr(entry, re.sub("[A-Z]", lambda letter: "_" + letter[0].lower(), word))(*arguments)
    return entry._expression


@pytest.mark.parametrize("number", range(len(WORDS)), ids=[f"{word}{arguments}" for word, arguments in WORDS])
def test_each_frequency_and_each_pair_has_laravels_expression(number: int):
    expected = laravels()
    here = [place for place, calls in enumerate(CHAINS) if calls[0] == WORDS[number]]
    assert len(here) == len(WORDS) + 1
    for place in here:
        assert ours(CHAINS[place]) == expected[place], CHAINS[place]


def test_the_last_day_of_the_month_is_computed_for_each_month():
    """Laravel uses the number of days of the month in which the scheduler started."""
    assert ours([("lastDayOfMonth", ["15:00"])]) == "0 15 L * *"
