"""Ticks of cron expressions in golden/cron.tsv: what qd, croniter and systemd compute, and why they differ.

`python -m tests.compat.test_cron_table` writes the table; it needs croniter and systemd-analyze (systemd 252 was used). A
line is: expression, zone, time, the next tick by croniter, by systemd ("-": not expressible), and where either differs from
qd: qd's tick, and the reason for each. A difference without a reason ends the program, and fails the test.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter

from qd.schedule.timing import Cron
from tests.support import cron
from tests.support.cron import YEARS, changes

TABLE = Path(__file__).parent / "golden" / "cron.tsv"
NONE = "-"

REASONS = {
    "croniter: again": "a fixed time occurs twice when the clock goes back; in Debian's cron only the first time",
    "croniter: left out": "a wildcard tick in the gap comes at its end; in Debian's cron wildcard jobs skip it",
    "croniter: no such day": "a tick on a day that the zone skipped comes at the start of the next day",
    "croniter: the second": "the second of a time in the gap is kept; qd runs it exactly at the end of the gap",
    "systemd: passed over": "a fixed time in the gap is skipped; in Debian's cron it comes at the end of the gap",
    "systemd: again": "during a repeated hour a fixed time occurs again; in Debian's cron it does not",
    "systemd: once": "a repeated time occurs once, also for wildcards; in Debian's cron wildcard jobs run both times",
}

# expression -> the same for systemd, the earliest of several; empty: not expressible
EXPRESSIONS: dict[str, tuple[str, ...]] = {
    "* * * * *": ("*-*-* *:*:00",),
    "*/15 * * * *": ("*-*-* *:00/15:00",),
    "7-59/13 * * * *": ("*-*-* *:07..59/13:00",),
    "0 * * * *": ("*-*-* *:00:00",),
    "0,30 * * * *": ("*-*-* *:00,30:00",),
    "0 */6 * * *": ("*-*-* 00/6:00:00",),
    "*/20 2 * * *": ("*-*-* 02:00/20:00",),
    "*/30 1-3 * * *": ("*-*-* 01..03:00/30:00",),
    "30 2 * * *": ("*-*-* 02:30:00",),
    "0 2 * * *": ("*-*-* 02:00:00",),
    "0 3 * * *": ("*-*-* 03:00:00",),
    "15 1 * * *": ("*-*-* 01:15:00",),
    "0 1,2,3 * * *": ("*-*-* 01,02,03:00:00",),
    "0 0 * * *": ("*-*-* 00:00:00",),
    "5 0 * * *": ("*-*-* 00:05:00",),
    "30 23 * * *": ("*-*-* 23:30:00",),
    "0 7 * * MON-FRI": ("Mon..Fri *-*-* 07:00:00",),
    "0 9-17/2 * * 1-5": ("Mon..Fri *-*-* 09..17/2:00:00",),
    "30 2 * * SUN": ("Sun *-*-* 02:30:00",),
    "0 0 * * 7": ("Sun *-*-* 00:00:00",),
    "0 10 * * SAT,0": ("Sat,Sun *-*-* 10:00:00",),
    "0 12 * * MON#1": ("Mon *-*-01..07 12:00:00",),
    "0 12 * * 2#4": ("Tue *-*-22..28 12:00:00",),
    "0 12 * * 5L": ("Fri *-*~07/1 12:00:00",),
    "0 0 1 * *": ("*-*-01 00:00:00",),
    "0 0 L * *": ("*-*~01 00:00:00",),
    "0 0 LW * *": ("Mon..Thu *-*~01 00:00:00", "Fri *-*~03/1 00:00:00"),
    "45 23 15,L * *": ("*-*-15 23:45:00", "*-*~01 23:45:00"),
    "0 0 31 * *": ("*-*-31 00:00:00",),
    "0 8 13 * FRI": ("*-*-13 08:00:00", "Fri *-*-* 08:00:00"),  # one of them must match
    "0 8 */2 * MON": ("Mon *-*-01/2 08:00:00",),  # both must match, because one begins with a star
    "0 8 1-7 * */2": ("Sun,Tue,Thu,Sat *-*-01..07 08:00:00",),
    "0 0 29 2 *": ("*-02-29 00:00:00",),
    "0 0 1 JAN,JUL *": ("*-01,07-01 00:00:00",),
    "15 10 * 3-5,OCT *": ("*-03..05,10-* 10:15:00",),
    "59 23 31 12 *": ("*-12-31 23:59:00",),
    "@weekly": ("Sun *-*-* 00:00:00",),
    "@monthly": ("*-*-01 00:00:00",),
    "@yearly": ("*-01-01 00:00:00",),
    "15 30 2 * * *": ("*-*-* 02:30:15",),
    "*/20 * * * * *": ("*-*-* *:*:00/20",),
    "30 0 12 * * WED": ("Wed *-*-* 12:00:30",),
}
# Seconds relative to a clock change, and times of the year far from one. Each expression is tested at some of them.
NEAR = (
    -25 * 3600,
    -7200,
    -5400,
    -3600,
    -1801,
    -1800,
    -1200,
    -60,
    -1,
    0,
    1,
    600,
    1800,
    2400,
    3599,
    3600,
    7200,
    10 * 3600,
)
FAR = ((1, 31, 23, 59, 59), (2, 28, 12, 0, 0), (6, 15, 10, 7, 33), (12, 31, 23, 59, 0))


@dataclass(frozen=True)
class Case:
    """Ticks as ISO strings. tick, reasons: "" if all agree."""

    expression: str
    zone: str
    moment: str
    croniter: str
    systemd: str
    tick: str = ""
    reasons: str = ""

    @property
    def at(self) -> float:
        return datetime.fromisoformat(self.moment).timestamp()

    @property
    def agreed(self) -> str:
        return self.tick or (self.croniter if self.croniter != NONE else self.systemd)


def load() -> list[Case]:
    return [Case(*line.split("\t")) for line in TABLE.read_text().splitlines()]


def shown(at: float, zone: str) -> str:
    return datetime.fromtimestamp(at, ZoneInfo(zone)).isoformat()


def by_qd(expression: str, zone: str, at: float) -> str:
    found = Cron(expression, zone).next_after(at)
    return shown(found, zone) if found is not None else NONE


def by_croniter(expression: str, zone: str, at: float) -> str:
    if "LW" in expression:
        return NONE
    known = expression.replace("5L", "L5")
    moment = datetime.fromtimestamp(at, ZoneInfo(zone))
    found = croniter(known, moment, implement_cron_bug=True, second_at_beginning=True).get_next(datetime)
    return str(found.isoformat())


def by_systemd(expression: str, zone: str, at: float) -> str:
    base = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
    found = []
    for message in EXPRESSIONS[expression]:
        ran = subprocess.run(
            ["systemd-analyze", "calendar", f"--base-time={base}", f"{message} {zone}"],
            env={"TZ": "UTC", "PATH": "/usr/bin:/bin", "LC_ALL": "C"},
            capture_output=True,
            text=True,
        )
        if ran.returncode:
            assert "next elapse" in ran.stderr, ran.stderr  # it finds none if a day has no midnight
            return NONE
        line = next(line for line in ran.stdout.splitlines() if "Next elapse" in line)
        found.append(datetime.strptime(line.split(": ")[1], "%a %Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC).timestamp())
    return shown(min(found), zone)


def reason(case: Case, peer: str) -> str:
    """Why the tick of this program differs from qd's: a key of REASONS, "" if not. Raises LookupError if unknown."""
    theirs = getattr(case, peer)
    if theirs in (NONE, case.agreed):
        return ""
    tick, ours = datetime.fromisoformat(theirs).timestamp(), datetime.fromisoformat(case.agreed).timestamp()
    found = f"{peer}: {(_croniter if peer == 'croniter' else _systemd)(case, tick, ours)}"
    REASONS[found]
    return found


