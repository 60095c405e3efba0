"""Charts: marks that are close to each other share a text."""

from __future__ import annotations

from re import findall

from qd.dashboard.charts import Line, Mark, chart

TIMES = range(0, 180 * 60, 60)
LINE = Line("done", [1.0] * len(TIMES), "s1")


def marks(*at: float) -> list[tuple[str, str]]:
    """The kind and text of each mark in a chart."""
    drawn = chart("Done", [*TIMES], [LINE], [Mark(each, f"v{each}", "deploy", f"deploy at {each}") for each in at])
    return findall(r'<g class="mark (\w*)">.*?<text[^>]*>([^<]*)</text></g>', str(drawn))


def test_marks_far_apart_have_their_own_texts() -> None:
    assert marks(600, 6000) == [("deploy", "v600"), ("deploy", "v6000")]


def test_marks_close_to_each_other_share_one() -> None:
    assert marks(600, 660, 720, 6000) == [("", "3 events"), ("deploy", "v6000")]
    drawn = str(chart("Done", [*TIMES], [LINE], [Mark(600, "a", "deploy", "<one>"), Mark(660, "b", "pause", "two")]))
    assert "&lt;one&gt;; two" in drawn


def test_marks_outside_the_chart_are_left_out() -> None:
    assert marks(-1, 10**9) == []
