"""The pages for those who work on qd name targets, files and layers that exist; the changelog has its form."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import qd
from tests.docs.test_readme import headings
from tests.support.pages import ROOT

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / ".github").rglob("*.md"))]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
DEVELOPED = {"0.1.0"}  # versions of copies that were never released
PLANNED = {"dist", "sbom"}  # targets of make that RELEASING.md names and the packaging brings
PACKAGE = tomllib.loads((ROOT / "pyproject.toml").read_text())


def each_page(*but: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", [page for page in PAGES if page.name not in but], ids=lambda page: page.name)


@each_page()
def test_links_have_existing_files_and_headings(page: Path) -> None:
    for name, heading in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
        target = page.parent / name if name else page
        assert target.exists(), name
        assert not heading or target.suffix != ".md" or heading in headings(target), (name, heading)


@each_page()
def test_each_target_of_make_on_a_page_exists(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"(?:`|^ {4}|run: )make ([a-z][a-z-]*)", page.read_text(), re.MULTILINE))
    named -= PLANNED
    assert [target for target in named if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


@each_page()
def test_each_path_in_code_on_a_page_exists(page: Path) -> None:
    start = r"(?:tests|daemon|docs|conf|supervisor|bench|examples|\.ci|\.github)"
    named = set(re.findall(rf"`({start}/[\w./-]+)`", page.read_text()))
    assert [path for path in named if not (ROOT / path).exists() and "X.Y.Z" not in path] == []


def test_the_guide_has_the_layers_that_the_linter_enforces() -> None:
    page = " ".join((ROOT / "CONTRIBUTING.md").read_text().split())
    shown = [
        {name.strip() for name in layer.split(",")}
        for layer in page.partition("enforces it: ")[2].partition(" If a change")[0].split(" > ")
    ]
    (contract,) = [each for each in PACKAGE["tool"]["importlinter"]["contracts"] if each["type"] == "layers"]
    enforced = [{name.strip() for name in re.split(r"[|:]", layer)} for layer in contract["layers"]]
    assert shown == enforced


def test_the_changelog_has_the_version_of_the_package_with_its_day() -> None:
    first, *versions = re.findall(r"^## (.*)$", CHANGELOG, re.MULTILINE)
    assert first == "[Unreleased]"
    found = [re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - (\d{4}-\d\d-\d\d)", version) for version in versions]
    assert all(found), versions
    numbers = [tuple(map(int, match.groups()[:3])) for match in found if match]
    assert numbers == sorted(numbers, reverse=True)
    if qd.__version__ not in DEVELOPED:
        assert f"[{qd.__version__}]" in CHANGELOG


def test_each_version_has_a_section_about_the_upgrade_to_it() -> None:
    page = (ROOT / "docs" / "how-to" / "upgrading.md").read_text()
    for version in re.findall(r"^## \[(\d[\d.]*)\]", CHANGELOG, re.MULTILINE):
        assert f"\n### {version}\n" in page
        assert (ROOT / "tests" / "compat" / "golden" / f"qd-{version}").is_dir()


def test_the_first_release_is_readable_in_minutes() -> None:
    """Later versions are shorter: they say what has changed."""
    text = CHANGELOG.partition("## [0.9.0]")[2].partition("\n## ")[0]
    assert len(text.split()) <= 900