def _croniter(case: Case, tick: float, ours: float) -> str:
    if tick > ours:
        return "the second" if ours in changes(case.zone) and tick - ours < 60 else "?"
    if case.zone == "Pacific/Apia" and 0 <= tick - changes(case.zone)[-1] < 60:
        return "no such day"
    if tick in changes(case.zone) and beat(case.expression):
        return "left out"
    return "again" if again(tick, case) else "?"


def _systemd(case: Case, tick: float, ours: float) -> str:
    if tick < ours:
        return "again" if again(tick, case) else "?"
    if ours in changes(case.zone) and not beat(case.expression):
        return "passed over"
    return "once" if datetime.fromtimestamp(ours, ZoneInfo(case.zone)).fold and beat(case.expression) else "?"


def again(tick: float, case: Case) -> bool:
    """Whether this is a fixed time whose hour repeats, the second time."""
    return datetime.fromtimestamp(tick, ZoneInfo(case.zone)).fold == 1 and not beat(case.expression)


def beat(expression: str) -> bool:
    minute, hour = expression.split()[-5:][:2] if expression[0] != "@" else "00"
    return "*" in (minute[0], hour[0])


def asked() -> Iterator[tuple[str, str, float]]:
    """The cases of the table: one in eleven of all combinations."""
    number = 0
    for zone, year in YEARS.items():
        where = ZoneInfo(zone)
        moments = [datetime(year, *far, tzinfo=where).timestamp() for far in FAR]
        moments += [change + near for change in changes(zone) for near in NEAR]
        for expression in EXPRESSIONS:
            for at in moments:
                number += 1
                if number % 11 == 0:
                    yield expression, zone, at


