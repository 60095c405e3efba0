"""What counts as another qd on disk, and what a refused reload says about it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from qd import __version__
from qd.master.reload import OwnCode, release_in
from tests.support.project import SOURCE


def package(folder: Path, version: str = "1.0.0") -> Path:
    """A small qd."""
    (folder / "master").mkdir(parents=True)
    (folder / "__init__.py").write_text(f'"""qd."""\n\n__version__ = "{version}"\n')
    (folder / "master" / "reload.py").write_text("ONE = 1\n")
    (folder / "turn.lua").write_text("return 1\n")
    return folder


@pytest.fixture
def qd(tmp_path: Path) -> Path:
    return package(tmp_path / "qd")


def remembered(folder: Path, *roots: Path) -> OwnCode:
    own = OwnCode(str(folder), [str(root) for root in roots])
    own.remember()
    return own


def reason(own: OwnCode) -> str:
    found = own.change()
    assert found is not None
    assert found["hint"] == "qd restart"
    return str(found["reason"])


def test_the_qd_of_these_tests_is_read() -> None:
    assert release_in(str(SOURCE / "qd")).version == __version__
    assert remembered(SOURCE / "qd").change() is None


CODE: dict[str, Callable[[Path], object]] = {
    "a line": lambda qd: (qd / "master" / "reload.py").write_text("ONE = 2\n"),
    "a script": lambda qd: (qd / "turn.lua").write_text("return 2\n"),
    "another module": lambda qd: (qd / "master" / "spawn.py").touch(),
    "a module less": lambda qd: (qd / "master" / "reload.py").unlink(),
    "a module renamed": lambda qd: (qd / "master" / "reload.py").rename(qd / "master" / "again.py"),
    "a line that moved to the next file": lambda qd: (
        (qd / "master" / "reload.py").write_text(""),
        (qd / "turn.lua").write_text("ONE = 1\nreturn 1\n"),
    ),
}


@pytest.mark.parametrize("change", CODE)
def test_changed_code_of_the_same_version_has_another_digest(qd: Path, change: str) -> None:
    own, before = remembered(qd), release_in(str(qd)).digest
    CODE[change](qd)
    after = release_in(str(qd)).digest
    assert before != after
    assert reason(own) == f"qd changed from 1.0.0 ({before}) to 1.0.0 ({after})"


def installed_again(qd: Path) -> None:
    shutil.rmtree(qd)
    package(qd)


def compiled(qd: Path) -> None:
    (qd / "__pycache__").mkdir()
    (qd / "__pycache__" / "reload.cpython-311.pyc").touch()
    (qd / "__pycache__" / "reload.py").touch()


OTHERWISE: dict[str, Callable[[Path], None]] = {
    "a time": lambda qd: os.utime(qd / "turn.lua", (0, 0)),
    "the same files installed again": installed_again,
    "bytecode": compiled,
    "an editor's lock": lambda qd: (qd / ".#reload.py").symlink_to("nobody@nowhere"),
    "a note": lambda qd: (qd / "notes.txt").touch(),
}


@pytest.mark.parametrize("change", OTHERWISE)
def test_what_is_no_code_does_not_count(qd: Path, change: str) -> None:
    own = remembered(qd)
    OTHERWISE[change](qd)
    assert own.change() is None


def test_another_version_is_named(qd: Path) -> None:
    own = remembered(qd)
    shutil.rmtree(qd)
    package(qd, "1.1.0")
    found = own.change()
    assert found == {
        "reason": "qd changed from 1.0.0 to 1.1.0",
        "hint": "qd restart",
        "path": str(qd),
        "running": None,
    }


def test_a_qd_that_is_gone_or_half_installed_counts_as_changed(qd: Path) -> None:
    own = remembered(qd)
    (qd / "__init__.py").unlink()
    assert reason(own) == "qd 1.0.0 was removed"
    shutil.rmtree(qd)
    assert reason(own) == "qd 1.0.0 was removed"
    package(qd)
    assert own.change() is None


# -- releases behind a `current` link, each with its own virtual environment


def site(root: Path) -> Path:
    return root / ".venv" / "lib" / "site-packages" / "qd"


@pytest.fixture
def releases(tmp_path: Path) -> Callable[[str, str], Path]:
    """release("2", version): releases/2 with its own qd, and `current` points to it. Returns `current`."""

    def release(name: str, version: str) -> Path:
        package(site(tmp_path / "releases" / name), version)
        link = tmp_path / "next"
        link.symlink_to(f"releases/{name}")
        return link.replace(tmp_path / "current")

    return release


Releases = Callable[[str, str], Path]


@pytest.mark.parametrize("imported", ["through current", "from the release"])
@pytest.mark.parametrize("deleted", [False, True], ids=["still there", "deleted"])
def test_a_link_to_a_release_with_another_qd_is_noticed(
    releases: Releases, tmp_path: Path, imported: str, deleted: bool
) -> None:
    """current/.venv/bin/qd is tied to releases/1 by its first line if the environment was made there."""
    current, first = releases("1", "1.0.0"), site(tmp_path / "releases" / "1")
    own = remembered(site(current) if imported == "through current" else first, current / ".venv")
    releases("2", "2.0.0")
    if deleted:
        shutil.rmtree(tmp_path / "releases" / "1")
    assert own.change() == {
        "reason": "qd changed from 1.0.0 to 2.0.0",
        "hint": "qd restart",
        "path": str(site(current)),
        "running": f"{first}, {'deleted' if deleted else 'still there'}",
    }


def test_a_release_with_the_same_qd_is_no_change(releases: Releases, tmp_path: Path) -> None:
    current, first = releases("1", "1.0.0"), site(tmp_path / "releases" / "1")
    own = remembered(first, current / ".venv")
    releases("2", "1.0.0")
    assert own.change() is None
    shutil.rmtree(tmp_path / "releases" / "1")  # what it has not imported yet it can import no more
    assert reason(own) == "qd 1.0.0 was removed"


def test_a_qd_outside_of_the_folders_of_its_start_is_compared_where_it_is(qd: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    own = remembered(qd, tmp_path / "elsewhere", tmp_path / "q")  # the beginning of a name is no folder
    assert own.named == str(qd)
    assert own.change() is None
