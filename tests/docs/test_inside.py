"""The maps of the code, in the docstrings of its folders and in docs/inside.md, name existing files."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = ROOT / "daemon" / "qd"
ROW = re.compile(r"^([a-z_]+(?:, [a-z_]+)*) {2,}\S", re.M)  # one or more names, then their description


def mapped(folder: Path) -> list[str]:
    """The names in the first column of a folder's docstring."""
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    return [name for row in ROW.findall(said) for name in row.split(", ")]


@pytest.mark.parametrize("folder", ["dispatch", "drivers", "drivers/database", "master", "scheduler"])
def test_a_large_folder_has_a_map(folder: str):
    assert len(mapped(CODE / folder)) >= 10


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
    named = re.findall(r"`([\w/]+(?:\.py|\.lua|/))`", (ROOT / "docs" / "inside.md").read_text())
    assert len(named) > 30
    places = [CODE, CODE / "drivers" / "keyspace" / "scripts", ROOT]
    assert [name for name in named if not any((place / name).exists() for place in places)] == []