def case_of(asked: tuple[str, str, float]) -> Case:
    expression, zone, at = asked
    theirs = by_croniter(*asked), by_systemd(*asked)
    ours = by_qd(*asked)
    differ = any(tick not in (NONE, ours) for tick in theirs)
    case = Case(expression, zone, shown(at, zone), *theirs, ours if differ else "")
    reasons = "; ".join(filter(None, (reason(case, "croniter"), reason(case, "systemd"))))
    return replace(case, reasons=reasons)


def main() -> None:
    TABLE.write_text("".join("\t".join(vars(case_of(one)).values()) + "\n" for one in asked()))


CASES = load()


def test_the_table_covers_all_expressions_and_zones() -> None:
    assert len(CASES) >= 400
    assert {case.expression for case in CASES} == set(EXPRESSIONS)
    assert {case.zone for case in CASES} == set(YEARS)
    assert sum(case.croniter != NONE and case.systemd != NONE for case in CASES) > 1000, "few cases with two witnesses"


@pytest.mark.parametrize("zone", YEARS)
def test_qd_computes_the_ticks_of_the_table(zone: str) -> None:
    wrong = [case for case in CASES if case.zone == zone and by_qd(case.expression, zone, case.at) != case.agreed]
    assert not wrong


def test_in_a_case_without_a_reason_all_programs_agree() -> None:
    for case in CASES:
        if not case.reasons:
            assert {case.croniter, case.systemd} - {NONE} == {case.agreed}


def test_the_installed_croniter_computes_the_ticks_of_the_table() -> None:
    for case in CASES:
        assert by_croniter(case.expression, case.zone, case.at) == case.croniter, case


def test_every_difference_has_the_recorded_reason() -> None:
    for case in CASES:
        found = [reason(case, "croniter"), reason(case, "systemd")]
        assert "; ".join(filter(None, found)) == case.reasons
    counted = Counter(word for case in CASES for word in case.reasons.split("; ") if word)
    assert set(counted) == set(REASONS), "a reason that explains nothing"


def test_where_they_differ_qd_follows_debians_cron() -> None:
    differ = [case for case in CASES if case.reasons and len(case.expression.split()) == 5]
    assert len(differ) > 30
    for case in differ:
        assert next(cron.runs(case.expression, case.zone, int(case.at), int(case.at) + 40 * 86400)) == tick(case), case


def tick(case: Case) -> float:
    return datetime.fromisoformat(case.agreed).timestamp()


def test_a_fixed_time_is_skipped_only_on_a_day_that_does_not_exist() -> None:
    """A daily entry has one tick per day of the year in every zone: 365, in Samoa 364."""
    for zone, year in YEARS.items():
        for expression in ("30 2 * * *", "0 0 * * *", "45 1 * * *"):
            daily, days = Cron(expression, zone), 0
            start, end = (datetime(at, 1, 1, tzinfo=ZoneInfo(zone)).timestamp() for at in (year, year + 1))
            at = start - 1
            while (at := daily.next_after(at) or end) < end:
                days += 1
            assert days == (364 if zone == "Pacific/Apia" else 365), (zone, expression)


if __name__ == "__main__":
    main()
