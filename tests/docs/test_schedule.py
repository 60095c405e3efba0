"""The table of frequencies in docs/schedule.md is complete, with the expression of each method."""

from __future__ import annotations

import inspect
import re

import pytest

from qd.schedule.builder import Scheduled, Words
from qd.schedule.entry import CallTask
from qd.schedule.frequencies import Days, Frequencies
from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "schedule.md").read_text()
ROWS = re.findall(r"^\| `(\w+\(.*\))` \| `([^`]+)` \|", PAGE, re.MULTILINE)
ELSEWHERE = {"tuesdays", "wednesdays", "thursdays", "fridays", "saturdays", "sundays", "every"}


def new() -> Scheduled:
    return Scheduled(CallTask(print), "print", ("here", 1), {})


@pytest.mark.parametrize(("word", "expression"), ROWS)
def test_a_frequency_has_the_expression_on_the_page(word, expression):
    entry = eval(f"new().{word}", {"new": new})
    assert entry._timing("UTC").text == expression


def public(kind):
    return {name for name in vars(kind) if not name.startswith("_") and inspect.isfunction(getattr(kind, name))}


def test_every_frequency_has_a_row():
    assert len(ROWS) > 40
    said = set(re.findall(r"\w+(?=\()", " ".join(word for word, _ in ROWS)))
    assert public(Days) | public(Frequencies) == said | ELSEWHERE


def test_every_other_method_has_a_row():
    table = PAGE[PAGE.index("## Every other word") : PAGE.index("## Beside Laravel's")]
    said = set(re.findall(r"`(\w+)\(", table))
    assert public(Scheduled) <= said
    for word in Words.__annotations__:
        assert f"{word}=" in PAGE


@pytest.mark.parametrize(
    ("day", "number"),
    [("tuesdays", 2), ("wednesdays", 3), ("thursdays", 4), ("fridays", 5), ("saturdays", 6), ("sundays", 0)],
)
def test_days_of_the_week(day, number):
    assert getattr(new().at("8:00"), day)()._expression == f"0 8 * * {number}"
    assert new().days(day[:-1], day[:3].upper()).at("8:00")._expression == f"0 8 * * {number},{number}"
