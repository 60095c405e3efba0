"""The public interface under pyright's strict mode: the samples of docs/ are accepted, typical mistakes refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import PAGES, STANDINS, sample_program
from tests.typing.test_mypy import CASES, ROOT, marked

pytestmark = pytest.mark.xdist_group("pyright")


def checked(folder: Path) -> dict[str, list[tuple[int, str]]]:
    """File -> (line, "message [rule]") of each error that pyright finds in the modules of `folder`."""
    paths = [str(ROOT / "daemon"), str(STANDINS)]
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
    said: dict[str, Any] = json.loads(done.stdout)
    assert said["summary"]["filesAnalyzed"] == len(list(folder.glob("*.py")))
    found: dict[str, list[tuple[int, str]]] = {}
    for each in said["generalDiagnostics"]:
        line, message = each["range"]["start"]["line"] + 1, f"{each['message']} [{each.get('rule', 'syntax')}]"
        found.setdefault(Path(each["file"]).name, []).append((line, message))
    return found


@pytest.fixture(scope="module")
def said(tmp_path_factory) -> dict[str, list[tuple[int, str]]]:
    """Of the pages as modules, and of the cases that mypy is shown too. One run for all."""
    folder = tmp_path_factory.mktemp("pyright")
    for page in PAGES:
        (folder / f"{module(page)}.py").write_text(sample_program(page.read_text()))
    for name in ("accepted.py", "refused.py"):
        (folder / name).write_text((CASES / name).read_text())
    return checked(folder)


def module(page: Path) -> str:
    return "page_" + page.stem.replace("-", "_")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_samples_of_a_page_are_accepted(page: Path, said):
    assert said.get(f"{module(page)}.py", []) == []


def test_typical_uses_are_accepted(said):
    assert said.get("accepted.py", []) == []


def test_typical_mistakes_are_refused_each_on_its_line(said):
    assert {line for line, _ in said["refused.py"]} == {line for line, _ in marked()}
