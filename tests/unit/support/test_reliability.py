"""The table of faults: what a run writes into the page."""

from __future__ import annotations

from typing import Any

from tests.support.reliability import HEAD, line_of, share, with_lines

PAGE = "before\n<!-- quick rows -->\n<!-- end of quick rows -->\nafter\n"
Tests = dict[str, dict[str, Any]]


def seen(name: str, **more: object) -> dict[str, Any]:
    return {"what": f"kill -9 of {name}", "holds": "all of it", "slow": False, "outcome": "passed", **more}


def one(name: str, **more: object) -> Tests:
    return {f"tests/faults/test_{name}.py::test_{name}": seen(name, **more)}


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| ") and line not in HEAD.splitlines()]


def test_a_row_counts_all_of_its_tests() -> None:
    tests = one("one", lost=0, doubles=1, back=[0.1, 0.3]) | one("two", lost=2, doubles=0, back=[1.5])
    line = line_of("2", tests)
    assert line.startswith("| 2 | kill -9 of one | all of it | 2 | 2 | 1 | 300 ms | 1.5 s | 1.5 s | holds |")
    assert "| faults/test_one.py, faults/test_two.py |" in line


def test_one_failed_test_breaks_its_row() -> None:
    assert "| **broken** |" in line_of("2", one("one") | one("two", outcome="failed"))


def test_a_whole_run_writes_the_table_anew_and_a_part_keeps_the_other_rows() -> None:
    first = {"10 more": line_of("10 more", one("ten")), "2": line_of("2", one("two"))}
    whole = with_lines(PAGE, "quick", first, partial=False)
    assert rows(whole) == [first["2"], first["10 more"]]
    assert whole.startswith("before\n")
    assert whole.endswith("after\n")

    again = {"10 more": line_of("10 more", one("ten", outcome="failed")), "4a": line_of("4a", one("four"))}
    assert rows(with_lines(whole, "quick", again, partial=True)) == [first["2"], again["4a"], again["10 more"]]
    assert rows(with_lines(whole, "quick", again, partial=False)) == [again["4a"], again["10 more"]]


def test_a_part_of_a_row_does_not_replace_all_of_it() -> None:
    all_of_it = {"2": line_of("2", one("one") | one("two"))}
    page = with_lines(PAGE, "quick", all_of_it, partial=False)
    part = {"2": line_of("2", one("one"))}
    assert with_lines(page, "quick", part, partial=True) == page
    assert rows(with_lines(page, "quick", part, partial=False)) == [part["2"]]


def test_a_share_of_times_is_one_of_them() -> None:
    assert share([3.0, 1.0, 2.0], 0.5) == 2.0
    assert share([3.0, 1.0, 2.0], 0.99) == 3.0
