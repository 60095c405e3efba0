"""The Python of each page of docs/ is one program: it runs from top to bottom against a real server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import PAGES, ROOT, STANDINS, sample_program
from tests.support.servers.redis import Server


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_samples_of_a_page_run(page: Path, server: Server, tmp_path: Path):
    (tmp_path / "page.py").write_text(sample_program(page.read_text()))
    ours = {key: value for key, value in os.environ.items() if not key.startswith("QD_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import page"],
        cwd=tmp_path,
        env={**ours, "PYTHONPATH": f"{ROOT / 'daemon'}:{STANDINS}", "QD_REDIS_URL": server.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.replace(str(tmp_path / "page.py"), str(page))
    assert done.stderr == ""


def test_the_pages_with_samples_are_found():
    assert "jobs.md" in [page.name for page in PAGES]
