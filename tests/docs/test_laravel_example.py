"""`make demo-laravel`: Laravel and Python share one Redis."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.php.laravel import has_laravel
from tests.support.pages import ROOT
from tests.support.programs import missing, program

RUN = ROOT / "examples" / "laravel" / "run.py"


def ran(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run it with this folder for temporary files."""
    ours = {
        **os.environ,
        "TMPDIR": str(folder),
        "PYTHONPATH": str(ROOT / "daemon"),
        "PYTHONDONTWRITEBYTECODE": "1",
        **env,
    }
    return subprocess.run([sys.executable, RUN], env=ours, capture_output=True, text=True, timeout=120, check=False)


def running(folder: Path) -> list[list[str]]:
    """The processes that were started with this folder for temporary files."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == str(folder):
                found.append(process.cmdline())
        except psutil.Error:
            continue
    return found


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder on a short path: that of a unix socket is limited."""
    with tempfile.TemporaryDirectory(prefix="qd-") as name:
        yield Path(name)


def test_php_and_python_run_the_jobs_of_each_other_and_nothing_is_left_running(folder: Path) -> None:
    if not has_laravel(program("php")):
        missing("php-redis or php-illuminate-queue")
    done = ran(folder)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 20
    assert lines.index(r"  Python | transcoded podcast 7; dispatches App\Jobs\Publish to the queue php") < lines.index(
        "  PHP    | published podcast 7: podcast-7.mp3"
    )
    assert [line for line in lines if line.startswith("  ok  ")] == lines[-3:]
    assert running(folder) == []
    assert [path for path in folder.rglob("*") if not path.is_dir()] == []


def test_without_laravel_it_says_what_to_install(tmp_path: Path) -> None:
    done = ran(tmp_path, PATH="/nowhere")
    assert (done.returncode, done.stderr) == (1, "")
    assert re.search("^    apt install php-cli php-redis php-illuminate-queue ", done.stdout, re.MULTILINE)


def test_the_packages_it_names_are_those_of_the_checks() -> None:
    named = set(re.findall(r"php-\S+", re.findall("apt install .*", RUN.read_text())[0]))
    assert named <= set(re.findall(r"php-\S+", (ROOT / ".ci" / "run").read_text()))
    assert named == set(re.findall(r"php-\S+", (RUN.parent / "README.md").read_text()))
