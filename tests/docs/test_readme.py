"""The README: first job, samples, links and figures; the promises and tables of reliability.md; maps of the code."""

from __future__ import annotations

import ast
import re
import signal
from functools import cache
from pathlib import Path

import pytest

from tests.support.project import MakeProject
from tests.support.reliability import with_cells

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
RESULTS = (ROOT / "bench" / "RESULTS.md").read_text()
RELIABILITY = (ROOT / "docs" / "explanation" / "reliability.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
COMMANDS = re.findall(r"`qd ((?:work|dispatch)[^`]*)`", README)


def test_the_first_job_equals_the_one_of_init_and_runs(project: MakeProject) -> None:
    one = project(url="embedded:")
    one.allowed |= {".qd", "qd.schema.json"}
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
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for name, heading in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
            target = page.parent / name if name else page
            assert target.exists(), (page.name, name)
            assert not heading or heading in headings(target), (page.name, name, heading)


def test_the_index_of_the_documentation_lists_each_page() -> None:
    """commands.md lists the pages of the commands."""
    docs = ROOT / "docs"
    linked = set(re.findall(r"\]\(([\w/-]+\.md)\)", (docs / "index.md").read_text()))
    commands = re.findall(r"\]\((cli/[\w-]+\.md)[#)]", (docs / "reference" / "commands.md").read_text())
    linked |= {f"reference/{name}" for name in commands}
    assert linked == {str(page.relative_to(docs)) for page in docs.rglob("*.md")} - {"index.md"}


Cells = dict[str, dict[str, str]]


def tables(text: str) -> Cells:
    """Title of a column -> first cell of a row -> its cell there, without notes and emphasis. Of equal titles the first."""
    found: Cells = {}
    for table in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        lines = [[plain(cell) for cell in line.strip().strip("|").split("|")] for line in table.splitlines()]
        for place, title in enumerate(lines[0]):
            found.setdefault(title, {line[0]: line[place] for line in lines[2:]})
    return found


def plain(cell: str) -> str:
    return re.sub(r"\*\*| \(.*\)| [↑↓]$", "", cell.strip())


def of_peer(column: dict[str, str], peer: str) -> str:
    """The cell of the first row of this peer ("Laravel 8", "qd"); "-": there is none."""
    name = peer.split()[0].lower()
    return next((cell for row, cell in column.items() if row.split()[0].lower() == name), "-")


def test_performance_figures_and_versions_equal_the_benchmark_results() -> None:
    section = README.partition("## Performance, measured")[2].partition("\n## ")[0]
    shown, measured = tables(section), tables(RESULTS.partition("\n## Goals")[0])
    titles = [title for title in shown[""] if title in measured]
    assert len(titles) == 6
    for peer in shown.keys() - {""}:
        for title in titles:
            assert shown[peer][title] == of_peer(measured[title], peer), (title, peer)
    facts = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", RESULTS.partition("\n## ")[0], re.MULTILINE))
    assert f"commit {facts['qd']}" in section
    assert facts["date"].split()[0] in section
    for peer in ("celery", "rq"):
        for version in re.findall(rf"\b{peer} (\d+\.\d+(?:\.\d+)?)", README, re.IGNORECASE):
            assert facts[peer].startswith(version), peer


def test_pictures_exist_and_show_the_run_of_the_results() -> None:
    facts = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", RESULTS.partition("\n## ")[0], re.MULTILINE))
    pages = [ROOT / "README.md", ROOT / "bench" / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = [
        page.parent / name
        for page in pages
        for name in re.findall(r"(?:src=\"|\]\()([^)\"\s]+\.svg)", page.read_text())
    ]
    assert len(named) >= 3
    for picture in named:
        if picture.name == "demo.svg":
            continue  # test_recording.py
        assert f"commit {facts['qd']}" in picture.read_text(), picture


@cache
def known_rows() -> frozenset[str]:
    """The rows of the fault table, from the marks of the tests."""
    calls = [
        node
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "fault"
    ]
    return frozenset(ast.literal_eval(call.args[0]) for call in calls)


def rows_that_hold() -> set[str]:
    """The rows whose verdict in docs/explanation/reliability.md, written by a run, is "holds"."""
    page = RELIABILITY.partition("<!-- end of connections -->")[2]  # the rows above have no verdict
    lines = re.findall(r"^\| (\d.*) \|$", page, re.M)
    verdicts = [(cells[0], cells[10]) for line in lines if (cells := line.split(" | "))]
    return {row for row, _ in verdicts} - {row for row, verdict in verdicts if verdict != "holds"}


def test_every_promise_names_existing_rows_that_hold() -> None:
    section = RELIABILITY.split("## What is promised")[1].split("## What is not")[0]
    promises = re.findall(r"^- \*\*(?:.|\n(?!- |\n))*", section, re.M)
    assert len(promises) == 7
    for promise in promises:
        named = set(re.split(r",\s+", re.split(r"Rows:\s+", promise)[1].strip()))
        assert sorted(named - known_rows()) == [], promise
        assert sorted(named - rows_that_hold()) == [], promise


# --- maps of the code


CODE = ROOT / "daemon" / "qd"
ROW = re.compile(r"^([a-z_]+(?:, [a-z_]+)*) {2,}\S", re.M)  # one or more names, then their description


def mapped(folder: Path) -> list[str]:
    """The names in the first column of a folder's docstring."""
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    return [name for row in ROW.findall(docstring) for name in row.split(", ")]


MAPPED = (
    *("arguments", "dispatch", "drivers", "drivers/database", "jobs", "keeper", "master", "payload", "process"),
    *("schedule", "scheduler", "store", "worker"),
)


@pytest.mark.parametrize("folder", MAPPED)
def test_a_large_folder_has_a_map(folder: str):
    names = {path.stem for path in (CODE / folder).iterdir() if path.suffix == ".py" and path.stem != "__init__"}
    assert sorted(names - {*mapped(CODE / folder)}) == []


def test_each_name_on_a_map_exists():
    folders = [path.parent for path in CODE.rglob("__init__.py")]
    strange = [
        f"{folder.relative_to(CODE)}: {name}"
        for folder in folders
        for name in mapped(folder)
        if not (folder / f"{name}.py").exists() and not (folder / name).is_dir()
    ]
    assert strange == []


def test_each_file_on_the_architecture_page_exists():
    named = re.findall(r"`([\w/]+(?:\.py|\.lua|/))`", (ROOT / "docs" / "explanation" / "architecture.md").read_text())
    assert len(named) > 30
    places = [CODE, CODE / "drivers" / "keyspace" / "scripts", ROOT]
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


# --- the table of connections


EMPTY = "head\n<!-- connections -->\n\n<!-- end of connections -->\ntail\n"


def seen(connection: str, **more: object) -> dict[str, object]:
    return {
        "what": "kill",
        "holds": "back",
        "outcome": "passed",
        "doubles": 0,
        "back": [0.25],
        "connection": connection,
        **more,
    }


def test_a_run_of_one_connection_keeps_the_cells_of_others() -> None:
    text = with_cells(EMPTY, {"60": {"a": seen("redis")}, "61": {"b": seen("redis", doubles=2, back=[2.0])}})
    text = with_cells(text, {"60": {"a": seen("sqs", outcome="failed")}})
    assert text == (
        "head\n<!-- connections -->\n\n"
        "| row | fault and result | redis | sqs |\n| --- | --- | --- | --- |\n"
        "| 60 | kill: back | 250 ms | **broken** |\n| 61 | kill: back | 2.0 s, 2 twice |  |\n"
        "\n<!-- end of connections -->\ntail\n"
    )
