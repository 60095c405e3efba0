"""The public interface under mypy --strict and pyright's strict mode: typical uses and the samples of docs/ are accepted,
typical mistakes are errors, each on its line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import PAGES, sample_program

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "typing"
FILES = ("accepted.py", "refused.py")
MYPY_ERROR = re.compile(r"(?P<file>[^:]+):(?P<line>\d+): error: .*\[(?P<code>[\w-]+)\]")
EXPECTED = re.compile(r"# E: ([\w-]+)$")


@pytest.fixture(scope="module")
def mypy_errors(tmp_path_factory) -> dict[str, set[tuple[int, str]]]:
    """File -> (line, error code). One run for both files."""
    folder = tmp_path_factory.mktemp("typing")
    for name in FILES:
        (folder / name).write_text((CASES / name).read_text().replace("# mypy: ignore-errors\n", "\n"))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", folder / "cache", "."],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT / "daemon"), "MYPY_FORCE_COLOR": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[str, set[tuple[int, str]]] = {name: set() for name in FILES}
    for line in done.stdout.splitlines():
        if match := MYPY_ERROR.match(line):
            assert match["file"] in found, f"mypy reports an error in qd itself: {line}"
            found[match["file"]].add((int(match["line"]), match["code"]))
    return found


@pytest.fixture(scope="module")
def pyright_errors(tmp_path_factory) -> dict[str, list[tuple[int, str]]]:
    """File -> (line, "message [rule]"), for the pages as modules and for the files that mypy checks. One run for all."""
    folder = tmp_path_factory.mktemp("pyright")
    for page in PAGES:
        (folder / f"{module(page)}.py").write_text(sample_program(page.read_text()))
    for name in FILES:
        (folder / name).write_text((CASES / name).read_text())
    paths = [str(ROOT / "daemon")]
    settings = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "extraPaths": paths}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--level", "error", "--pythonpath", sys.executable, "--outputjson", "."],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(list(folder.glob("*.py")))
    found: dict[str, list[tuple[int, str]]] = {}
    for each in report["generalDiagnostics"]:
        line, message = each["range"]["start"]["line"] + 1, f"{each['message']} [{each.get('rule', 'syntax')}]"
        found.setdefault(Path(each["file"]).name, []).append((line, message))
    return found


def module(page: Path) -> str:
    return "page_" + page.stem.replace("-", "_")


def expected_errors() -> set[tuple[int, str]]:
    lines = (CASES / "refused.py").read_text().splitlines()
    return {(number, match[1]) for number, line in enumerate(lines, 1) if (match := EXPECTED.search(line))}


@pytest.mark.xdist_group("mypy")
def test_mypy_accepts_typical_uses(mypy_errors):
    assert mypy_errors["accepted.py"] == set()


@pytest.mark.xdist_group("mypy")
def test_mypy_reports_each_typical_mistake_on_its_line(mypy_errors):
    assert mypy_errors["refused.py"] == expected_errors()
    assert len(expected_errors()) >= 17


@pytest.mark.xdist_group("pyright")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_samples_of_a_page_are_accepted(page: Path, pyright_errors):
    assert pyright_errors.get(f"{module(page)}.py", []) == []


@pytest.mark.xdist_group("pyright")
def test_pyright_accepts_typical_uses(pyright_errors):
    assert pyright_errors.get("accepted.py", []) == []


@pytest.mark.xdist_group("pyright")
def test_pyright_reports_each_typical_mistake_on_its_line(pyright_errors):
    assert {line for line, _ in pyright_errors["refused.py"]} == {line for line, _ in expected_errors()}
