"""The public interface under mypy --strict: typical uses are accepted, typical mistakes refused, each on its line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "typing"
SAID = re.compile(r"(?P<file>[^:]+):(?P<line>\d+): error: .*\[(?P<code>[\w-]+)\]")
MARK = re.compile(r"# E: ([\w-]+)$")

pytestmark = pytest.mark.xdist_group("mypy")


@pytest.fixture(scope="module")
def said(tmp_path_factory) -> dict[str, set[tuple[int, str]]]:
    """What mypy says of each file: (line, error code). One run for both."""
    folder = tmp_path_factory.mktemp("typing")
    for name in ("accepted.py", "refused.py"):
        text = (CASES / name).read_text().replace("# mypy: ignore-errors\n", "\n")
        (folder / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", folder / "cache", "."],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT / "daemon"), "MYPY_FORCE_COLOR": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[str, set[tuple[int, str]]] = {"accepted.py": set(), "refused.py": set()}
    for line in done.stdout.splitlines():
        if match := SAID.match(line):
            assert match["file"] in found, f"mypy finds fault with qd itself: {line}"
            found[match["file"]].add((int(match["line"]), match["code"]))
    return found


def marked() -> set[tuple[int, str]]:
    lines = (CASES / "refused.py").read_text().splitlines()
    return {(number, match[1]) for number, line in enumerate(lines, 1) if (match := MARK.search(line))}


def test_typical_uses_are_accepted(said):
    assert said["accepted.py"] == set()


def test_typical_mistakes_are_refused_each_on_its_line(said):
    assert said["refused.py"] == marked()
    assert len(marked()) >= 17
