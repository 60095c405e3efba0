"""qd's ticks, croniter's and systemd's: a table of what they say, and why they differ where they do (cron_table.py)."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from qd.schedule.timing import Cron
from tests.compat.cron_table import EXPRESSIONS, NONE, REASONS, Case, by_croniter, by_qd, load, reason
from tests.support import cron
from tests.support.cron import YEARS

CASES = load()


def test_the_table_is_what_it_is_made_for() -> None:
    assert len(CASES) >= 400
    assert {case.expression for case in CASES} == set(EXPRESSIONS)
    assert {case.zone for case in CASES} == set(YEARS)
    assert sum(case.croniter != NONE and case.systemd != NONE for case in CASES) > 1000, "few cases with two witnesses"


@pytest.mark.parametrize("zone", YEARS)
def test_the_ticks_are_those_of_the_table(zone: str) -> None:
    wrong = [case for case in CASES if case.zone == zone and by_qd(case.expression, zone, case.at) != case.agreed]
    assert not wrong


def test_a_case_without_a_reason_is_one_in_which_all_agree() -> None:
    for case in CASES:
        if not case.reasons:
            assert {case.croniter, case.systemd} - {NONE} == {case.agreed}


def test_the_installed_croniter_says_what_the_table_says() -> None:
    for case in CASES:
        assert by_croniter(case.expression, case.zone, case.at) == case.croniter, case


def test_every_difference_has_the_reason_that_is_written_there() -> None:
    for case in CASES:
        found = [reason(case, "croniter"), reason(case, "systemd")]
        assert "; ".join(filter(None, found)) == case.reasons
    told = Counter(word for case in CASES for word in case.reasons.split("; ") if word)
    assert set(told) == set(REASONS), "a reason that explains nothing"


def test_where_they_differ_qd_does_as_debians_cron() -> None:
    differ = [case for case in CASES if case.reasons and len(case.expression.split()) == 5]
    assert len(differ) > 30
    for case in differ:
        assert next(cron.runs(case.expression, case.zone, int(case.at), int(case.at) + 40 * 86400)) == tick(case), case


def tick(case: Case) -> float:
    return datetime.fromisoformat(case.agreed).timestamp()


def test_a_day_that_was_not_is_the_only_fixed_time_left_out() -> None:
    """A daily entry comes on each day of the year once, in every zone: 365, and in Samoa 364."""
    for zone, year in YEARS.items():
        for expression in ("30 2 * * *", "0 0 * * *", "45 1 * * *"):
            daily, days = Cron(expression, zone), 0
            start, end = (datetime(at, 1, 1, tzinfo=ZoneInfo(zone)).timestamp() for at in (year, year + 1))
            at = start - 1
            while (at := daily.next_after(at) or end) < end:
                days += 1
            assert days == (364 if zone == "Pacific/Apia" else 365), (zone, expression)
