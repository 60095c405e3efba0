"""Each claim of the README links to the test, the page or the table that shows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
RESULTS = (ROOT / "bench" / "RESULTS.md").read_text()
LINK = re.compile(r"\]\(((?:tests|bench|docs)/[^)\s]+)\)")


def section(text: str, title: str) -> str:
    found = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    assert found, title
    return found


def rows(text: str) -> list[list[str]]:
    """The rows of the first table, without its head, as plain cells."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip().replace("**", "") for cell in line.strip().strip("|").split("|")] for line in lines[2:]]


def bullets(title: str) -> list[str]:
    return [line for line in section(README, title).splitlines() if line.startswith("- ")]


@pytest.mark.parametrize("title", ["Why qd", "How it works"])
def test_each_point_links_to_what_shows_it(title: str) -> None:
    assert len(bullets(title)) >= 4
    assert [point for point in bullets(title) if not LINK.search(point)] == []


def test_each_strength_in_the_comparison_links_to_what_shows_it() -> None:
    table = rows(section(README, "How it compares"))
    assert len(table) >= 12
    lost = [row for row in table if row[1] in ("no", "2026, beta")]
    assert [row for row in table if row not in lost and not LINK.search(row[1])] == []
    bold = re.findall(r"^\| [^|]+ \| ([^|]+) \| (.+)$", section(README, "How it compares"), re.MULTILINE)
    assert 3 * sum("**" in others for _, others in bold[2:]) >= len(table), "a third of the rows have a better answer"


def test_the_table_of_faults_equals_the_measured_one() -> None:
    shown, measured = section(README, "Reliability, measured"), section(RESULTS, "Faults")
    assert rows(shown) == rows(measured)
    assert "bench/RESULTS.md#faults" in shown
    (date,) = re.findall(r"on (\d{4}-\d\d-\d\d) \d\d:\d\d UTC", measured)
    assert date in shown
