"""The table of faults: what a run writes into the page."""

from __future__ import annotations

from tests.support.reliability import HEAD, line_of, share, with_lines

PAGE = "before\n<!-- quick rows -->\n<!-- end of quick rows -->\nafter\n"


def seen(name: str, **more: object) -> dict[str, object]:
    return {"test": name, "what": f"{name} is killed", "holds": "all of it", "slow": False, "outcome": "passed", **more}


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| ") and line not in HEAD.splitlines()]


def test_a_row_counts_all_of_its_tests() -> None:
    line = line_of("2", [seen("one", lost=0, doubles=1, back=[0.1, 0.3]), seen("two", lost=2, doubles=0, back=[1.5])])
    assert line == "| 2 | one is killed | all of it | 2 | 2 | 1 | 300 ms | 1.5 s | 1.5 s | holds |"


def test_one_failed_test_breaks_its_row() -> None:
    assert line_of("2", [seen("one"), seen("two", outcome="failed")]).endswith("| **broken** |")


def test_a_whole_run_writes_the_table_anew_and_a_part_keeps_the_other_rows() -> None:
    first = {"10": line_of("10", [seen("ten")]), "2": line_of("2", [seen("two")])}
    whole = with_lines(PAGE, "quick", first, partial=False)
    assert rows(whole) == [first["2"], first["10"]]
    assert whole.startswith("before\n")
    assert whole.endswith("after\n")

    again = {"10": line_of("10", [seen("ten", outcome="failed")]), "4a": line_of("4a", [seen("four")])}
    assert rows(with_lines(whole, "quick", again, partial=True)) == [first["2"], again["4a"], again["10"]]
    assert rows(with_lines(whole, "quick", again, partial=False)) == [again["4a"], again["10"]]


def test_a_share_of_times_is_one_of_them() -> None:
    assert share([3.0, 1.0, 2.0], 0.5) == 2.0
    assert share([3.0, 1.0, 2.0], 0.99) == 3.0
