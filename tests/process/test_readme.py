"""The README's five minutes, as they are written there."""

from __future__ import annotations

import ast
import re
import signal
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def blocks() -> list[str]:
    """The indented blocks of the README, without their indentation."""
    text = (ROOT / "README.md").read_text()
    return [
        textwrap.dedent(found).strip() + "\n" for found in re.findall(r"(?:^    .*\n(?:^\n(?=    ))*)+", text, re.M)
    ]


def block(beginning: str) -> str:
    return next(text for text in blocks() if text.startswith(beginning))


def test_first_job_is_what_init_writes_and_runs_as_the_readme_says(project):
    one = project(url="embedded:")
    one.allowed.add(".qd")
    for name in ("qd.toml", "jobs.py"):
        (one.root / name).unlink()
    assert one.qd("init").returncode == 0
    assert block("from qd import Qd") in (one.root / "jobs.py").read_text()

    worker = one.work("--workers", "1")
    worker.wait_line("master.ready")
    assert [line.split()[1] for line in block("qd work").splitlines()] == ["work", "dispatch"]
    done = one.qd(*block("qd work").splitlines()[1].split()[1:])
    assert done.returncode == 0, done.stderr
    one.python(block("from datetime"))
    worker.wait_line("job.done.*mail.welcome", count=2)
    worker.stop(signal.SIGINT)
    assert worker.output == ["to ada@example.org: Hello (attempt 1)"] * 2
    assert one.qd("embedded", "stop").returncode == 0


def test_readme_links_to_pages_that_are_there():
    linked = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text())
    assert [name for name in linked if not (ROOT / name).exists()] == []


def known_rows() -> set[str]:
    """The rows of the table of faults, as the tests name them."""
    calls = [
        node
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "fault"
    ]
    return {ast.literal_eval(call.args[0]) for call in calls}


def rows_that_hold() -> set[str]:
    """By the tables of the page, as they were written by a run."""
    page = (
        (ROOT / "docs/reliability.md").read_text().partition("<!-- end of connections -->")[2]
    )  # those have no verdict
    lines = re.findall(r"^\| (\d.*) \|$", page, re.M)
    verdicts = [(cells[0], cells[9]) for line in lines if (cells := line.split(" | "))]
    return {row for row, _ in verdicts} - {row for row, verdict in verdicts if verdict != "holds"}


def test_every_promise_is_one_of_the_page_on_reliability_and_names_rows_that_are_there():
    told = re.findall(r"^\| (\*\*.*) \| ([\w, ]+) \|$", (ROOT / "README.md").read_text(), re.M)
    page = (ROOT / "docs/reliability.md").read_text().split("## What is not")[0]
    promised = [" ".join(item.split()) for item in re.findall(r"^- (\*\*(?:.|\n(?!- |\n))*)", page, re.M)]
    assert [promise for promise, _ in told] == promised
    named = {row for _, rows in told for row in rows.split(", ")}
    assert sorted(named - known_rows()) == []
    assert sorted(named - rows_that_hold()) == []
