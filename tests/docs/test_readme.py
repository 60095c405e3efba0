"""The README: its first job, samples, links and figures; and the promises in docs/reliability.md."""

from __future__ import annotations

import ast
import re
import signal
from pathlib import Path

from tests.support.project import MakeProject

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
RESULTS = (ROOT / "bench" / "RESULTS.md").read_text()
RELIABILITY = (ROOT / "docs" / "reliability.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
COMMANDS = re.findall(r"`qd ((?:work|dispatch)[^`]*)`", README)


def test_the_first_job_equals_the_one_of_init_and_runs(project: MakeProject) -> None:
    one = project(url="embedded:")
    one.allowed.add(".qd")
    for name in ("qd.toml", "jobs.py"):
        (one.root / name).unlink()
    assert one.qd("init").returncode == 0
    assert BLOCKS[0].strip() in (one.root / "jobs.py").read_text()

    work, dispatch = COMMANDS[:2]
    worker = one.work("default", "high", "--workers", "1", *work.split()[1:])
    worker.wait_line("master.ready")
    done = one.qd(*dispatch.split())
    assert done.returncode == 0, done.stderr
    one.python(BLOCKS[1])
    worker.wait_line("job.done.*mail.welcome", count=2)
    worker.stop(signal.SIGINT)
    assert worker.output == ["to ada@example.org: Hello (attempt 1)"] * 2
    assert one.qd("embedded", "stop").returncode == 0


def test_the_samples_of_the_readme_are_one_program(project: MakeProject) -> None:
    one = project(jobs="\n".join([BLOCKS[0], *BLOCKS[2:]]))
    one.python("import jobs")


def test_readme_has_at_most_200_lines() -> None:
    assert len(README.splitlines()) <= 200


def headings(page: Path) -> set[str]:
    """The anchors that GitHub generates for the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }


def test_links_have_existing_pages_and_headings() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for name, heading in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
            target = page.parent / name if name else page
            assert target.exists(), (page.name, name)
            assert not heading or heading in headings(target), (page.name, name, heading)


def test_the_index_of_the_documentation_lists_each_page() -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "README.md").read_text()))
    assert linked == {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}


def rows(text: str) -> dict[str, list[str]]:
    """The tables of a page: the first cell of each row, without notes and emphasis -> the other cells."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return {re.sub(r" [↑↓]$", "", row[0]): [re.sub(r"\*\*| \(.*\)", "", cell) for cell in row[1:]] for row in cells}


def test_performance_figures_and_versions_equal_the_benchmark_results() -> None:
    section = README.partition("## Performance, measured")[2].partition("\n## ")[0]
    shown, measured = rows(section), rows(RESULTS.partition("\n## Goals")[0])
    figures = {name: cells for name, cells in shown.items() if name in measured and cells[0][:1].isdigit()}
    assert len(figures) == 6
    for name, cells in figures.items():
        assert cells == measured[name], name
    assert f"commit {measured['qd'][0]}" in section
    assert measured["date"][0].split()[0] in section
    for peer in ("celery", "rq"):
        for version in re.findall(rf"\b{peer} (\d+\.\d+(?:\.\d+)?)", README, re.IGNORECASE):
            assert measured[peer][0].startswith(version), peer


def known_rows() -> set[str]:
    """The rows of the fault table, from the marks of the tests."""
    calls = [
        node
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "fault"
    ]
    return {ast.literal_eval(call.args[0]) for call in calls}


def rows_that_hold() -> set[str]:
    """The rows whose verdict in docs/reliability.md, written by a run, is "holds"."""
    page = RELIABILITY.partition("<!-- end of connections -->")[2]  # the rows above have no verdict
    lines = re.findall(r"^\| (\d.*) \|$", page, re.M)
    verdicts = [(cells[0], cells[9]) for line in lines if (cells := line.split(" | "))]
    return {row for row, _ in verdicts} - {row for row, verdict in verdicts if verdict != "holds"}


def test_every_promise_names_existing_rows_that_hold() -> None:
    section = RELIABILITY.split("## What is promised")[1].split("## What is not")[0]
    promises = re.findall(r"^- \*\*(?:.|\n(?!- |\n))*", section, re.M)
    assert len(promises) == 6
    for promise in promises:
        named = set(re.split(r",\s+", re.split(r"Rows:\s+", promise)[1].strip()))
        assert sorted(named - known_rows()) == [], promise
        assert sorted(named - rows_that_hold()) == [], promise
